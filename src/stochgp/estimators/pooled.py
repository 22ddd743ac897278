"""`GPRegressor`: members of several families, pooled by how each predicts rows that none of them has seen."""

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from sklearn.base import clone

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_GIVEN, Decisions, choice, planned
from stochgp.compiled import kept_on_disk
from stochgp.data.rows import Rows
from stochgp.deadline import within
from stochgp.distributions import recalibration
from stochgp.estimators.feature import FeatureGPRegressor
from stochgp.estimators.files import are_files, read_files
from stochgp.estimators.fitted import Fitted
from stochgp.estimators.inputs import read_training_rows
from stochgp.estimators.kernel import KernelGPRegressor
from stochgp.estimators.pool import Pool
from stochgp.estimators.pooling import (
    Chosen,
    Distance,
    Pooling,
    Predicted,
    alone,
    chosen,
    distance_of,
    limited,
)
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.estimators.progress import say
from stochgp.estimators.regressor import FamilyRegressor
from stochgp.estimators.report import PLANNED
from stochgp.estimators.settings import check_settings
from stochgp.estimators.sparse import SparseGPRegressor
from stochgp.kernels import AbstractStationary
from stochgp.names import lookup
from stochgp.numerics.clustered import clusters
from stochgp.numerics.seeds import as_key, seed_of, split
from stochgp.parameters import value_of

FAMILIES: dict[str, type] = {
    "kernel": KernelGPRegressor,
    "feature": FeatureGPRegressor,
    "sparse": SparseGPRegressor,
}
FEWEST_ROWS = 1_000  # from which rows are held out and members compared
SHARE, MOST, LEAST = 0.1, 2_000, 200  # of the rows that are held out, at most and at least, without groups
LAST_BLOCKS = 0.5  # of the held-out blocks of time
SECONDS = 10.0  # left, below which no further member begins
ON_BLOCKS = "_by_blocks"  # of the name of a member that is judged by whole blocks of time


class HeldOut(NamedTuple):
    """Which rows no member sees before they are compared."""

    single: Bool[np.ndarray, " N"]  # one by one
    blocks: Bool[np.ndarray, " N"]  # with all of their group or block of time

    @property
    def all(self) -> Bool[np.ndarray, " N"]:
        return self.single | self.blocks


@dataclass(eq=False, repr=False)
class GPRegressor(PosteriorRegressor):
    """Gaussian process regression for any table: members of several families, mixed by how each predicts rows that none of them has seen.

    A tenth of the rows is held out (whole groups, where there are groups; where the table says when its rows were taken, blocks of time besides single
    rows). Each member learns from the others. An observation is predicted as p(y | x) = Σ_k w_k(x) p_k(y | x), where the weights have the highest mean of
    log p(y) + log N(y | Σ_k w_k m_k, S) over the held-out rows, S the mean square of y − Σ_k w_k m_k: by densities and by means alike. They depend on the
    distance to the nearest training row where held-out rows gain by that: what is best between the training rows is not always best far from them. A
    member stays where it pays. The held-out rows then join the posteriors of those that stay. Fewer than 1,000 rows have a kernel GP alone.

    members         "auto": a kernel GP and a feature GP, and in tables with a time further ones that are judged by whole blocks of time; a list of
                    names, "kernel", "feature", "sparse"; or {name: estimator}
    ensemble        False: the one member that predicts held-out rows best
    target          "real"; "positive": log y is modelled, so that predictions are positive; "count": log(y + ½), and the better member predicts counts

    missing, new_rows, random_state, memory_limit, time_limit, dtype, verbose, plan
                    as of every estimator (`KernelGPRegressor`); `time_limit` is shared by the members

    After `fit`: `estimators_`, the members that stay, by name, which predict on their own too; `weights_`, the mean weight of each over the held-out rows;
    `scores_`, of every member that was tried its NLPD and RMSE by held-out rows in target units, and its seconds; `plan_`, choices and reasons, those of a
    member under "member.name"; `n_rows_`, `n_iter_`, `converged_`, `history_`, `fit_seconds_`, `n_features_in_`, `feature_names_in_`, `target_name_` as of
    every estimator.
    """

    # scikit-learn wants any value taken by `__init__`, and judged in `fit`.
    __no_type_check__: ClassVar[bool] = True
    members: Any = "auto"
    ensemble: bool = True
    target: str = field(default="real", kw_only=True)
    missing: str = field(default="impute", kw_only=True)
    new_rows: str = field(default="auto", kw_only=True)
    random_state: Any = field(default=None, kw_only=True)
    memory_limit: str | int | float | None = field(default=None, kw_only=True)
    time_limit: float | None = field(default=None, kw_only=True)
    dtype: str = field(default="float32", kw_only=True)
    verbose: int = field(default=0, kw_only=True)
    plan: dict[str, Any] | None = field(default=None, kw_only=True)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "GPRegressor":
        """Fit the members and their weights, from what every estimator's `fit` takes: see `KernelGPRegressor.fit`.

        A `checkpoint` is a file for each member, its name with the member's at the end. Raises ValueError or TypeError, in one line, for data or settings that
        cannot be used, and where no member can be fitted within `memory_limit`.
        """
        check_settings(self.get_params(deep=False))
        begun = time.perf_counter()
        with within(self.time_limit), kept_on_disk():
            rows, encoder, told = self._read_rows(X, y, sample_weight, groups)
            self._fit(rows, encoder, told, groups is not None, _Given(checkpoint, callback))
        self.target_name_ = y if are_files(X) else _name_of(y)
        self.fit_seconds_ = time.perf_counter() - begun
        return self

    @property
    def _fitted(self) -> Any:
        """The members as one."""
        parts = tuple(member._fitted for member in self.estimators_.values())
        return Pool(parts, self._pooling, self._correction)

    def summary(self) -> str:
        """What was tried, what it scored and cost, what stays with which weight, and what was decided; `estimators_[name].summary()` says more of one."""
        lines = [
            f"GPRegressor{f' of {self.target_name_!r}' if self.target_name_ else ''}, fitted in {self.fit_seconds_:.1f} s",
            f"Data: {self.n_rows_} rows (equal ones counted once)",
            "Members, by held-out rows:" if len(self.scores_) > 1 else "Member:",
        ]
        for name, found in self.scores_.items():
            weight = f"weight {self.weights_[name]:.2f}" if name in self.weights_ else "left out"
            scored = f"NLPD {found['nlpd']:.4f}, RMSE {found['rmse']:.4g}, " if "nlpd" in found else ""
            lines.append(f"  {name}: {weight}; {scored}{found['seconds']:.1f} s")
        own = Decisions({name: entry for name, entry in self.plan_.items() if "." not in name})
        return "\n".join([*lines, "", "Chosen:", str(own)])

    def _read_rows(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> tuple[Rows, Any, dict[str, Any]]:
        budget = Budget.of(self.memory_limit)
        if not are_files(X):
            return read_training_rows(
                self, X, y, sample_weight, budget, self.missing, groups, new_rows=self.new_rows
            )
        like = FeatureGPRegressor(missing=self.missing, new_rows=self.new_rows, dtype=self.dtype)
        others = {"sample_weight": sample_weight, "groups": groups}
        data, _ = read_files(like, X, y, others, budget, self._seeds(1)[0], keeps_all=True)
        for name in ("n_features_in_", "feature_names_in_"):
            setattr(self, name, getattr(like, name))
        return data.rows, data.encoder, data.told

    def _fit(self, rows: Rows, encoder: Any, told: dict[str, Any], grouped: bool, given: "_Given") -> None:
        compares = len(rows) >= FEWEST_ROWS
        in_time = rows.group is not None and not grouped
        singles = in_time and self.new_rows == "auto"
        division = held_out(rows, singles, np.random.default_rng(self._seeds(1)[0])) if compares else None
        candidates = self._candidates(in_time, singles, compares)
        seen = rows if division is None else rows.some(~division.all)
        found, seconds = self._fitted_members(candidates, seen, given)
        self.estimators_, self.scores_ = found, {name: {"seconds": seconds[name]} for name in found}
        picked, distance = self._picked(rows, division)
        names = [list(found)[k] for k in picked.members]
        self.estimators_ = {name: found[name] for name in names}
        self.weights_ = dict(zip(names, picked.average.tolist(), strict=True))
        self._pooling = Pooling(picked.level, picked.slope, distance if picked.slope.any() else None)
        self._correction = None
        of_curve: dict[str, Any] = {}
        if division is not None:
            of_curve = self._corrected(rows.some(division.all))
            for member in self.estimators_.values():
                _take_in(member, rows.some(division.all))
        for member in self.estimators_.values():
            _with_encoder(member, encoder, self)
        self._report(rows, told | of_curve, division, picked)

    def _picked(self, rows: Rows, division: HeldOut | None) -> tuple[Chosen, Distance | None]:
        """(The members that stay and their weights, what these may depend on)."""
        if division is None:
            return alone(0, f"{len(rows):,} rows are too few to compare members"), None
        picked, distance = self._compared(rows, division)
        if self.plan is None:
            return picked, distance
        given = planned(self.plan, "pooling")
        level, slope = (np.array(given[name], np.float64) for name in ("level", "slope"))
        average = np.array(list(planned(self.plan, "weights").values()), np.float64)
        return Chosen(list(range(len(level))), level, slope, average, AS_GIVEN), distance

    def _seeds(self, n: int) -> list[int]:
        """The first n of as many seeds as are asked for: the first one is that of the division."""
        if "_key" not in vars(self) or self._key[0] is not self.random_state:
            self._key = (self.random_state, as_key(self.random_state))
        return [seed_of(words)[0] for words in split(self._key[1], n)]

    def _candidates(self, in_time: bool, singles: bool, compares: bool) -> dict[str, tuple[Any, bool]]:
        """Name → (an estimator, whether it is given the groups)."""
        names = (
            list(FAMILIES)[:2]
            if isinstance(self.members, str) and self.members == "auto"
            else list(self.members)
        )
        if not compares:
            names = names[:1]
        if isinstance(self.members, Mapping):
            return {name: (clone(self.members[name]), True) for name in names}
        made = lambda name: lookup(name, FAMILIES, "members")()
        if not (in_time and singles):
            return {name: (made(name), True) for name in names}
        return {names[0]: (made(names[0]), False)} | {name + ON_BLOCKS: (made(name), True) for name in names}

    def _fitted_members(
        self, candidates: dict[str, tuple[Any, bool]], rows: Rows, given: "_Given"
    ) -> tuple[dict[str, FamilyRegressor], dict[str, float]]:
        """(Those that could be fitted, their seconds). Raises the last error where there is none."""
        found, seconds, error = {}, {}, None
        seeds = self._seeds(len(candidates) + 1)[1:]
        wanted = list(candidates) if self.plan is None else planned(self.plan, "members")
        for k, (name, (member, takes_groups)) in enumerate(candidates.items()):
            if name not in wanted:
                continue
            if found and deadline.left() < SECONDS:
                break
            say(self.verbose, f"{name}, {k + 1} of {len(candidates)}: {type(member).__name__}")
            self._set(member, name, seeds[k], len(candidates) - k)
            begun = time.perf_counter()
            groups = rows.group if takes_groups else None
            try:
                with warnings.catch_warnings():
                    if found:  # what is odd about the rows was said of the first
                        warnings.simplefilter("ignore", UserWarning)
                    member.fit(rows.X, rows.y, rows.weight, groups=groups, **given.of(name))
            except ValueError as refused:
                if len(candidates) == 1:
                    raise
                error = refused
                continue
            found[name], seconds[name] = member, time.perf_counter() - begun
        if not found:
            raise error if error is not None else ValueError("members names no estimator")
        return found, seconds

    def _set(self, member: Any, name: str, seed: int, n_left: int) -> None:
        """The pool's settings for this member, and its share of the time that is left."""
        of_plan = None
        if self.plan is not None:
            of_plan = {
                key.partition(".")[2]: self.plan[key] for key in self.plan if key.startswith(f"{name}.")
            }
        left = None if self.time_limit is None else max(deadline.left(), 0.1) / n_left
        shared = {
            "dtype": self.dtype, "memory_limit": self.memory_limit, "time_limit": left, "verbose": self.verbose,
            "target": self.target, "new_rows": "between", "plan": of_plan, "random_state": seed, "missing": "refuse",
        }  # fmt: skip
        if isinstance(self.members, Mapping):  # what the user has set there stays
            default = type(member)()
            shared = {
                key: value for key, value in shared.items() if getattr(member, key) == getattr(default, key)
            }
        member.set_params(**shared)

    def _compared(self, rows: Rows, division: HeldOut) -> tuple[Chosen, Distance | None]:
        """(The members that stay and their weights, the distance these may depend on)."""
        where = np.flatnonzero(division.all)
        new, members = rows.some(where), self.estimators_
        distributions = [member._fitted.distribution(new.X) for member in members.values()]
        logp = np.stack([d.logpdf(new.y) for d in distributions], axis=1)
        means = np.stack([member._fitted.mean(new.X) for member in members.values()], axis=1)
        scale = max(float(np.std(rows.y)), 1e-300)
        weight = new.weights.astype(np.float64)
        if division.single.any() and division.blocks.any():  # both kinds of new rows count alike
            is_single = division.single[where]
            totals = weight[is_single].sum(), weight[~is_single].sum()
            weight = weight / np.where(is_single, *totals) * weight.sum() / 2
        first = next(iter(members.values()))._fitted
        distance = limited(distance_of(rows.some(~division.all).X, _metric(first, members), 0), new.X)
        cell = clusters(first.inputs.transform(new.X, np.float64), new.group)
        log_scale = np.log(scale)
        predicted = Predicted(logp + log_scale, means / scale, new.y / scale, weight, cell, distance(new.X))
        for k, name in enumerate(members):
            square = np.average((new.y - means[:, k]) ** 2, weights=weight)
            nlpd = -np.average(logp[:, k], weights=weight)
            self.scores_[name] |= {"nlpd": float(nlpd), "rmse": float(square**0.5)}
        discrete = any(d.is_discrete for d in distributions)
        if not self.ensemble or discrete:
            best = min(range(len(members)), key=lambda k: self.scores_[list(members)[k]]["nlpd"])
            why = (
                "counts are predicted by one member"
                if discrete
                else "ensemble=False: that of the best held-out density"
            )
            return alone(best, why), None
        return chosen(predicted, list(members), by_distance=True), distance

    def _corrected(self, new: Rows) -> dict[str, Any]:
        """The pool's probabilities by the held-out rows, where these ask for it (a beta-transformed pool: Ranjan and Gneiting 2010); what `plan_` says of it."""
        if len(self.estimators_) < 2:
            return {}
        try:
            made = recalibration(self._fitted.distribution(new.X), new.y, groups=new.group, weight=new.weight)
        except ValueError as refusal:
            return {"probabilities": choice("as they are", str(refusal))}
        if made.is_identity:
            return {
                "probabilities": choice("as they are", "held-out rows do not clearly gain by another curve")
            }
        self._correction = made
        why = f"gains {made.gain:.4f} nats a row by {made.n_rows:,} held-out rows"
        return {"probabilities": choice(f"Beta({made.a:.3g}, {made.b:.3g}) of F", why)}

    def _report(self, rows: Rows, told: dict[str, Any], division: HeldOut | None, picked: Chosen) -> None:
        members = self.estimators_
        plans = {
            f"{name}.{key}": entry for name, member in members.items() for key, entry in member.plan_.items()
        }
        n = 0 if division is None else int(division.all.sum())
        ended = [member.plan_["ended"] for member in members.values()]
        late = next((entry for entry in ended if entry["choice"] != PLANNED), ended[0])
        own = {
            "members": choice(list(members), picked.why),
            "weights": choice(self.weights_, "mean over the held-out rows"),
            "pooling": choice(
                {"level": picked.level.tolist(), "slope": picked.slope.tolist()},
                "w = softmax(level + slope · d)",
            ),
            "held_out_rows": choice(
                n, "that no member had seen when they were compared; they then joined the posteriors"
            ),
            "ended": late,
        }
        self.plan_ = Decisions(told) | own | plans
        self.n_rows_ = len(rows)
        self.n_iter_ = sum(member.n_iter_ for member in members.values())
        self.converged_ = all(member.converged_ for member in members.values())
        self.history_ = [entry for member in members.values() for entry in member.history_]


class _Given(NamedTuple):
    """What `fit` was given for every member."""

    checkpoint: Any
    callback: Any

    def of(self, name: str) -> dict[str, Any]:
        path = None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}.{name}"
        return {"checkpoint": path, "callback": self.callback}


def held_out(rows: Rows, singles: bool, generator: np.random.Generator) -> HeldOut:
    """A tenth of the rows: at random, or whole groups; with `singles` half of them at random, and groups, which are blocks of time in their order, half of them the last."""
    N = len(rows)
    nothing = np.zeros(N, bool)
    if rows.group is None:
        n = int(np.clip(SHARE * N, LEAST, MOST))
        return HeldOut(np.isin(np.arange(N), generator.permutation(N)[:n]), nothing)
    labels, number, sizes = np.unique(rows.group, return_inverse=True, return_counts=True)
    order = generator.permutation(len(labels))
    if singles:
        n_last = max(1, round(SHARE * LAST_BLOCKS * len(labels)))
        last = np.arange(len(labels) - n_last, len(labels))
        order = np.concatenate([last, order[order < len(labels) - n_last]])
    enough = int(np.searchsorted(np.cumsum(sizes[order]), max(SHARE * N, min(LEAST, N / 4)))) + 1
    blocks = np.isin(number, order[: min(enough, len(labels) // 2)])
    if not singles:
        return HeldOut(nothing, blocks)
    others = generator.permutation(np.flatnonzero(~blocks))
    single = np.isin(np.arange(N), others[: int(np.clip(SHARE / 2 * N, LEAST / 2, MOST))])
    return HeldOut(single, blocks)


def _take_in(member: Any, rows: Rows) -> None:
    """The held-out rows into the posterior, where the family can: hyperparameters and features stay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(member, KernelGPRegressor):
            member.update(rows.X, rows.y, rows.weight)
        elif isinstance(member, FeatureGPRegressor):
            member.partial_fit(rows.X, rows.y, rows.weight)


def _with_encoder(member: Any, encoder: Any, pool: Any) -> None:
    """So that the member takes the tables that the pool takes."""
    member._fitted = dataclasses.replace(member._fitted, encoder=encoder)
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(pool, name):
            setattr(member, name, getattr(pool, name))
        elif hasattr(member, name):
            delattr(member, name)


def _metric(fitted: Fitted, members: Mapping[str, Any]) -> Float[np.ndarray, " D"]:
    """The lengthscales of the first member with a stationary kernel, in the units of the inputs; their standard deviations without one."""
    scale = np.asarray(fitted.inputs.scale, np.float64)
    for member in members.values():
        kernel = value_of(getattr(member, "kernel_", None))
        if isinstance(kernel, AbstractStationary) and kernel.active_dims is None:
            return scale * np.broadcast_to(np.asarray(kernel.lengthscale, np.float64), scale.shape)
    return scale


def _name_of(y: Any) -> str | None:
    name = getattr(y, "name", None)
    return name if isinstance(name, str) else None
