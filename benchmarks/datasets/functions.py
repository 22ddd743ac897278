"""Analytic test functions with noise, on uniform inputs: `fun:NAME:ROWS`.

Definitions are those of Surjanovic and Bingham, Virtual Library of Simulation Experiments. Chen et al. (2020)
use these five functions but do not state their noise. Each default noise is the largest, in two digits, that
allows their printed RMSE.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
from jaxtyping import Float
from numpy.typing import DTypeLike

from stochgp import budget
from stochgp.names import did_you_mean

from .dataset import Dataset

_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class AnalyticFunction:
    """A function f on a box of inputs; `value` maps X [N, D] to f [N]."""

    inputs: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    value: Callable[[Float[np.ndarray, "N D"]], Float[np.ndarray, " N"]]
    noise_std: float
    rows: int


def load_function(
    name: str,
    rows: int,
    *,
    test_fraction: float = 0.1,
    seed: int = 0,
    noise_std: float | None = None,
    dtype: DTypeLike = np.float64,
) -> Dataset:
    """Return draws of y = f(x) + noise_std · ε with uniform x; the last rows are test rows.

    f is evaluated in float64. With the same seed, fewer rows are the first of more rows.

    Raises ValueError for an unknown name, for an empty training or test set, for a negative or infinite
    noise, and for more rows than fit into memory.

    Parameters
    ----------
    name : str
        "levy", "griewank", "borehole", "otl" or "wing".
    rows : int
        The number of training and test rows together.
    test_fraction : float
        The share of test rows.
    seed : int
        The seed of the draws. The rows do not depend on `test_fraction`.
    noise_std : float, optional
        The standard deviation of the noise in the units of f; None = the default of the function.
    dtype : dtype
        The dtype of X and y.
    """
    if name not in FUNCTIONS:
        raise ValueError(f"fun:{name}: no such function; {did_you_mean(name, FUNCTIONS)}")
    function, dtype = FUNCTIONS[name], np.dtype(dtype)
    noise_std = function.noise_std if noise_std is None else float(noise_std)
    if not 0.0 <= noise_std < np.inf:
        raise ValueError(f"noise_std must be finite and at least 0, but is {noise_std!r}")
    n_train = rows - round(rows * test_fraction)
    _require_memory(f"fun:{name}:{rows}", rows * (len(function.inputs) + 1) * dtype.itemsize)
    X, y = _draw(function, rows, seed, noise_std, dtype)
    return Dataset(
        X[:n_train],
        y[:n_train],
        X[n_train:],
        y[n_train:],
        function.inputs,
        "y",
        f"fun:{name}:{rows}",
        noise_std,
    )


def _require_memory(what: str, need: int) -> None:
    free = psutil.virtual_memory().available  # host memory, which holds the rows
    if need > free:
        have = budget.format_bytes(free)
        raise ValueError(f"{what} takes {budget.format_bytes(need)} of memory, but {have} is available")


def _draw(
    function: AnalyticFunction, rows: int, seed: int, noise_std: float, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    inputs, noise = (np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(2))
    low, high = np.array(function.low), np.array(function.high)
    X, y = np.empty((rows, len(low)), dtype), np.empty(rows, dtype)
    for start in range(0, rows, _CHUNK_ROWS):
        part = slice(start, min(start + _CHUNK_ROWS, rows))
        n = part.stop - start
        X[part] = low + (high - low) * inputs.random((n, len(low)))
        y[part] = function.value(X[part].astype(np.float64)) + noise_std * noise.standard_normal(n)
    return X, y


def levy(X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
    """Return the Levy function with wᵢ = 1 + (xᵢ−1)/4 (see the library above)."""
    w = 1 + (X - 1) / 4
    head, last = w[:, :-1], w[:, -1]
    middle = (head - 1) ** 2 * (1 + 10 * np.sin(np.pi * head + 1) ** 2)
    end = (last - 1) ** 2 * (1 + np.sin(2 * np.pi * last) ** 2)
    return np.sin(np.pi * w[:, 0]) ** 2 + middle.sum(axis=1) + end


def griewank(X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
    """Return Σ xᵢ² / 4000 − Π cos(xᵢ / √i) + 1."""
    i = np.arange(1, X.shape[1] + 1)
    return (X**2).sum(axis=1) / 4000 - np.cos(X / np.sqrt(i)).prod(axis=1) + 1


def borehole(X: Float[np.ndarray, "N 8"]) -> Float[np.ndarray, " N"]:
    """Return the flow of water through a borehole, in m³ per year."""
    r_w, r, T_u, H_u, T_l, H_l, L, K_w = X.T
    log = np.log(r / r_w)
    return 2 * np.pi * T_u * (H_u - H_l) / (log * (1 + 2 * L * T_u / (log * r_w**2 * K_w) + T_u / T_l))


def otl(X: Float[np.ndarray, "N 6"]) -> Float[np.ndarray, " N"]:
    """Return the midpoint voltage of a push-pull circuit without a transformer."""
    R_b1, R_b2, R_f, R_c1, R_c2, beta = X.T
    V, q = 12 * R_b2 / (R_b1 + R_b2), beta * (R_c2 + 9)
    return ((V + 0.74) * q + 11.35 * R_f + 0.74 * R_f * q / R_c1) / (q + R_f)


def wing(X: Float[np.ndarray, "N 10"]) -> Float[np.ndarray, " N"]:
    """Return the weight of the wing of an aircraft in pounds; the sweep is in degrees."""
    S_w, W_fw, A, sweep, q, taper, t_c, N_z, W_dg, W_p = X.T
    cos = np.cos(np.radians(sweep))
    shape = (A / cos**2) ** 0.6 * q**0.006 * taper**0.04 * (100 * t_c / cos) ** -0.3
    return 0.036 * S_w**0.758 * W_fw**0.0035 * shape * (N_z * W_dg) ** 0.49 + S_w * W_p


def _numbered(n: int) -> tuple[str, ...]:
    return tuple(f"x{j}" for j in range(1, n + 1))


FUNCTIONS = {
    "levy": AnalyticFunction(_numbered(4), (-10.0,) * 4, (10.0,) * 4, levy, 7.6, 10_000),
    "griewank": AnalyticFunction(_numbered(6), (-600.0,) * 6, (600.0,) * 6, griewank, 4.6, 10_000),
    "borehole": AnalyticFunction(
        ("r_w", "r", "T_u", "H_u", "T_l", "H_l", "L", "K_w"),
        (0.05, 100.0, 63_070.0, 990.0, 63.1, 700.0, 1120.0, 9855.0),
        (0.15, 50_000.0, 115_600.0, 1110.0, 116.0, 820.0, 1680.0, 12_045.0),
        borehole,
        7.9,
        1_000_000,
    ),
    "otl": AnalyticFunction(
        ("R_b1", "R_b2", "R_f", "R_c1", "R_c2", "beta"),
        (50.0, 25.0, 0.5, 1.2, 0.25, 50.0),
        (150.0, 70.0, 3.0, 2.5, 1.2, 300.0),
        otl,
        0.5,
        2_000_000,
    ),
    "wing": AnalyticFunction(
        ("S_w", "W_fw", "A", "sweep", "q", "taper", "t_c", "N_z", "W_dg", "W_p"),
        (150.0, 220.0, 6.0, -10.0, 16.0, 0.5, 0.08, 2.5, 1700.0, 0.025),
        (200.0, 300.0, 10.0, 10.0, 45.0, 1.0, 0.18, 6.0, 2500.0, 0.08),
        wing,
        3.4,
        2_000_000,
    ),
}
