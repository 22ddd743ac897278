"""The parts that pools share: settings, the fits of their members, the summary."""

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sklearn.base import clone

from stochgp import deadline
from stochgp.budget import release
from stochgp.choosing import Decisions
from stochgp.context import PLANNED, FitContext
from stochgp.data.fingerprint_rows import name_inputs
from stochgp.data.rows import Data
from stochgp.data.target_rows import name_of_targets
from stochgp.estimators.base import GPEstimator, PosteriorEstimator
from stochgp.names import lookup, printable
from stochgp.pools.held_out import BY_BLOCKS
from stochgp.pools.members import Member
from stochgp.pools.refit import raise_interrupt_of
from stochgp.pools.weights import PoolWeights, alone
from stochgp.results import RESULTS
from stochgp.storage.checkpoint import CheckpointError
from stochgp.warning import say, silent

SHARE_AFTER_FITS = 0.35  # of a time limit: for comparing members and joining the held-out rows
SECONDS = 1.0  # for each member; with less no further member is fitted


@dataclass(eq=False, repr=False)
class PoolEstimator(PosteriorEstimator):
    """Several estimators and their weights; `time_limit` is shared by the members."""

    ensemble: bool = True
    members: Any = field(default="auto", kw_only=True)

    def summary(self) -> str:
        """The members with scores, seconds and weights, and the decisions of the fit; `estimators_[name].summary()` describes one member."""
        lines = [
            f"{type(self).__name__}{f' of {self.target_name_!r}' if self.target_name_ else ''}, fitted in {vars(self)['fit_seconds_']:.1f} s",
            f"Data: {self.n_rows_} rows (equal ones counted once)",
            "Members, by held-out rows:" if len(self.scores_) > 1 else "Member:",
        ]
        for name, scores in self.scores_.items():
            weight = f"weight {self.weights_[name]:.2f}" if name in self.weights_ else "left out"
            scored = "".join(f"{score} {scores[score]:.4g}, " for score in scores if score != "seconds")
            lines.append(f"  {name}: {weight}; {scored}{scores['seconds']:.1f} s")
        return printable("\n".join([*lines, "", "Chosen:", str(self.plan_)]))

    def _store(
        self,
        members: dict[str, Any],
        weights: PoolWeights,
        calibration: Any,
        scores: dict[str, dict[str, float]],
        n_rows: int,
        y: Any,
        context: FitContext,
    ) -> Any:
        self.estimators_ = {name: members[name] for name in weights.names}
        self.weights_ = dict(zip(weights.names, weights.average.tolist(), strict=True))
        self._pooling, self._correction = weights, calibration
        self.scores_, self.n_rows_, self.target_name_ = scores, n_rows, name_of_targets(y)
        context.record("members", list(weights.names), weights.why)
        context.record("weights", self.weights_, "mean over the held-out rows")
        self.plan_, self.fit_report_ = Decisions(context.plan_), context.report
        report_members(self)
        release()
        return self

    def _fit_from_files(
        self,
        name: str,
        member: Any,
        why: str,
        files: Any,
        y: Any,
        others: Mapping[str, Any],
        context: FitContext,
    ) -> Any:
        """One member, which reads the rows of the files block by block."""
        own = self.get_params(deep=False)
        settings = {key: own[key] for key in ("missing", "new_rows", "target_outliers") if key in own}
        member.set_params(**member_settings(self, name, 1, context) | settings)
        member.fit(files, y, **others, **context.of_member(name))
        for attribute in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(member, attribute):
                setattr(self, attribute, getattr(member, attribute))
        scores = {name: {"seconds": member.fit_seconds_}}
        return self._store({name: member}, alone(name, why), None, scores, member.n_rows_, y, context)


def report_members(estimator: Any) -> None:
    """Set the attributes that an estimator has from its members: how the fit ended, steps, history."""
    members = estimator.estimators_.values()
    ends = [estimator.plan_["ended"]] if "ended" in estimator.plan_ else []
    ends += [member.plan_["ended"] for member in members]
    ended = next((entry for entry in ends if entry["choice"] != PLANNED), ends[0])
    estimator.plan_ = estimator.plan_.without("ended") | {"ended": ended}
    estimator.n_iter_ = sum(member.n_iter_ for member in members)
    estimator.converged_ = ended["choice"] == PLANNED and all(member.converged_ for member in members)
    estimator.history_ = [entry for member in members for entry in member.history_]


def seconds_for_members(pool: Any) -> float:
    """Seconds of the time limit that are left for fits of members."""
    return deadline.left() - SHARE_AFTER_FITS * (pool.time_limit or 0.0)


def member_settings(pool: Any, name: str, n_left: int, context: FitContext) -> dict[str, Any]:
    """Settings that every member has, with its share of the time that is left."""
    left = None if pool.time_limit is None else max(seconds_for_members(pool), 0.1) / n_left
    return {
        "dtype": pool.dtype, "memory_limit": pool.memory_limit, "time_limit": left, "verbose": pool.verbose,
        "new_rows": "between", "random_state": context.seed(name), "missing": "refuse", "devices": pool.devices,
    }  # fmt: skip


def set_member(
    pool: Any, name: str, member: Any, n_left: int, settings: Mapping[str, Any], context: FitContext
) -> None:
    """Give the member the settings of the pool; settings of the user's own members stay."""
    known = member.get_params(deep=False)
    shared = member_settings(pool, name, n_left, context) | dict(settings)
    shared = {key: value for key, value in shared.items() if key in known}
    if isinstance(pool.members, Mapping):
        default = type(member)()
        shared = {key: v for key, v in shared.items() if getattr(member, key) == getattr(default, key)}
    member.set_params(**shared)


def named_members(
    members: Any,
    names: list[str],
    known: Mapping[str, Member],
    rows: Data,
    days: list[int],
    memory_limit: Any,
    kind: type,
) -> dict[str, Any]:
    """The estimators of the setting `members`: of these names for "auto", of the names given, or clones of the estimators given, which must be of this `kind`."""
    if isinstance(members, Mapping):
        for name, member in members.items():
            if not isinstance(member, kind):
                what = f"members[{name!r}] is a {type(member).__name__}"
                raise TypeError(f"{what}, not a {kind.__name__.removesuffix('Mixin').lower()}")
        return {name: clone(member) for name, member in members.items()}
    if isinstance(members, str):
        lookup(members, {"auto": None}, "members")
    else:
        names = list(members)
    return {name: lookup(name, known, "members")(rows, days, memory_limit) for name in names}


def fit_members(
    pool: Any,
    candidates: dict[str, Any],
    rows: Data,
    encoder: Any,
    context: FitContext,
    settings: Mapping[str, Any] = MappingProxyType({}),
    labels: Any = None,
) -> dict[str, Any]:
    """The candidates that could be fitted to these rows, in their order. Raises the last error if there is none.

    Linear regression is first, for a short time limit; then the kernel GP of blocks of time. `labels` replace the targets of `rows`.
    """
    fitted, seconds, error = {}, [], ValueError("members names no estimator")
    is_quick = {name: getattr(member, "features", None) == "linear" for name, member in candidates.items()}
    first = next(iter(candidates))
    order = sorted(candidates, key=lambda name: (not is_quick[name], name != first + BY_BLOCKS))
    y = rows.y if labels is None else labels
    for k, name in enumerate(order):
        n_left = len(order) - k
        member: Any = candidates[name]
        is_late = seconds_for_members(pool) < max([*seconds, SECONDS * n_left])
        if is_late and not all(is_quick[other] for other in fitted):
            context.end(RESULTS.time_limit, f"there was no time for {', '.join(order[k:])}")
            break
        say(pool.verbose, f"{name}, {k + 1} of {len(order)}: {type(member).__name__}")
        set_member(pool, name, member, n_left, settings, context)
        if isinstance(candidates[name], GPEstimator):
            vars(member)["_encoder_of_pool"] = encoder  # names the columns in its warnings
        groups = rows.group if takes_groups(name, candidates) else None
        try:
            # The first member warns of the rows; the others would repeat it.
            with (
                context.interruptible(f"the fit of {name!r}"),
                contextlib.nullcontext() if name == first else silent(),
            ):
                member.fit(rows.X, y, rows.weight, groups=groups, **context.of_member(name))
                fitted[name] = member
                seconds.append(member.fit_seconds_)
                raise_interrupt_of(member)
            release()  # what compiling has left behind
        except ValueError as refused:
            if len(candidates) == 1 or isinstance(refused, CheckpointError):
                raise
            error = refused
            context.leave_out(name, str(refused))
        if context.is_interrupted:
            break
    if not fitted:
        raise KeyboardInterrupt if context.is_interrupted else error
    return _with_steps({name: fitted[name] for name in candidates if name in fitted}, context)


def _with_steps(members: dict[str, Any], context: FitContext) -> dict[str, Any]:
    """The members but for those that a limit ended before their first step, unless all were."""
    ends = {name: member.plan_["ended"] for name, member in members.items() if member.n_iter_ == 0}
    idle = [name for name, end in ends.items() if end["choice"] != PLANNED]
    if len(idle) == len(members):
        return members
    for name in idle:
        context.leave_out(name, f"it has taken no step: {ends[name]['why']}")
    return {name: member for name, member in members.items() if name not in idle}


def takes_groups(name: str, names: Any) -> bool:
    """Whether the member is given the groups: not if it alone is scored on single rows, and others on blocks."""
    return name.endswith(BY_BLOCKS) or not any(other.endswith(BY_BLOCKS) for other in names)


def join_table(pool: Any, members: Mapping[str, Any], encoder: Any) -> None:
    """Let the members, and their own members, take the tables that the pool takes."""
    for member in members.values():
        own = getattr(member, "estimators_", {})
        join_table(pool, own, encoder)
        if not own:
            member._fitted = dataclasses.replace(member._fitted, encoder=encoder)
        name_inputs(member, pool.n_features_in_, getattr(pool, "feature_names_in_", None))
