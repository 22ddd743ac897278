"""`GPRegressor`: a kernel GP, a feature GP, linear regression and trees, pooled."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin, clone

from stochgp import deadline
from stochgp.budget import MemoryLimitError
from stochgp.context import FitContext
from stochgp.data.file_rows import are_files, read_files
from stochgp.data.reading import read_training_rows
from stochgp.data.rows import Rows
from stochgp.data.time_order import EITHER
from stochgp.distributions import PITRecalibration, Rounded, recalibration
from stochgp.distributions.calibrating import recalibration_of_parts
from stochgp.distributions.curves import truncated
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.estimators.settings import CHOICES, check_settings
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.kernel_choice import short_days
from stochgp.families.likelihoods import AUTO, Asked
from stochgp.families.targets import untransformed
from stochgp.likelihoods import Warped
from stochgp.numerics.clustered import folds
from stochgp.pools.base import (
    PoolEstimator,
    fit_members,
    join_table,
    member_settings,
    named_members,
    takes_groups,
)
from stochgp.pools.classifier import GPClassifier
from stochgp.pools.division import HeldOut, held_out, held_out_in_time
from stochgp.pools.held_out import (
    BY_BLOCKS,
    LINE,
    distance_in_time,
    predict_held_out,
    record_scores,
    widen_for_later_times,
    without_worse_kernel,
)
from stochgp.pools.hurdle import HurdleRegressor, frequent
from stochgp.pools.members import FAMILIES, REGRESSORS
from stochgp.pools.mixed import Pool
from stochgp.pools.refit import has_trees, refitted_on_all, takes_in
from stochgp.pools.targets import (
    COUNT,
    REAL,
    choose_counts,
    choose_transform,
    may_be_counts,
    prefer_by_crps,
    shift_of,
)
from stochgp.pools.weights import HeldOutPredictions, PoolWeights, alone, stack, stack_near_and_far

MIN_ROWS_FOLDS, MIN_ROWS_HELD_OUT, N_FOLDS = 100, 1_000, 5
MEMBERS = ("kernel", "feature", "linear", "trees")
MEMBERS_OF_FEW = ("kernel", "trees")  # below MIN_ROWS_HELD_OUT
MEMBERS_IN_TIME = ("kernel", "linear", "trees", LINE)  # scored on blocks
# Rows of a table with a time, up to which a feature GP is scored on blocks: nine larger tables of ten left it out, for a tenth to a fifth of the time.
MAX_ROWS_OF_FEATURES = 10_000
MIN_REFIT_SHARE = 0.05  # of the rows, held out, for which trees are learned again
POINT_MASS, MIN_GAIN_OF_POINT_MASS = "point_mass", 0.01  # of the CRPS
MAX_BELOW = 1e-3  # probability of numbers below 0, of positive targets


@dataclass(eq=False, repr=False)
class GPRegressor(PosteriorRegressor, PoolEstimator):
    """Gaussian process regression for any table: members of several families, mixed according to how each predicts rows that none of them has seen.

    A quarter of the rows, from 800 to 2,000, is held out (whole groups, if groups are given), and each member learns from the others. An observation is predicted
    as p(y | x) = Σ_k w_k p_k(y | x). The weights maximise the mean of log p(y) + log N(y | Σ_k w_k m_k, S) over the held-out rows, S the mean square of
    y − Σ_k w_k m_k. If the pool is not clearly better than its best member, that member predicts alone. The held-out rows then join the posteriors; trees learn
    again from all rows. With 100 to 1,000 rows the members are a kernel GP and trees, scored by five folds; with fewer rows a kernel GP predicts alone.

    If the table holds the time of its rows, blocks of time (the last 15 % of the rows and 5 % before them) and single rows (5 %) are held out. There are two sets of
    weights, from single rows and from blocks; with the distance in time to the nearest training row the first gives way to the second.

    Parameters
    ----------
    ensemble : bool
        False: the one member that predicts held-out rows best.
    members
        "auto"; a list of names, "kernel", "kernel_and_line" (a kernel GP with a linear mean), "feature", "linear", "trees", "sparse"; or {name: estimator}.
    likelihood
        "auto", or a likelihood of one of the families (`KernelGPRegressor`, `SparseGPRegressor`): members are of families that take it.
    target : "auto", "real", "positive" or "count"
        "positive": log y is modelled, so that predictions are positive. "count": log(y + ½), and predictions are whole numbers from 0 on. "auto": "count" for
        small whole numbers, if small kernel GPs predict held-out rows clearly better so; else "real". All members of skew targets from 0 on learn log(y + c),
        c half of the least positive target, if small GPs predict held-out rows clearly better so (`plan_["transform"]`).
    point_mass : "auto", float or None
        A value that targets have again and again, such as 0 of rain or claims: a classifier learns its probability, and a pool the other rows (`HurdleRegressor`).
        "auto" tries the value of a tenth of the targets, five times as frequent as any other, and takes this model if the CRPS of held-out rows is clearly lower.
    target_outliers, missing, new_rows, random_state, memory_limit, time_limit, dtype, verbose, devices
        As of every estimator (`KernelGPRegressor`); `time_limit` is shared by the members.

    Attributes
    ----------
    estimators_ : dict
        The members that stay, by name, which predict on their own too.
    weights_ : dict
        The mean weight of each over the held-out rows.
    scores_ : dict
        NLPD and RMSE of each member that was tried, on held-out rows in target units, and its seconds.
    target_
        "real", "positive" or "count".
    plan_
        Decisions and reasons; those of a member are in `estimators_[name].plan_`.
    fit_report_
        Measured numbers: how many rows were held out, and factors of variances for later times.
    n_rows_, n_iter_, converged_, history_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
        As of every estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp import GPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 10, (300, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
    >>> model = GPRegressor(random_state=0).fit(X, y)
    >>> lower, upper = model.predict_interval([[5.0]], 0.9)[0]
    >>> bool(lower < np.sin(5.0) < upper)
    True
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {**CHOICES, "target": (AUTO, *CHOICES["target"])}
    likelihood: Any = field(default="auto", kw_only=True)
    target: str = field(default=AUTO, kw_only=True)
    point_mass: Any = field(default=AUTO, kw_only=True)
    target_outliers: str = field(default="warn", kw_only=True)

    @property
    def _fitted(self) -> Pool:
        """The members as one."""
        parts = tuple(member._fitted for member in self.estimators_.values())
        return Pool(parts, self._pooling, self._correction)

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
        """Fit the members and their weights.

        Raises ValueError or TypeError, in one line, for data or settings that cannot be used, and if no member can be fitted within `memory_limit`.
        Ctrl-C ends the fit with the members fitted so far. A second one, or one before there is a member, raises, and the pool stays as it was.

        Parameters
        ----------
        X, y, sample_weight, groups, callback
            As of every estimator (`KernelGPRegressor.fit`).
        checkpoint
            A file for each member, its name with the member's at the end. Without `random_state` the file of this name keeps the seed.
        """
        check_settings(self.get_params(deep=False), self._choices)
        with FitContext.open(self, checkpoint, callback) as context:
            table = self._read_training(X, y, sample_weight, groups, context)
            if table is None:
                return self._fit_from_files(X, y, sample_weight, groups, context)
            rows, encoder, in_time = table
            settings = self._target_settings(rows, in_time, context)
            n_rows, rows = len(rows), rows.apart()
            if _is_number(self.point_mass):  # there is nothing to compare
                nothing = np.zeros(len(rows), bool)
                division = HeldOut(nothing, nothing)
            else:
                division = divide(rows, in_time, self.new_rows, context)
            candidates = self._candidates(rows, encoder, division)
            seen = rows.some(~division.all)
            members = fit_members(self, candidates, seen, encoder, context, settings)
            scores: dict[str, dict[str, float]] = {
                name: {"seconds": member.fit_seconds_} for name, member in members.items()
            }
            weights, calibration = self._weigh(members, rows, division, scores, context)
            members = {name: members[name] for name in weights.names}
            with (
                deadline.within(0.0 if context.is_interrupted else None),
                context.interruptible("the refits"),
            ):
                weights = self._refit(members, rows, division, weights, scores, context)
            join_table(self, members, encoder)
            self._store(members, weights, calibration, scores, n_rows, y, context)
        return self

    def _read_training(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, context: FitContext
    ) -> tuple[Rows, Any, bool] | None:
        """(Rows in the user's units, the encoder of the table, whether their groups are blocks of time). None for files that do not fit into memory."""
        if not are_files(X):
            place = EITHER if self.new_rows == "auto" else self.new_rows
            rows, encoder = read_training_rows(self, X, y, sample_weight, groups, context, new_rows=place)
        else:
            names = ("missing", "new_rows", "dtype", "target_outliers")
            like = FeatureGPRegressor(**{name: getattr(self, name) for name in names})
            others = {"sample_weight": sample_weight, "groups": groups}
            try:
                data, _ = read_files(like, X, y, others, context, keeps_all=True)
            except MemoryLimitError as refusal:
                context.record("files", "block by block", f"one feature GP reads the rows: {refusal}")
                return None
            for name in ("n_features_in_", "feature_names_in_"):
                setattr(self, name, getattr(like, name))
            rows, encoder = data.rows, data.encoder
        return rows, encoder, rows.group is not None and groups is None

    def _target_settings(self, rows: Rows, in_time: bool, context: FitContext) -> dict[str, Any]:
        """Set `target_`; settings of all members for it: the kind of numbers, and one transform."""
        self.target_ = REAL if self.target == AUTO else self.target
        settings: dict[str, Any] = {"target_outliers": "keep"}
        default = isinstance(self.likelihood, str) and self.likelihood == AUTO
        if not default:
            settings["likelihood"] = self.likelihood
        if (
            self.target == AUTO
            and default
            and isinstance(self.members, str)
            and not _is_number(self.point_mass)
        ):
            shared = {"dtype": self.dtype, "memory_limit": self.memory_limit, "devices": self.devices}
            apart = rows.apart()
            self.target_ = choose_counts(apart, shared | {"random_state": context.seed("counts")}, context)
            # Tables with a time: on the last fifth of PM2.5 a pool with members of log(y + c) had 10 % more RMSE, and on steel it lost 0.2 nats.
            if self.target_ == REAL and not in_time and (T := choose_transform(apart, context)) is not None:
                settings["likelihood"] = Warped(AUTO, T)
        return settings | {"target": self.target_}

    def _candidates(self, rows: Rows, encoder: Any, division: HeldOut) -> dict[str, Any]:
        """The members to fit. In tables with a time one is scored on single rows, the others on blocks."""
        if _is_number(self.point_mass):
            return {POINT_MASS: self._hurdle(float(self.point_mass), rows)}
        known = {name: REGRESSORS[name] for name in REGRESSORS if self._takes_likelihood(name)}
        usual = MEMBERS_OF_FEW if division.is_by_folds else MEMBERS
        usual = [name for name in usual if name in known] or list(known)[:1]
        made = lambda members, names, groups: named_members(
            members,
            names,
            known,
            rows,
            short_days(encoder, len(rows), groups),
            self.memory_limit,
            RegressorMixin,
        )
        if not division.in_time or isinstance(self.members, Mapping):
            found = made(self.members, usual, rows.group)
            if not (division.is_by_folds or division.all.any()):
                found = dict(list(found.items())[:1])
        else:
            names = [name for name in MEMBERS_IN_TIME if name in known] or usual
            if len(rows) <= MAX_ROWS_OF_FEATURES and "feature" in known:
                names.append("feature")
            found = made(self.members, names, rows.group)
            if self.new_rows == AUTO:
                first = next(iter(found))
                single = made([first], [first], None)
                found = single | {name + BY_BLOCKS: member for name, member in found.items()}
        is_tried = self.point_mass == AUTO and self.ensemble and isinstance(self.members, str)
        if (
            is_tried
            and self.target_ != COUNT
            and division.all.any()
            and (value := frequent(rows)) is not None
        ):
            found[POINT_MASS + (BY_BLOCKS if division.in_time else "")] = self._hurdle(value, rows)
        return found

    def _hurdle(self, value: float, rows: Rows) -> HurdleRegressor:
        """A hurdle model, whose regressor is a pool with these settings. Raises ValueError for counts, whose models have zeros of their own."""
        if self.target_ == COUNT:
            raise ValueError("point_mass is for continuous targets: a model of counts has zeros of its own")
        others = rows.some(rows.y != value)
        # Beside a point mass targets are continuous.
        target = self.target_ if len(others) and may_be_counts(others) else self.target
        regressor: Any = clone(self)
        regressor.set_params(point_mass=None, target=target, target_outliers="keep")
        return HurdleRegressor(value, GPClassifier(), regressor)

    def _takes_likelihood(self, name: str) -> bool:
        """Whether the member's family takes the likelihood. Raises the kernel family's error for a likelihood that no family takes."""
        refusals = {}
        for member, family in FAMILIES.items():
            try:
                Asked.of(untransformed(self.likelihood), family)
            except (TypeError, ValueError) as error:
                refusals[member] = error
        if len(refusals) == len(FAMILIES):
            raise refusals["kernel"]
        return name not in refusals

    def _weigh(
        self,
        members: dict[str, Any],
        rows: Rows,
        division: HeldOut,
        scores: dict[str, dict[str, float]],
        context: FitContext,
    ) -> tuple[PoolWeights, PITRecalibration | None]:
        """The weights of the members, and the calibration of their mixture, from predictions of held-out rows."""
        first = next(iter(members))
        if len(members) == 1 and (division.is_by_folds or POINT_MASS in members):
            return alone(first, "there is no other member"), None
        if not (division.is_by_folds or division.all.any()):
            return alone(first, f"{len(rows):,} rows are too few to compare members"), None
        predictions = predict_held_out(members, rows, division, context)
        if predictions is None:
            best = first + BY_BLOCKS if first + BY_BLOCKS in members else first
            return alone(best, "there was no time to compare members"), None
        context.report["held_out_rows"] = len(predictions.y)
        record_scores(predictions, scores)
        hurdles = [name for name in predictions.names if name.startswith(POINT_MASS)]
        others, note = without_worse_kernel(
            predictions.of([name for name in predictions.names if name not in hurdles])
        )
        distance = distance_in_time(members, rows, division, others)
        if distance is not None:
            others, widths = widen_for_later_times(members, others)
            context.report["widths"] = widths
        weights = self._best_or_pool(others, distance)
        weights = weights._replace(why=weights.why + note)
        for name in hurdles:
            weights = _unless_preferred(name, weights, others, predictions)
        if POINT_MASS in weights.names[0]:
            return weights, None
        weights = self._truncated(weights, others, context)
        if division.in_time and distance is None:
            context.record(
                "probabilities", "as they are", "rows of later times are not exchangeable with those held out"
            )
            return weights, None
        return weights, _calibrated(weights, others, distance is not None, context)

    def _best_or_pool(self, predictions: HeldOutPredictions, distance: Any) -> PoolWeights:
        """The pool, or its best member: if one is asked for, or their distributions cannot be mixed."""
        is_mixed = all(_can_be_mixed(d) for _, ds in predictions.parts for d in ds)
        if self.ensemble and is_mixed:
            return stack(predictions) if distance is None else stack_near_and_far(predictions, distance)
        useful = predictions.of(predictions.informative())
        density = np.average(useful.log_density, axis=0, weights=useful.weight)
        why = (
            "ensemble=False: the highest held-out density"
            if not self.ensemble
            else "counts are predicted by one member"
        )
        return alone(useful.names[int(np.argmax(density))], why)

    def _truncated(
        self, weights: PoolWeights, predictions: HeldOutPredictions, context: FitContext
    ) -> PoolWeights:
        """Distributions of positive numbers for positive, skew targets, if the CRPS of held-out rows is not higher."""
        y = predictions.y
        if self.target != AUTO or y.min() <= 0 or shift_of(predictions.rows) is None:
            return weights
        parts = list(predictions.mixed(weights))
        if not any(not d.has_masses and (d.cdf(0.0) > MAX_BELOW).any() for _, d in parts):
            return weights
        before, after = (
            float(
                np.average(
                    np.concatenate([of(d).crps(y[i]) for i, d in parts]),
                    weights=np.concatenate([predictions.weight[i] for i, _ in parts]),
                )
            )
            for of in (lambda d: d, truncated)
        )
        why = f"whether distributions are cut at 0, as all targets are positive: CRPS of held-out rows {after:.5g} with the cut, {before:.5g} without"
        context.record("positive", after <= before, why)
        return weights._replace(pooling=dataclasses.replace(weights.pooling, positive=after <= before))

    def _refit(
        self,
        members: dict[str, Any],
        rows: Rows,
        division: HeldOut,
        weights: PoolWeights,
        scores: dict[str, dict[str, float]],
        context: FitContext,
    ) -> PoolWeights:
        """Members take in the held-out rows; in tables with a time, and for trees, they are refitted on all rows."""
        if not division.all.any():
            return weights
        held, widths = rows.some(division.all), context.report.get("widths", {})
        joined = []
        for name, member in members.items():
            groups = rows.group if takes_groups(name, scores) else None
            again = division.in_time or (has_trees(member) and bool(division.all.mean() > MIN_REFIT_SHARE))
            if (
                again
                and deadline.left() >= scores[name]["seconds"]
                and refitted_on_all(member, rows, groups, widths.get(name, 1.0))
            ):
                continue
            joined.append(_update(member, held))
        distance = weights.pooling.distance
        if distance is not None and all(joined):
            pooling = dataclasses.replace(weights.pooling, distance=distance.joined(held.X))
            return weights._replace(pooling=pooling)
        return weights

    def _fit_from_files(
        self, files: Any, target: Any, sample_weight: Any, groups: Any, context: FitContext
    ) -> "GPRegressor":
        """A feature GP, which needs few of the rows in memory."""
        if _is_number(self.point_mass):
            why = context.plan_["files"]["why"]
            raise ValueError(f"point_mass is {self.point_mass:g}, which needs the rows in memory: {why}")
        self.target_ = REAL if self.target == AUTO else self.target
        member = FeatureGPRegressor()
        default = isinstance(self.likelihood, str) and self.likelihood == AUTO
        settings = {"target": self.target_} | ({} if default else {"likelihood": self.likelihood})
        names = ("missing", "new_rows", "target_outliers")
        member.set_params(
            **member_settings(self, "feature", 1, context)
            | settings
            | {name: getattr(self, name) for name in names}
        )
        member.fit(files, target, sample_weight, groups=groups, **context.of_member("feature"))
        for attribute in ("n_features_in_", "feature_names_in_"):
            setattr(self, attribute, getattr(member, attribute))
        weights = alone("feature", "the rows are read block by block")
        scores = {"feature": {"seconds": member.fit_seconds_}}
        self._store({"feature": member}, weights, None, scores, member.n_rows_, target, context)
        return self


def divide(rows: Rows, in_time: bool, new_rows: str, context: FitContext) -> HeldOut:
    """Rows that no member learns from: none below 100, five folds of 100 to 1,000 rows, else a part, in blocks if groups are blocks of time."""
    generator = np.random.default_rng(context.seed("division"))
    if len(rows) >= MIN_ROWS_HELD_OUT:
        return held_out_in_time(rows, new_rows == AUTO, generator) if in_time else held_out(rows, generator)
    nothing = np.zeros(len(rows), bool)
    if len(rows) < MIN_ROWS_FOLDS:
        return HeldOut(nothing, nothing)
    return HeldOut(nothing, nothing, fold=folds(len(rows), rows.group, N_FOLDS, context.seed("division")))


def _calibrated(
    weights: PoolWeights, predictions: HeldOutPredictions, near_only: bool, context: FitContext
) -> PITRecalibration | None:
    """The curve of the probabilities of the pool (a beta-transformed pool: Ranjan and Gneiting 2010), if held-out rows clearly gain.

    In tables with a time it is learned from rows between the training rows, and has no strength far from them.
    """
    rows, parts = predictions.rows, list(predictions.mixed(weights))
    if any(d.has_masses for _, d in parts):
        context.record("probabilities", "as they are", "a curve is of continuous distributions")
        return None
    try:
        if near_only:
            assert predictions.far is not None
            ((_, d),) = parts
            i = np.flatnonzero(~predictions.far)
            near = rows.some(i)
            curve = recalibration(d[i], near.y, weight=near.weight, strength=weights.pooling.strength(near.X))
        else:
            of = lambda i, part: None if part is None else part[i]
            curve = recalibration_of_parts(
                [(d, rows.y[i], of(i, rows.group), of(i, rows.weight)) for i, d in parts]
            )
    except ValueError as refusal:
        context.record("probabilities", "as they are", str(refusal))
        return None
    if curve.is_identity:
        context.record("probabilities", "as they are", "held-out rows do not clearly gain by another curve")
        return None
    where = " near the training rows, of later ones F" if near_only else ""
    why = f"gains {curve.gain:.4f} nats a row on {curve.n_rows:,} held-out rows"
    context.record("probabilities", f"Beta({curve.a:.3g}, {curve.b:.3g}) of F{where}", why)
    return curve


def _unless_preferred(
    name: str, weights: PoolWeights, others: HeldOutPredictions, predictions: HeldOutPredictions
) -> PoolWeights:
    """The hurdle model alone, if its CRPS of held-out rows is clearly lower than that of the pool."""
    ((_, mixed),) = others.mixed(weights)
    ((_, distributions),) = predictions.parts
    rival = {name: distributions[predictions.names.index(name)]}
    found = prefer_by_crps(mixed, rival, predictions.rows, predictions.cluster, MIN_GAIN_OF_POINT_MASS)
    if not found.gains:  # one of the two has no finite scores
        return weights
    if found.name is None:
        return weights._replace(why=f"{weights.why}; {found.why}")
    return alone(name, f"{found.why}: {weights.why}")


def _update(member: Any, held: Rows) -> bool:
    """`takes_in`; the members elsewhere of a hurdle model take in rows of other values."""
    if isinstance(member, HurdleRegressor):
        held, elsewhere = held.some(held.y != member.value), member.estimators_["elsewhere"]
        joined = [_update(part, held) for part in elsewhere.estimators_.values()]
        return all(joined)
    return takes_in(member, held)


def _can_be_mixed(distribution: Any) -> bool:
    """Whether it is continuous, or a rounded continuous distribution."""
    return not distribution.is_discrete or isinstance(distribution, Rounded)


def _is_number(value: Any) -> bool:
    return value is not None and not isinstance(value, str)
