"""Several fitted members as one: mixtures of their predictions, row by row."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.budget import Budget
from stochgp.data.reading import Encoder
from stochgp.distributions import AbstractDistribution, PITRecalibration
from stochgp.distributions.mixture import which_part
from stochgp.estimators.diagnostics import Seen
from stochgp.estimators.fitted import draw_keys
from stochgp.estimators.function_draws import AbstractDraws
from stochgp.numerics.seeds import seed_of, split
from stochgp.pools.weights import AbstractPooling
from stochgp.posteriors.base import Request


@dataclass(frozen=True, eq=False)
class Members:
    """Each a `Fitted`, or what predicts as it does, with the same encoder."""

    members: tuple[Any, ...]

    @property
    def encoder(self) -> Encoder | None:
        return self.members[0].encoder

    @property
    def seen(self) -> Seen | None:
        return self.members[0].seen


@dataclass(frozen=True, eq=False)
class Pool(Members):
    """What `Fitted` is for one estimator, of several of these, or of pools: f is f_k with probability w_k(x), and so is an observation; members are independent.

    Observations of a function have the member of f at their row. If `pooling.is_joint` is False, as in a hurdle model, each observation has a member of its own, drawn
    independently given w. All members have the same encoder. A function drawn from the pool is, with u uniform on [0, 1], at x a function drawn from the first member
    whose cumulative weight at x exceeds u: at each row its distribution is the mixture.
    """

    pooling: AbstractPooling
    correction: PITRecalibration | None = None  # of the mixture's probabilities

    def need_bytes(self, request: Request) -> int:
        """Of one member after the other, and the results of all."""
        each = [member.need_bytes(request) for member in self.members]
        held = 8 * request.n_rows * (request.n_rows if request.covariance else 2)
        return max(each) + len(self.members) * held

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Σ_k w_k m_k, in target units."""
        return _averaged(
            self.pooling.weights(X), np.stack([member.mean(X) for member in self.members], axis=1)
        )

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(Mean of f, standard deviation of f or of an observation), in target units; that of an observation is the one of `distribution`."""
        each = [member.mean_and_std(X, include_noise=include_noise) for member in self.members]
        means, stds = (np.stack(part, axis=1) for part in zip(*each, strict=True))
        w = self.pooling.weights(X)
        mean = _averaged(w, means)
        if include_noise and (self.correction is not None or self.pooling.positive):
            return mean, self.distribution(X).std
        return mean, np.sqrt(_averaged(w, stds**2 + (means - mean[:, None]) ** 2))

    def distribution(self, X: Float[np.ndarray, "N D"]) -> AbstractDistribution:
        """Of an observation at each row, in target units."""
        found = self.pooling.mixed([member.distribution(X) for member in self.members], X)
        return found if self.correction is None else self.correction(found, self.pooling.strength(X))

    def interval(self, found: AbstractDistribution, level: float) -> Float[np.ndarray, "N 2"]:
        """As `Fitted.interval`, of what `distribution` found."""
        alone = len(self.members) == 1 and self.correction is None and not self.pooling.positive
        return self.members[0].interval(found, level) if alone else found.interval(level)

    def covariance(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool, free: int
    ) -> Float[np.ndarray, "N N"]:
        """Σ_k P_kk ∘ C_k + Σ_kl P_kl ∘ m_k m_lᵀ − m mᵀ, P_kl(x, z) the probability of member k at x and l at z: where their parts of [0, 1] overlap.

        Of observations with members of their own P_kl = w_k w_lᵀ for different rows, so that the terms with m cancel there.
        """
        means = np.stack([member.mean(X) for member in self.members], axis=1)
        w = np.broadcast_to(self.pooling.weights(X), means.shape)
        mean = np.sum(w * means, axis=1)
        covariances = (m.covariance(X, include_noise=include_noise, free=free) for m in self.members)
        if include_noise and not self.pooling.is_joint:
            total, variance = np.zeros((len(X), len(X))), np.zeros(len(X))
            for k, C in enumerate(covariances):
                total += np.outer(w[:, k], w[:, k]) * C
                variance += w[:, k] * (C.diagonal() + (means[:, k] - mean) ** 2)
            total[np.diag_indices(len(X))] = variance
            return total
        ends = np.concatenate([np.zeros((len(X), 1)), np.cumsum(w, axis=1)], axis=1)
        total = -np.outer(mean, mean)
        for k, C in enumerate(covariances):
            for j in range(len(self.members)):
                upper = np.minimum(ends[:, None, k + 1], ends[None, :, j + 1])
                both = np.maximum(upper - np.maximum(ends[:, None, k], ends[None, :, j]), 0.0)
                of_pair = np.outer(means[:, k], means[:, j])
                if j == k:
                    of_pair += C
                total += both * of_pair
        return total

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray, budget: Budget) -> "PooledDraws":
        """Functions drawn from the pool, in the user's units."""
        u = np.random.default_rng(seed_of(split(key, 1)[0])).uniform(size=n_samples)
        draw = lambda k, member: member.sample_functions(n_samples, key=_of_member(key, k), budget=budget)
        parts = tuple(draw(k, member) for k, member in enumerate(self.members))
        return PooledDraws(parts, jnp.asarray(u, jnp.float32), self.pooling)

    def observed(
        self, functions: "PooledDraws", X: Float[np.ndarray, "N D"], *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        """Observations of these functions, with the noise of the member of each function, or of each observation."""
        pairs = enumerate(zip(self.members, functions.parts, strict=True))
        noisy = [
            member.observed(part, X, key=draw_keys(_of_member(key, k))[1]) for k, (member, part) in pairs
        ]
        u = functions.u
        if not self.pooling.is_joint:
            seed = seed_of(split(_of_member(key, len(self.members)), 1)[0])
            u = np.random.default_rng(seed).uniform(size=noisy[0].shape)
        return functions.selected(X, noisy, u)


class PooledDraws(AbstractDraws):
    """S functions of a pool, called as `FunctionDraws` is; a JAX array of rows takes weights that do not depend on the row."""

    parts: tuple[Any, ...]
    u: Float[Array, " S"]
    pooling: AbstractPooling = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return len(self.u)

    @property
    def encoder(self) -> Encoder | None:
        return self.parts[0].encoder

    def __call__(self, X: Any) -> Any:
        if not isinstance(X, jax.Array):
            return self.at_numbers(np.asarray(X) if self.encoder is None else self.encoder.transform(X))
        if self.pooling.by_row:
            raise ValueError(
                "the weights of this pool depend on the row, and are found on the host: give a NumPy array"
            )
        ends = np.cumsum(self.pooling.weights(np.empty((0, 0))))[:-1]
        member = jnp.sum(self.u[:, None] >= ends, axis=1)
        values = jnp.stack([part(X) for part in self.parts])
        return jnp.take_along_axis(values, jnp.broadcast_to(member, values.shape[1:])[None], axis=0)[0]

    def at_numbers(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        return self.selected(X, [part.at_numbers(X) for part in self.parts], self.u)

    def selected(self, X: np.ndarray, values: list[Float[np.ndarray, "N S"]], u: Any) -> np.ndarray:
        """At each row and of each draw the value of its member, by u [S] or [N, S] on [0, 1]; the result is [N, S]."""
        shape = values[0].shape
        weights = np.broadcast_to(self.pooling.weights(X), (shape[0], len(values)))
        which = which_part(weights, np.broadcast_to(np.asarray(u, np.float64), shape))
        return np.take_along_axis(np.stack(values), which[None], axis=0)[0]


def _of_member(key: PRNGKeyArray, k: int) -> PRNGKeyArray:
    return jax.random.fold_in(key, k)


def _averaged(
    weights: Float[np.ndarray, " K"] | Float[np.ndarray, "N K"], values: Float[np.ndarray, "N K"]
) -> Float[np.ndarray, " N"]:
    return np.sum(weights * values, axis=1)
