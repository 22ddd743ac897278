"""Data sets, and published hyperparameters of their kernels."""

import dataclasses
import json

import numpy as np

from benchmarks.datasets import Dataset, load
from measuring.store import shared

HYPERPARAMETERS = "data/sdd_hyperparameters/matern32_ard.json"


def load_raw(name: str, split: int) -> Dataset:
    """Load UCI set `name`, or simulate the set "synthetic"."""
    if name == "synthetic":
        return _synthetic(split)
    return load(f"uci:{name}:{split}")


def bike_counts(seed: int) -> Dataset:
    """Return the bikes rented per hour as counts; the set has their logarithms."""
    rows = load("bike-hourly", seed=seed)
    return dataclasses.replace(rows, y=np.rint(np.exp(rows.y)), y_test=np.rint(np.exp(rows.y_test)))


def hyperparameters(name: str, split: int) -> dict:
    """Return Matérn-3/2 hyperparameters of Lin et al. (2023) for standardised data."""
    found = json.loads(shared(HYPERPARAMETERS).read_text(encoding="utf-8"))[name][str(split)]
    return {
        "lengthscale": np.asarray(found["lengthscale"]),
        "variance": found["signal_std"] ** 2,
        "noise_variance": found["noise_std"] ** 2,
    }


def _synthetic(seed: int) -> Dataset:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(400, 3))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * generator.normal(size=400)
    return Dataset(X[:300], y[:300], X[300:], y[300:], ("x0", "x1", "x2"), "y", "synthetic")
