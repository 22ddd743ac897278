"""The posterior of a kernel GP whose hyperparameters are uncertain: a mixture of exact posteriors."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.rows import Data
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import with_level
from stochgp.numerics.arrays import on_device
from stochgp.numerics.seeds import split_key, words_of
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior, PerRow, Request, Rows
from stochgp.posteriors.exact import ExactKernelPosterior
from stochgp.posteriors.kernel import KernelFunctions, KernelSystem


class MixturePosterior(AbstractPosterior):
    """f | y = Σ_s w_s p(f | y, θ_s), for S values θ_s of the hyperparameters:

        mean(x) = Σ_s w_s m_s(x),   cov(x, z) = Σ_s w_s [C_s(x, z) + (m_s(x) − mean(x))(m_s(z) − mean(z))].

    Parameters
    ----------
    base : ExactKernelPosterior
        That at the learned hyperparameters, which predicts nothing.
    parts : tuple of ExactKernelPosterior
        p(f | y, θ_s) of the same rows.
    shares : array [S]
        w_s, of sum 1.
    """

    base: ExactKernelPosterior
    parts: tuple[ExactKernelPosterior, ...]
    shares: Float[np.ndarray, " S"]
    block_rows: ClassVar[int | None] = None

    @property
    def system(self) -> KernelSystem:
        """That of the learned hyperparameters."""
        return self.base.system

    @property
    def noise(self) -> AbstractNoise:
        """Of level Σ_s w_s σ_s²: with it the variance of an observation is that of the mixture."""
        levels = [float(part.noise.level) for part in self.parts]
        return with_level(self.base.noise, float(self.shares @ levels))

    @property
    def dtype(self) -> str:
        return self.base.dtype

    def at(self, base: ExactKernelPosterior) -> "MixturePosterior":
        """Of the same θ_s and w_s, for the rows of this posterior."""
        thetas = ((part.system.kernel, float(part.noise.level)) for part in self.parts)
        return MixturePosterior(base, tuple(exact_at(base, *theta) for theta in thetas), self.shares)

    def mean(self, X: Rows) -> PerRow:
        total: Any = sum(share * part.mean(X) for share, part in zip(self.shares, self.parts, strict=True))
        return total

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        moments = [part.mean_and_variance(X) for part in self.parts]
        return self._total(moments)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        D = np.stack([np.asarray(part.mean(X), np.float64) for part in self.parts])
        D -= self.shares @ D
        total: Any = D.T @ (self.shares[:, None] * D)
        for share, part in zip(self.shares, self.parts, strict=True):
            total += share * part.covariance(X)
        return total

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> "MixtureFunctions":
        """Each of a θ_s that is drawn with the probability w_s."""
        drawn = np.random.default_rng(words_of(key)).choice(len(self.shares), n_samples, p=self.shares)
        keys = split_key(key, n_samples)
        functions = [self.parts[s].functions(1, key=own) for s, own in zip(drawn, keys, strict=True)]
        return MixtureFunctions(jax.tree.map(_stacked, *functions))

    def need_bytes(self, request: Request) -> int:
        """With the factors of parts that predictions must compute first."""
        missing = sum("factor" not in vars(part) for part in self.parts) if request.n_rows else 0
        return self.base.need_bytes(request) + missing * 8 * len(self.system.X) ** 2

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"]:
        """By the moments of the mixture, w_s being those of all rows."""
        found = [part.left_out(rows) for part in self.parts]
        e, V = self._total(found)
        return np.asarray(e / np.sqrt(V))

    def fold_out(self, data: Data, fold: Int[np.ndarray, " N"], noise: float) -> tuple[PerRow, PerRow]:
        """The moments of the mixture, w_s being those of all rows."""
        return self._total([part.fold_out(data, fold, noise) for part in self.parts])

    def _total(self, moments: list[tuple[Any, Any]]) -> tuple[PerRow, PerRow]:
        """(Mean, variance) of the mixture of these (means, variances)."""
        means, variances = (np.stack(values) for values in zip(*moments, strict=True))
        mean = self.shares @ means
        total: Any = self.shares @ (variances + np.square(means - mean))
        return mean, total


class MixtureFunctions(AbstractFunctions):
    """S functions, each with a kernel of its own.

    Parameters
    ----------
    each : KernelFunctions
        Single functions, whose arrays are stacked along a first axis S.
    """

    each: KernelFunctions

    @property
    def n_samples(self) -> int:
        return self.each.weights.shape[0]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self._mapped(lambda f, _: f(X)[:, 0], jnp.arange(self.n_samples)).T

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        return self._mapped(lambda f, own: f(own)[:, 0], Z)

    def _mapped(self, value: Any, inputs: Array) -> Float[Array, "S R"]:
        arrays, rest = eqx.partition(self.each, eqx.is_array)
        return jax.lax.map(lambda of: value(eqx.combine(of[0], rest), of[1]), (arrays, inputs))


def exact_at(base: ExactKernelPosterior, kernel: Any, level: float) -> ExactKernelPosterior:
    """The posterior of the same rows and targets for this kernel and this level of the noise. ValueError where A has no factor."""
    assert base.y is not None
    noise = with_level(base.noise, float(level))
    made = dataclasses.replace(base, system=dataclasses.replace(base.system, kernel=kernel, noise=noise))
    weights = made.factor.solve(base.y[:, None]).astype(np.float64)
    solved = dataclasses.replace(made, weights=weights, explained=float(base.y @ weights[:, 0]))
    vars(solved)["factor"] = made.factor
    return solved


def _stacked(*leaves: Any) -> Any:
    return on_device(np.stack(leaves)) if eqx.is_array(leaves[0]) else leaves[0]
