"""Mixtures of fitted models, and the base class of estimators with members."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.budget import MemoryLimitError, release
from stochgp.choosing import Decisions
from stochgp.context import PLANNED, FitContext
from stochgp.data.reading import Encoder, are_files, read_files, read_training_rows
from stochgp.data.rows import Data
from stochgp.distributions.mixture import which_part
from stochgp.estimators.base import PosteriorEstimator
from stochgp.estimators.report import notes, shortest_lengthscales, with_notes
from stochgp.numerics.seeds import seed_of, split, split_key
from stochgp.pools.weights import Inputs, PerRow, PoolWeights, mixed
from stochgp.tables.molecules import name_inputs
from stochgp.tables.targets import name_of_targets

Draws = Float[np.ndarray, "N S"]


@dataclass(frozen=True, eq=False)
class Pool:
    """A mixture of fitted models, with the interface of `Fitted`.

    The latent function of the pool at x is the function of member k with probability w_k(x). Members are
    independent. Each sampled function has one random number u, uniform on [0, 1]. At x, the sampled function
    equals the function of the first member whose cumulative weight exceeds u. If `pooling.is_joint` is True,
    observations use the member of their sampled function. If `pooling.is_joint` is False, a member is drawn
    for each observation. All members share an encoder. A pool of classifiers has only the method
    `distribution`, with P(y = c) = Σ_k w_k P_k(y = c).
    """

    members: tuple[Any, ...]
    pooling: Any  # `PoolWeights` or `Hurdle`
    n_classes: int = 0

    @property
    def encoder(self) -> Encoder | None:
        return self.members[-1].encoder

    @property
    def seen(self) -> Any:
        return self.members[-1].seen

    def need_bytes(self, n_rows: int = 0, **wanted: Any) -> int:
        """Return the bytes for the largest member and for the results of all members."""
        each = [member.need_bytes(n_rows, **wanted) for member in self.members]
        held = 8 * n_rows * (n_rows if wanted.get("covariance") else max(2, self.n_classes))
        return max(each) + len(self.members) * held

    def mean(self, X: Inputs) -> PerRow:
        """Return the mean of the mixture, in target units."""
        means = np.stack([member.mean(X) for member in self.members], axis=1)
        return np.sum(self.pooling.weights(X) * means, axis=1)

    def mean_and_std(self, X: Inputs, *, include_noise: bool) -> tuple[PerRow, PerRow]:
        """Return the mean, and the standard deviation of f or of an observation."""
        if include_noise and (self.pooling.positive or self.pooling.calibration):
            return self.mean(X), self.distribution(X).std
        each = [member.mean_and_std(X, include_noise=include_noise) for member in self.members]
        means, stds = (np.stack(part, axis=1) for part in zip(*each, strict=True))
        w = self.pooling.weights(X)
        mean = np.sum(w * means, axis=1)
        return mean, np.sqrt(np.sum(w * (stds**2 + (means - mean[:, None]) ** 2), axis=1))

    def distribution(self, X: Inputs) -> Any:
        """Return the distribution of an observation at each row, in target units."""
        parts = [member.distribution(X) for member in self.members]
        return mixed(self.pooling, parts, self.pooling.weights(X))

    def covariance(self, X: Inputs, *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        """Return the covariance Σ_k P_kk ∘ C_k + Σ_kl P_kl ∘ m_k m_lᵀ − m mᵀ.

        Member k has mean m_k and covariance C_k. P_kl(x, z) is the probability of member k at x and member l
        at z. If a member is drawn for each observation, P_kl(x, z) = w_k(x) w_l(z) for different rows.
        """
        means = np.stack([member.mean(X) for member in self.members], axis=1)
        w = np.broadcast_to(self.pooling.weights(X), means.shape)
        mean = np.sum(w * means, axis=1)
        covariances = (m.covariance(X, include_noise=include_noise) for m in self.members)
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
                total += both * (of_pair + C if j == k else of_pair)
        return total

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray) -> "PooledDraws":
        """Return functions drawn from the pool, in target units."""
        u = np.random.default_rng(seed_of(split(key, 1)[0])).uniform(size=n_samples)
        keys = (jax.random.fold_in(key, k) for k in range(len(self.members)))
        drawn = (m.sample_functions(n_samples, key=own) for m, own in zip(self.members, keys, strict=True))
        return PooledDraws(tuple(drawn), jnp.asarray(u, jnp.float32), self.pooling)

    def observed(self, functions: "PooledDraws", X: Inputs, *, key: PRNGKeyArray) -> Draws:
        """Return observations of these functions, with the noise of the member of each function."""
        keys = [jax.random.fold_in(key, k) for k in range(len(self.members) + 1)]
        each = zip(self.members, functions.parts, keys[:-1], strict=True)
        noisy = [member.observed(part, X, key=split_key(own)[1]) for member, part, own in each]
        u = functions.u
        if not self.pooling.is_joint:
            u = np.random.default_rng(seed_of(split(keys[-1], 1)[0])).uniform(size=noisy[0].shape)
        return functions.selected(X, noisy, u)


class PooledDraws(eqx.Module):
    """Functions drawn from a pool. They refuse JAX arrays if weights depend on the row."""

    parts: tuple[Any, ...]
    u: Float[Array, " S"]
    pooling: Any = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return len(self.u)

    @property
    def encoder(self) -> Encoder | None:
        return self.parts[-1].encoder

    def __call__(self, X: Any) -> Any:
        if not isinstance(X, jax.Array):
            return self.at_numbers(np.asarray(X) if self.encoder is None else self.encoder.transform(X))
        if self.pooling.by_row:
            raise ValueError(
                "the weights of this pool depend on the row: pass a NumPy array, not a JAX array"
            )
        ends = np.cumsum(self.pooling.weights(np.empty((0, 0))))[:-1]
        member = jnp.sum(self.u[:, None] >= ends, axis=1)
        values = jnp.stack([part(X) for part in self.parts])
        return jnp.take_along_axis(values, jnp.broadcast_to(member, values.shape[1:])[None], axis=0)[0]

    def at_numbers(self, X: Inputs) -> Draws:
        return self.selected(X, [part.at_numbers(X) for part in self.parts], self.u)

    def selected(self, X: np.ndarray, values: list[Draws], u: Any) -> np.ndarray:
        """Return values [N, S] of the members that u selects: [S] or [N, S] numbers on [0, 1]."""
        shape = values[0].shape
        weights = np.broadcast_to(self.pooling.weights(X), (shape[0], len(values)))
        which = which_part(weights, np.broadcast_to(np.asarray(u, np.float64), shape))
        return np.take_along_axis(np.stack(values), which[None], axis=0)[0]


@dataclass(eq=False, repr=False)
class PoolEstimator(PosteriorEstimator):
    """An estimator that combines several members with weights."""

    ensemble: bool = True
    members: Any = field(default="auto", kw_only=True)

    def summary(self) -> str:
        """Describe the members in at most 20 lines, with scores, weights and seconds.

        `print(plan_)` shows all decisions, and `estimators_[name].summary()` describes one member.
        """
        lines = [
            f"{type(self).__name__}{f' of {self.target_name_!r}' if self.target_name_ else ''}, fitted in {vars(self)['fit_seconds_']:.1f} s",
            f"Data: {self.n_rows_} rows (repeated rows counted once)",
            "Members, scored on held-out rows:" if len(self.scores_) > 1 else "Member:",
        ]
        later = self.plan_["later_weights"]["choice"] if "later_weights" in self.plan_ else {}
        for name, scores in self.scores_.items():
            weight = f"weight {self.weights_[name]:.2f}" if name in self.weights_ else "left out"
            weight += f" (for later rows {later[name]:.2f})" if name in later else ""
            scored = "".join(f"{score} {scores[score]:.4g}, " for score in scores if score != "seconds")
            lines.append(f"  {name}: {weight}; {scored}{scores['seconds']:.1f} s")
        if "constant_rmse" in self.fit_report_:
            lines.append(
                f"  for comparison, the mean of the targets: rmse {self.fit_report_['constant_rmse']:.4g}"
            )
            inside = self.fit_report_["coverage_90"]
            lines.append(f"90% intervals of the pool contain {inside:.1%} of the held-out targets")
        for name, member in self.estimators_.items():
            if hasattr(member, "kernel_") and (listed := shortest_lengthscales(member)):
                lines.append(f"{listed[0]} ({name})")
                break
        return with_notes(lines, notes(self.plan_, self.n_rows_))

    def _store(
        self, members: dict[str, Any], weights: PoolWeights, scores: dict[str, dict[str, float]],
        n_rows: int, y: Any, encoder: Any, context: FitContext,
    ) -> Any:  # fmt: skip
        self.estimators_ = {name: members[name] for name in weights.names}
        join_table(self, self.estimators_, encoder)
        self.weights_ = dict(zip(weights.names, weights.values.tolist(), strict=True))
        self._pooling = weights
        self.scores_, self.n_rows_, self.target_name_ = scores, n_rows, name_of_targets(y)
        context.record("members", list(weights.names), weights.why)
        context.record("weights", self.weights_, "weight of each member in the mixture")
        if weights.later is not None:
            later = dict(zip(weights.names, weights.later.tolist(), strict=True))
            context.record("later_weights", later, "weights for rows after the last training time")
        self.plan_, self.fit_report_ = Decisions(context.plan_), context.report
        report_members(self)
        release()
        return self

    def _read_training(
        self, like: Any, X: Any, y: Any, sample_weight: Any, groups: Any, context: FitContext,
        time_order: str, **kind: Any,
    ) -> tuple[Data, Any, Any]:  # fmt: skip
        """Return rows in the user's units, the encoder, and the classes of labels in files."""
        if not are_files(X):
            return *read_training_rows(
                self, X, y, sample_weight, groups, context, time_order=time_order
            ), None
        own, names = self.get_params(deep=False), ("missing", "time_order", "dtype")
        like.set_params(**{name: own[name] for name in names if name in own})
        others = {"sample_weight": sample_weight, "groups": groups}
        try:
            data, source = read_files(like, X, y, others, context, keeps_all=True, **kind)
        except MemoryLimitError as refusal:
            raise MemoryLimitError(f"{refusal}; {type(like).__name__} can read files in blocks") from None
        for name in ("n_features_in_", "feature_names_in_"):
            setattr(self, name, getattr(like, name))
        return data.rows, data.encoder, source.labels


def report_members(estimator: Any) -> None:
    """Set the attributes that summarise the members: reason of the end, steps and history."""
    members = estimator.estimators_.values()
    ends = [estimator.plan_["ended"]] if "ended" in estimator.plan_ else []
    ends += [member.plan_["ended"] for member in members]
    ended = next((entry for entry in ends if entry["choice"] != PLANNED), ends[0])
    estimator.plan_ = estimator.plan_.without("ended") | {"ended": ended}
    estimator.n_iter_ = sum(member.n_iter_ for member in members)
    estimator.converged_ = ended["choice"] == PLANNED and all(member.converged_ for member in members)
    estimator.history_ = [entry for member in members for entry in member.history_]


def join_table(pool: Any, members: Mapping[str, Any], encoder: Any) -> None:
    """Set the pool's encoder and the names of its inputs in all members."""
    for member in members.values():
        own = getattr(member, "estimators_", {})
        join_table(pool, own, encoder)
        if not own:
            member._fitted = dataclasses.replace(member._fitted, encoder=encoder)
        name_inputs(member, pool.n_features_in_, getattr(pool, "feature_names_in_", None))
