"""The exact NLML of a kernel GP, its gradient, and outer products of the mean's gradients.

For frequency weights ρᵢ with the sum n and the noise variance ρᵢΣᵢ = σ²s(xᵢ) of one observation,

    n · 2 · nlml = yᵀA⁻¹y + log|A| + N log 2π + Σᵢ [(ρᵢ − 1) log 2πρᵢΣᵢ + log ρᵢ],   A = K + Σ.

The derivative with respect to A is (A⁻¹ − ααᵀ)/(2n) with α = A⁻¹y.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Float, Int

from stochgp.compiled import in_threads
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.likelihoods.noise import SMALLEST_COUNT, gradient_of_noise, noise_of_rows
from stochgp.models import KernelGP
from stochgp.numerics import linalg
from stochgp.numerics.linalg import Factor
from stochgp.objectives import conditionals
from stochgp.results import ExactNLML


def nlml_and_gradient(gp: KernelGP, rows: Data) -> ExactNLML:
    """Return the NLML per datum and its gradient in float64, in O(N³) time.

    Raises ValueError if the Cholesky factorisation of A fails.
    """
    with jax.enable_x64(True):
        at, noise = _on_host(gp, rows)
        factor = factorised(gp.kernel, at.X, noise)
        value, alpha = value_and_weights(factor, at, noise)
        return ExactNLML(value, gradient(gp, at, noise, factor, alpha), factor.jitter)


def gradient(gp: KernelGP, at: Data, noise: np.ndarray, factor: Factor, alpha: np.ndarray) -> Any:
    """Return the gradient of the NLML per datum. The function overwrites the factor."""
    G = _minus_outer(_inverse(factor.L), alpha)
    twice = 2 * float(at.weights.sum())
    by_noise = (np.diagonal(G) + (at.weights - 1) / noise) / twice
    by_kernel = jax.tree.map(lambda g: np.asarray(g) / twice, dense.gradient(gp.kernel, at.X, G))
    by_noise = gradient_of_noise(gp.noise, at.X, at.weights, by_noise)
    where = lambda g: (g.kernel, g.noise)
    return eqx.tree_at(where, gp, (by_kernel, by_noise), is_leaf=lambda x: x is None)


def factorised(kernel: dense.Kernel, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"]) -> Factor:
    """Return the Cholesky factor of k(X, X) + diag(noise), with jitter if necessary."""

    def covariance() -> Float[np.ndarray, "N N"]:
        A = dense.upper(kernel, X, "float64")
        A[np.diag_indices(len(X))] += noise
        return A

    return linalg.factorised(covariance)


def _on_host(gp: KernelGP, rows: Data) -> tuple[Data, Float[np.ndarray, " N"]]:
    """Return the rows in float64 and their noise variances."""
    rows = rows.wide()
    rows = dataclasses.replace(rows, weight=np.maximum(rows.weight, SMALLEST_COUNT))
    return rows, noise_of_rows(gp.noise, rows.X, rows.weight)


def value_and_weights(factor: Factor, at: Data, noise: np.ndarray) -> tuple[float, Float[np.ndarray, " N"]]:
    """Return the NLML per datum and α = A⁻¹y."""
    half = factor.half(at.y[:, None])[:, 0]
    repeated = np.sum((at.weights - 1) * np.log(2 * math.pi * at.weights * noise) + np.log(at.weights))
    total = half @ half + factor.log_determinant() + len(at.y) * math.log(2 * math.pi) + repeated
    return float(total) / (2 * float(at.weights.sum())), factor.solve(at.y[:, None])[:, 0]


def _inverse(L: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """Return the upper triangle of A⁻¹, in the memory of L."""
    (potri,) = scipy.linalg.get_lapack_funcs(("potri",), (L,))
    return potri(L, lower=True, overwrite_c=True)[0].T


def _minus_outer(Q: Float[np.ndarray, "N N"], alpha: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    """Return the upper triangle of Q − ααᵀ, in the memory of Q."""
    (syr,) = scipy.linalg.get_blas_funcs(("syr",), (Q,))
    return syr(-1.0, alpha, a=Q.T, lower=True, overwrite_a=True).T


def outer_products(
    gp: KernelGP, source: MemorySource, near: Int[np.ndarray, "C m"], wide: bool, n_sloping: int = 1
) -> Float[np.ndarray, "A A"]:
    """Return the average outer product of gradients, M = Σ_i ρ_i g_i g_iᵀ / Σ_i ρ_i.

    g_i is the gradient, at row i, of the posterior mean given the neighbourhood of row i. Inputs are divided
    by lengthscales. The sums are over the last `n_sloping` rows of each neighbourhood. Sources:
    Radhakrishnan et al., Science 383, 2024; Beaglehole et al., arXiv 2508.10053.

    Raises ValueError unless the kernel is one RBF or Matérn term.
    """
    term = _term_of(gp)

    def sums(part: Int[np.ndarray, "B m"]) -> tuple[Float[np.ndarray, "A A"], float]:
        rows = conditionals.neighbourhoods(source, part)
        A, y = conditionals.systems(gp, rows, np.float64 if wide else np.float32)
        alpha = np.linalg.solve(A, y[:, :, None])[:, :, 0]
        Z = term.scaled(rows.X - rows.X[:, -1:]).astype(A.dtype)
        weights = term.profile(dense.squares(Z), True)[1][:, -n_sloping:] * alpha[:, None, :]
        g = 2 * term.variance * (Z[:, -n_sloping:] * weights.sum(axis=2, keepdims=True) - weights @ Z)
        rho = rows.weight[:, -n_sloping:]
        return np.einsum("cr,cri,crj->ij", rho, g, g, dtype=np.float64, optimize=True), float(rho.sum())

    found, weights = zip(*in_threads(sums, conditionals.parts_of(near)), strict=True)
    return np.sum(found, axis=0) / sum(weights)


def outer_products_of_few(
    gp: KernelGP, rows: Data, sloping: Int[np.ndarray, " P"]
) -> Float[np.ndarray, "A A"]:
    """Return the average outer product of gradients at the rows `sloping`, given all rows."""
    rows = rows.wide()
    X, weight = rows.X, rows.weight
    term = _term_of(gp)
    with jax.enable_x64(True):
        at, noise = _on_host(gp, rows)
        alpha = factorised(gp.kernel, at.X, noise).solve(at.y[:, None])[:, 0]
    g = dense.slopes_of_term(term, X[sloping], X, alpha)
    return (weight[sloping, None] * g).T @ g / weight[sloping].sum()


def _term_of(gp: KernelGP) -> dense.Term:
    terms = dense.terms_of(gp.kernel)
    if terms is None or len(terms) != 1:
        name = type(gp.kernel).__name__
        raise ValueError(f"outer products of gradients need an RBF or Matérn kernel, not {name}")
    return terms[0]
