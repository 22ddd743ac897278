"""The posterior of a sparse GP, which is the approximation q(f)."""

import typing
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.models import SparseGP, process_of
from stochgp.numerics.arrays import einsum, matmul
from stochgp.numerics.linalg import rounding_error, safe_covariance
from stochgp.parameters import cast, value_of
from stochgp.posteriors.base import AbstractPosterior, DrawnFunctions, PerRow, Rows
from stochgp.priors import BLOCK as PRIOR_BLOCK
from stochgp.priors import PriorFunctions, prior_functions
from stochgp.solvers.base import COMPILER_BYTES, FEATURES
from stochgp.variational import DecoupledMean, DecoupledProcess, InducingProcess, NormalEquations

BLOCK = 256  # number of rows in a compiled evaluation


class VariationalPosterior(AbstractPosterior):
    """The posterior q(f) of a sparse GP; `VariationalPosterior.of` builds it.

    If the model has several latent functions, f is the first latent function. With M inducing points, a
    prediction takes O(M²) time for each row and each latent function. Predictions are computed in float64.

    Parameters
    ----------
    kernel, process
        `kernel` is the kernel of the prior, and `process` is q(f) for this kernel.
    n_inputs, draws_dtype
        The number D of inputs, and the dtype of functions drawn from the prior.
    """

    kernel: Any
    process: InducingProcess | DecoupledProcess
    n_inputs: int = eqx.field(static=True)
    draws_dtype: str = eqx.field(static=True)
    block_rows: ClassVar[int | None] = BLOCK

    @classmethod
    def of(cls, gp: SparseGP, n_inputs: int) -> "VariationalPosterior":
        """Return the posterior of the model, in float64. x64 must be enabled."""
        dtype = str(jax.tree.leaves(gp.approximation)[0].dtype)
        gp = cast(gp, jnp.float64)
        return cls(value_of(gp.kernel), process_of(gp), n_inputs, dtype)

    @quick_jit
    def mean(self, X: Rows) -> PerRow:
        return self.process.mean(_wide(X))[:, 0]

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        mean, variance = map(np.asarray, self.latent_moments(X))
        return mean[:, 0], variance[:, 0]

    def latent_moments(self, X: Rows) -> tuple[Float[Any, "N L"], Float[Any, "N L"]]:
        if isinstance(self.process, InducingProcess):
            return self.process.moments_on_host(np.asarray(X, np.float64))
        return self._moments(X)

    @quick_jit
    def _moments(self, X: Rows) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        return self.process.moments(_wide(X))

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"]:
        """Return leave-one-out errors for an optimal q(u) and constant Gaussian noise.

        A `DecoupledMean` also needs the attribute `solved`, its normal equations.
        """
        some = data.take(rows)
        error, variance = self.without(some, noise)
        solved: NormalEquations | None = vars(self).get("solved")
        if solved is not None:
            error = solved.without(some.X, np.asarray(some.y, np.float64), some.weights)
        own = noise if self.noise is None else self.noise
        return error / np.sqrt(variance + own)

    @property
    def noise(self) -> float | None:
        """The noise variance of a `DecoupledMean`; None means the learned noise variance."""
        return float(self.process.noise) if isinstance(self.process, DecoupledMean) else None

    def without(self, rows: Data, noise: float) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """Return y − mean and the variance of f at each of these training rows given all others."""
        rows, process = rows.wide(), typing.cast(Any, self.process)
        parts = [rows.take(slice(i, i + BLOCK)) for i in range(0, len(rows), BLOCK)]
        found = [process.left_out(part.X, part.y, part.weights / noise) for part in parts]
        mean, variance = (np.concatenate(part) for part in zip(*found, strict=True))
        return rows.y - mean, variance

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        N, B = len(X), BLOCK
        Z = np.zeros((-(-N // B) * B, X.shape[1]), np.float64)  # multiples of B need fewer compilations
        Z[:N] = X
        unexplained, left = (np.array(part)[:N, :N] for part in self._covariance(Z))
        return safe_covariance(
            left, unexplained, rounding_error(dense.diagonal(self.kernel, Z[:N]), 1.0, np.float64)
        )

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> DrawnFunctions:
        """Return draws from q(f): draws from the prior with corrections."""
        prior_key, own = jax.random.split(key)
        dtype = jnp.dtype(self.draws_dtype)
        prior = prior_functions(self.kernel, self.n_inputs, n_samples, key=prior_key, dtype=dtype)
        correction = self.process.correction(prior, n_samples, key=own)
        return DrawnFunctions(eqx.Partial(_corrected, prior, correction), n_samples)

    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        arrays = [leaf for leaf in jax.tree.leaves(self.process) if eqx.is_array(leaf)]
        M, n = max(size for leaf in arrays for size in (1, *leaf.shape)), n_rows + BLOCK
        rows = 8 * n * (4 * n + 4 * M) if covariance else 64 * n_rows
        functions = 8 * n_samples * (FEATURES + 4 * M) + 8 * 3 * FEATURES * PRIOR_BLOCK
        work = COMPILER_BYTES + 8 * BLOCK * 4 * M if n_rows or n_samples else 0
        return int(work + rows + (functions if n_samples else 0))

    @quick_jit
    def _covariance(self, X: Rows) -> tuple[Array, Array]:
        K, W, V = self.process.covariance_parts(_wide(X))
        return K - matmul(W.T, W), einsum("mi,mj->ij", V[0], V[0])


def _wide(X: Rows | PerRow) -> Array:
    return jnp.asarray(X).astype(jax.dtypes.canonicalize_dtype(jnp.float64))


def _corrected(prior: PriorFunctions, correction: Any, X: Array) -> Array:
    return prior(X) + correction(X)
