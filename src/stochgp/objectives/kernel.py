"""The exact negative log marginal likelihood of a kernel GP and its gradient, by a Cholesky factor of A = K + Σ.

    n · 2 · nlml = yᵀA⁻¹y + log|A| + N log 2π + Σᵢ [(ρᵢ − 1) log 2πρᵢΣᵢ + log ρᵢ],   n = Σρ,

which is that of n rows, of which row i stands ρᵢ times: ρᵢΣᵢ = σ²s(xᵢ) is the noise variance of one of them. With derivatives by A, and beside it by the noise,

    ∂nlml/∂A = (A⁻¹ − ααᵀ)/(2n), α = A⁻¹y.
"""

import dataclasses
import math

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Float

from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.likelihoods.noise import SMALLEST_COUNT, gradient_of_noise, noise_of_rows
from stochgp.models import KernelGP
from stochgp.numerics import linalg
from stochgp.numerics.linalg import Factor
from stochgp.objectives.conditionals import HALF_LOG_2PI, Conditional
from stochgp.results import ExactNLML


def nlml_and_gradient(gp: KernelGP, rows: Data) -> ExactNLML:
    """NLML per datum and its gradient, in float64: N² numbers on the host, N³ products, O(N² D) for the kernel and its derivatives.

    With a factor in float32, 2,000 rows had errors of 5e-4 nats, at which line searches fail.
    Raises ValueError if A has no factor even with a jitter of 1e-3 of its mean diagonal.
    """
    with jax.enable_x64(True):
        at, noise = _on_host(gp, rows)
        factor = factorised(gp.kernel, at.X, noise)
        value, alpha = _value(factor, at, noise)
        G = _minus_outer(_inverse(factor.L), alpha)
        twice = 2 * float(at.weights.sum())
        by_noise = (np.diagonal(G) + (at.weights - 1) / noise) / twice
        by_kernel = jax.tree.map(lambda g: np.asarray(g) / twice, dense.gradient(gp.kernel, at.X, G))
        by_noise = gradient_of_noise(gp.noise, at.X, at.weights, by_noise)
        where = lambda g: (g.kernel, g.noise)
        gradient = eqx.tree_at(where, gp, (by_kernel, by_noise), is_leaf=lambda x: x is None)
        return ExactNLML(value, gradient, factor.jitter)


def left_out(gp: KernelGP, rows: Data) -> Conditional:
    """One observation of each row given all other rows: of few rows, for N² numbers of float64 and N³ products.

    e_i = α_i/Q_ii of the variance 1/Q_ii + σ²s(1 − 1/ρ) ≥ σ²s, Q = A⁻¹ (Rasmussen and Williams 2006, equations 5.10 to 5.12).
    """
    with jax.enable_x64(True):
        at, noise = _on_host(gp, rows)
        factor, alpha = _solved(gp, at, noise)
        one = noise_of_rows(gp.noise, at.X, np.ones_like(at.weights))
    variance = 1 / np.diagonal(_inverse(factor.L))
    V = np.maximum(variance + one - noise, one)
    z = alpha * variance / np.sqrt(V)
    return Conditional(
        0.5 * np.log(V) + HALF_LOG_2PI + 0.5 * np.square(z), z, V, np.full(len(V), factor.jitter)
    )


def weights_of_mean(gp: KernelGP, rows: Data) -> Float[np.ndarray, " N"]:
    """α = A⁻¹y in float64, of few rows."""
    with jax.enable_x64(True):
        return _solved(gp, *_on_host(gp, rows))[1]


def _solved(gp: KernelGP, at: Data, noise: Float[np.ndarray, " N"]) -> tuple[Factor, Float[np.ndarray, " N"]]:
    """(The factor of A, α), in float64."""
    factor = factorised(gp.kernel, at.X, noise)
    return factor, factor.solve(at.y[:, None])[:, 0]


def nlml(gp: KernelGP, rows: Data) -> float:
    """NLML per datum: N² numbers, N³/3 products."""
    with jax.enable_x64(True):
        at, noise = _on_host(gp, rows)
        return _value(factorised(gp.kernel, at.X, noise), at, noise)[0]


def factorised(kernel: dense.Kernel, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"]) -> Factor:
    """The factor of k(X, X) + diag(noise) on and right of its diagonal, with the first jitter that makes it possible."""

    def covariance() -> Float[np.ndarray, "N N"]:
        A = dense.upper(kernel, X, "float64")
        A[np.diag_indices(len(X))] += noise
        return A

    return linalg.factorised(covariance)


def _on_host(gp: KernelGP, rows: Data) -> tuple[Data, Float[np.ndarray, " N"]]:
    """(The rows in float64, the noise variances that the model gives them)."""
    rows = rows.wide()
    rows = dataclasses.replace(rows, weight=np.maximum(rows.weight, SMALLEST_COUNT))
    return rows, noise_of_rows(gp.noise, rows.X, rows.weight)


def _value(factor: Factor, at: Data, noise: np.ndarray) -> tuple[float, Float[np.ndarray, " N"]]:
    """(NLML per datum, α)."""
    half = factor.half(at.y[:, None])[:, 0]
    repeated = np.sum((at.weights - 1) * np.log(2 * math.pi * at.weights * noise) + np.log(at.weights))
    total = half @ half + factor.log_determinant() + len(at.y) * math.log(2 * math.pi) + repeated
    return float(total) / (2 * float(at.weights.sum())), factor.solve(at.y[:, None])[:, 0]


def _inverse(L: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """A⁻¹ on and right of the diagonal, in the place of L."""
    (potri,) = scipy.linalg.get_lapack_funcs(("potri",), (L,))
    return potri(L, lower=True, overwrite_c=True)[0].T


def _minus_outer(Q: Float[np.ndarray, "N N"], alpha: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    """Q − ααᵀ on and right of the diagonal, in the place of Q."""
    (syr,) = scipy.linalg.get_blas_funcs(("syr",), (Q,))
    return syr(-1.0, alpha, a=Q.T, lower=True, overwrite_a=True).T
