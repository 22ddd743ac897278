"""Average gradient outer products: along which directions of the inputs a function changes."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.models import KernelGP
from stochgp.objectives.conditionals import dtype_of, neighbourhoods, parts_of, systems
from stochgp.objectives.kernel import weights_of_mean


def outer_products(
    gp: KernelGP, source: MemorySource, near: Int[np.ndarray, "C m"], wide: bool, n_sloping: int = 1
) -> Float[np.ndarray, "A A"]:
    """M = Σ_i ρ_i g_i g_iᵀ / Σ_i ρ_i over the last rows of neighbourhoods, g_i = ∂m(z_i)/∂z the slope of the mean given the rows of the neighbourhood.

    z are the coordinates that the kernel sees in lengthscales: m(z) = Σ_j α_j k(z, z_j), (K + Σ) α = y of the rows j of the neighbourhood. So M does not change
    with the units of the inputs. Its eigenvectors are directions along which slopes are uncorrelated, its eigenvalues how steep the function is along them
    (Radhakrishnan et al., Science 383, 2024; Beaglehole et al., xRFM, arXiv 2508.10053). Raises ValueError for kernels that are not one RBF or Matérn term.
    """
    term = _term_of(gp)

    def sums(part: Int[np.ndarray, "B m"]) -> tuple[Float[np.ndarray, "A A"], float]:
        rows = neighbourhoods(source, part)
        A, y = systems(gp, rows, dtype_of(wide))
        alpha = np.linalg.solve(A, y[:, :, None])[:, :, 0]
        Z = term.scaled(rows.X - rows.X[:, -1:]).astype(A.dtype)
        weights = term.profile(dense.squares(Z), True)[1][:, -n_sloping:] * alpha[:, None, :]
        g = 2 * term.variance * (Z[:, -n_sloping:] * weights.sum(axis=2, keepdims=True) - weights @ Z)
        rho = rows.weight[:, -n_sloping:]
        return np.einsum("cr,cri,crj->ij", rho, g, g, dtype=np.float64, optimize=True), float(rho.sum())

    found: list[Any] = [sums(part) for part in parts_of(near)]  # of matrices that BLAS divides among threads
    return np.sum([M for M, _ in found], axis=0) / sum(weight for _, weight in found)


def outer_products_of_few(
    gp: KernelGP, rows: Data, sloping: Int[np.ndarray, " P"]
) -> Float[np.ndarray, "A A"]:
    """The same at some of these rows, of the mean given all of them: for N² numbers and N³/3 products in float64."""
    rows = rows.wide()
    X, weight = rows.X, rows.weight
    term = _term_of(gp)
    g = dense.slopes_of_term(term, X[sloping], X, weights_of_mean(gp, rows))
    return (weight[sloping, None] * g).T @ g / weight[sloping].sum()


def _term_of(gp: KernelGP) -> dense.Term:
    terms = dense.terms_of(gp.kernel)
    if terms is None or len(terms) != 1:
        raise ValueError(
            f"outer products are of an RBF or Matérn kernel, not of a {type(gp.kernel).__name__}"
        )
    return terms[0]
