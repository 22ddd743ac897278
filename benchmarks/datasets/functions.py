"""Analytic test functions of any number of rows, inputs uniform on their boxes, with Gaussian noise: `fun:NAME:ROWS`.

Definitions and boxes: Surjanovic and Bingham, Virtual Library of Simulation Experiments. Chen et al. (2020) use these five with noise
whose size they do not state. Their RMSE on targets of standard deviation 1 cannot be less than noise_std / √(sd² + noise_std²), sd the
function's standard deviation; each default is the largest noise, in two digits, that allows what they print. A smaller noise would
reach their RMSE too easily.
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
    """f on a box: `value` maps X [N, D] to f [N].

    noise_std is the default standard deviation of the noise, in the units of f. `rows` is the size in Chen et al. (2020).
    """

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
    """`rows` independent draws of y = f(x) + noise_std · ε, x uniform on the box, ε ~ N(0, 1); the last ones are the test rows.

    f is evaluated in float64 at x as stored. Rows are drawn in chunks: nothing is held beside what is returned. Fewer rows are the first of more.

    Raises ValueError for an unknown name (with the nearest), for a fraction that leaves no row on a side, for a noise that is negative
    or not finite, and for more rows than memory holds (with both numbers).

    Parameters
    ----------
    name : str
        "levy", "griewank", "borehole", "otl" or "wing".
    rows : int
        Training and test rows together.
    test_fraction : float
        The share of them that are test rows.
    seed : int
        Of the draws: the same seed gives the same rows, whatever the fraction.
    noise_std : float, optional
        A standard deviation in the units of f (absolute, not a fraction of f's own); None = the function's default.
    dtype : dtype
        In which X and y are stored.
    """
    if name not in FUNCTIONS:
        raise ValueError(f"fun:{name}: no such function; {did_you_mean(name, FUNCTIONS)}")
    function, dtype = FUNCTIONS[name], np.dtype(dtype)
    noise_std = function.noise_std if noise_std is None else float(noise_std)
    if not 0.0 <= noise_std < np.inf:
        raise ValueError(
            f"noise_std must be a standard deviation of at least 0, and finite, not {noise_std!r}"
        )
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
    free = psutil.virtual_memory().available  # of the host: that is where the rows lie
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
    """sin²(πw₁) + Σ_{i<D} (wᵢ−1)² [1 + 10 sin²(πwᵢ+1)] + (w_D−1)² [1 + sin²(2πw_D)], wᵢ = 1 + (xᵢ−1)/4."""
    w = 1 + (X - 1) / 4
    head, last = w[:, :-1], w[:, -1]
    middle = (head - 1) ** 2 * (1 + 10 * np.sin(np.pi * head + 1) ** 2)
    end = (last - 1) ** 2 * (1 + np.sin(2 * np.pi * last) ** 2)
    return np.sin(np.pi * w[:, 0]) ** 2 + middle.sum(axis=1) + end


def griewank(X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
    """Σ xᵢ² / 4000 − Π cos(xᵢ / √i) + 1."""
    i = np.arange(1, X.shape[1] + 1)
    return (X**2).sum(axis=1) / 4000 - np.cos(X / np.sqrt(i)).prod(axis=1) + 1


def borehole(X: Float[np.ndarray, "N 8"]) -> Float[np.ndarray, " N"]:
    """Water through a borehole, m³ a year: 2πT_u(H_u−H_l) / {ln(r/r_w) [1 + 2LT_u / (ln(r/r_w) r_w² K_w) + T_u/T_l]}."""
    r_w, r, T_u, H_u, T_l, H_l, L, K_w = X.T
    log = np.log(r / r_w)
    return 2 * np.pi * T_u * (H_u - H_l) / (log * (1 + 2 * L * T_u / (log * r_w**2 * K_w) + T_u / T_l))


def otl(X: Float[np.ndarray, "N 6"]) -> Float[np.ndarray, " N"]:
    """Midpoint voltage of an output transformerless push-pull circuit, with V = 12R_b2/(R_b1+R_b2), q = β(R_c2+9):

    (V+0.74) q/(q+R_f) + 11.35 R_f/(q+R_f) + 0.74 R_f q / ((q+R_f) R_c1).
    """
    R_b1, R_b2, R_f, R_c1, R_c2, beta = X.T
    V, q = 12 * R_b2 / (R_b1 + R_b2), beta * (R_c2 + 9)
    return ((V + 0.74) * q + 11.35 * R_f + 0.74 * R_f * q / R_c1) / (q + R_f)


def wing(X: Float[np.ndarray, "N 10"]) -> Float[np.ndarray, " N"]:
    """Weight of an aircraft's wing, pounds; Λ in degrees:

    0.036 S_w^0.758 W_fw^0.0035 (A/cos²Λ)^0.6 q^0.006 λ^0.04 (100 t_c/cosΛ)^−0.3 (N_z W_dg)^0.49 + S_w W_p.
    """
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
