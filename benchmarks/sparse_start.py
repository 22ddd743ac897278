"""Where both sides of the benchmark `sparse` start: rows, inducing points, hyperparameters."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from stochgp import data

NOISE, VARIANCE, RATE, BATCH = 0.1, 1.0, 0.01, 1024
QUICK_ROWS = 600
NETWORK = (64, 64, 4)  # of the deep kernel, tanh between its layers


class Start(NamedTuple):
    """Standardised rows in float32; test targets in units of the training targets' standard deviation."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    points: np.ndarray
    lengthscale: float


def start(name: str, size: int) -> Start:
    """Split 0 of a UCI set, or "quick", and `size` of its training rows as inducing points."""
    from benchmarks.datasets.prepared import load_raw

    raw = load_raw("synthetic" if name == "quick" else name, 0)
    inputs, targets = data.Standardiser.fit(raw.X), data.Standardiser.fit(raw.y)
    X, y = inputs.transform(raw.X, np.float32), targets.transform(raw.y, np.float32)
    chosen = np.random.default_rng(0).permutation(len(X))[:size]
    tests = inputs.transform(raw.X_test, np.float32), targets.transform(raw.y_test)
    return Start(X, y, *tests, X[chosen], math.sqrt(X.shape[1]))


def weights(n_inputs: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(W [in, out], b [out]) of each layer of the deep kernel's network."""
    generator, sizes = np.random.default_rng(1), (n_inputs, *NETWORK)
    return [
        (
            (generator.normal(size=(a, b)) / math.sqrt(a)).astype(np.float32),
            generator.uniform(-1, 1, b).astype(np.float32) / math.sqrt(a),
        )
        for a, b in itertools.pairwise(sizes)
    ]


def nlpd(start: Start, mean: np.ndarray, variance: np.ndarray) -> float:
    """Of the test rows; `variance` with the noise."""
    squares = (start.y_test - mean) ** 2
    return float(np.mean(0.5 * np.log(2 * np.pi * variance) + squares / (2 * variance)))
