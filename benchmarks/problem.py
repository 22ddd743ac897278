"""The problem every library is given: the same rows, first weights and first noise variance."""

from typing import NamedTuple

import numpy as np

WIDTH = 128


class Problem(NamedTuple):
    """Rows X [N, D] and y [N], weights W1 [D, M], b1 [M], W2 [M, M], b2 [M] of a ReLU network; float32."""

    X: np.ndarray
    y: np.ndarray
    weights: tuple[np.ndarray, ...]
    noise_variance: float = 0.1
    noise_floor: float = 1e-4

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows alone."""
        return self.X.nbytes + self.y.nbytes


def make_problem(n_rows: int, n_inputs: int = 17, width: int = WIDTH, seed: int = 0) -> Problem:
    """y = sin(x·a) + 0.3 ε with x, a, ε standard normal; W ~ N(0, 2/fan-in), b ~ U(−1, 1)/√fan-in."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_inputs), dtype=np.float32)
    y = np.sin(X @ rng.standard_normal(n_inputs, dtype=np.float32))
    y += np.float32(0.3) * rng.standard_normal(n_rows, dtype=np.float32)
    weights = (*_layer(rng, n_inputs, width), *_layer(rng, width, width))
    return Problem(X, y, weights)


def _layer(rng: np.random.Generator, n_inputs: int, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    weight = rng.standard_normal((n_inputs, n_outputs), dtype=np.float32) * np.float32((2 / n_inputs) ** 0.5)
    bias = (rng.random(n_outputs, dtype=np.float32) * 2 - 1) * np.float32(n_inputs**-0.5)
    return weight, bias
