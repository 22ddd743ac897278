"""`GPRegressor`, a pool of a kernel GP, linear regression and trees."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin, clone

from stochgp import deadline
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.data.time_order import EITHER
from stochgp.distributions import PITRecalibration
from stochgp.estimators.base import CHOICES, PosteriorRegressor, check_settings
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.starts import AUTO, KERNEL, resolve_likelihood
from stochgp.likelihoods import Warped
from stochgp.numerics.clustered import folds
from stochgp.pools.classifier import GPClassifier
from stochgp.pools.division import (
    BLOCK,
    LEARNED,
    MIN_ROWS_FOLDS,
    MIN_ROWS_HELD_OUT,
    N_FOLDS,
    Roles,
    held_out,
    held_out_in_time,
)
from stochgp.pools.members import (
    BY_BLOCKS,
    N_PARTS_AFTER,
    REGRESSORS,
    fit_members,
    has_trees,
    named_members,
    refitted_on_all,
    takes_groups,
)
from stochgp.pools.pool import Pool, PoolEstimator
from stochgp.pools.targets import (
    COUNT,
    REAL,
    HurdleRegressor,
    choose_counts,
    choose_transform,
    frequent,
    may_be_counts,
    shift_of,
    unless_preferred,
    update_member,
)
from stochgp.pools.weights import (
    PoolWeights,
    alone,
    calibrated,
    held_out_clusters,
    predict_held_out,
    record_scores,
    truncate,
    weigh,
    widen_for_later_times,
)

MEMBERS = ("kernel", "linear", "trees")
MEMBERS_OF_FEW = ("kernel", "trees")  # with fewer than MIN_ROWS_HELD_OUT rows
FOLDED = {"kernel", "trees", "linear"}  # members with cross-validation that needs no further fits
MIN_REFIT_SHARE = 0.12  # with a larger share of held-out rows, trees are refitted on all rows
POINT_MASS = "point_mass"


@dataclass(eq=False, repr=False)
class GPRegressor(PosteriorRegressor, PoolEstimator):
    """Gaussian process regression for any table, with a mixture of several models.

    The members of the pool are models of several families. `fit` holds out a tenth of the rows, but at most
    2,000 rows. At least 800 rows are held out, or a quarter of the rows if this is less. Groups stay whole.
    The members learn from the rows that are not held out. The predictive density p(y) = Σ_k w_k p_k(y | x)
    has the mean m. The weights w_k maximise the mean of log p(y) + log N(y | m, S) over held-out rows, where
    S is the mean square of y − m. Members with weights below 10 % are dropped. The other members are then
    updated with the held-out rows. With 100 to 1,000 rows, cross-validation compares the members. With fewer
    than 100 rows, the only member is a kernel GP.

    If the rows have times, `fit` holds out blocks of time and single rows. The held-out blocks determine the
    weights for rows after the last training time. The held-out single rows determine the weights for rows up
    to the last training time.

    Parameters
    ----------
    ensemble : bool
        False: use only the member that predicts held-out rows best.
    members : "auto", sequence of str or mapping
        "auto", a list of names, or {name: estimator}. Names are "kernel", "feature", "linear",
        "trees" and "sparse".
    likelihood : str or AbstractLikelihood
        "auto", or another likelihood that `KernelGPRegressor` accepts.
    target : "auto", "real", "positive" or "count"
        "positive": members model log y, so predictions are positive. "count": members model log(y + ½), and
        observations are whole numbers ≥ 0. "auto" means "count" for small whole numbers if trees of
        log(y + ½) predict clearly better than trees of y, and else "real". With "auto", members may learn
        log(y + c) of skewed targets (see `plan_["transform"]`).
    point_mass : "auto", float or None
        A value that many targets have, such as 0 for rain or claims. A classifier learns the probability of
        this value, and a pool learns from the rows with any other target (`HurdleRegressor`). "auto" takes a
        value that at least a tenth of the targets have, if this hurdle model clearly lowers the CRPS of
        held-out rows.
    missing, time_order, random_state, memory_limit, time_limit, dtype, verbose, devices
        See `KernelGPRegressor`. The members share `time_limit`.

    Attributes
    ----------
    estimators_ : dict
        The fitted members with weights, by name.
    weights_ : dict
        The weight of each member. If the rows have times, these are the weights up to the last training time,
        and `plan_["later_weights"]` contains the weights for later rows.
    scores_ : dict
        For each member: NLPD and RMSE on held-out rows, in target units, and the fit time in seconds.
    target_
        "real", "positive" or "count".
    plan_
        Decisions and reasons. `estimators_[name].plan_` contains the decisions of a member.
    fit_report_
        Measured numbers, such as the number of held-out rows.
    n_rows_, n_iter_, converged_, history_, fit_seconds_, n_features_in_, feature_names_in_, target_name_
        See `KernelGPRegressor`.

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

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {**CHOICES, "target": (AUTO, REAL, "positive", COUNT)}
    likelihood: Any = field(default="auto", kw_only=True)
    target: str = field(default=AUTO, kw_only=True)
    point_mass: Any = field(default=AUTO, kw_only=True)

    @property
    def _fitted(self) -> Pool:
        parts = tuple(member._fitted for member in self.estimators_.values())
        return Pool(parts, self._pooling)

    @property
    def _point_mass(self) -> float | None:
        """The setting `point_mass` if it is a number, else None."""
        return None if self.point_mass is None or isinstance(self.point_mass, str) else float(self.point_mass)

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

        Raises ValueError or TypeError for invalid data or settings, or if no member can be fitted within
        `memory_limit`. Ctrl-C ends the fit; the pool then contains the members fitted so far. A second
        Ctrl-C, or Ctrl-C before the first member is fitted, raises KeyboardInterrupt: the pool is unchanged.

        Parameters
        ----------
        X, y, sample_weight, groups, callback
            See `KernelGPRegressor.fit`.
        checkpoint
            A path. Each member has its own file: the path plus the name of the member.
        """
        check_settings(self.get_params(deep=False), self._choices)
        own = self.likelihood
        resolve_likelihood(own.likelihood if isinstance(own, Warped) else own, KERNEL)
        with FitContext.open(self, checkpoint, callback) as context:
            place = EITHER if self.time_order == AUTO else self.time_order
            given = X, y, sample_weight, groups
            rows, encoder, _ = self._read_training(FeatureGPRegressor(), *given, context, place)
            in_time = rows.group is not None and groups is None
            settings = self._target_settings(rows, in_time, context)
            n_rows, (rows, role, fold) = len(rows), self._divide(rows, in_time, context)
            candidates = self._candidates(rows, role, fold)
            members = fit_members(self, candidates, rows.take(role == LEARNED), encoder, context, settings)
            scores = {name: {"seconds": member.fit_seconds_} for name, member in members.items()}
            context.bar.part("comparing the members", len(members), len(members) + N_PARTS_AFTER)
            weights = self._weigh(members, rows, role, fold, scores, context)
            members = {name: members[name] for name in weights.names}
            context.bar.part("learning from all rows", len(scores) + 1, len(scores) + N_PARTS_AFTER)
            self._refit(members, rows, role, scores, context)
            return self._store(members, weights, scores, n_rows, y, encoder, context)

    def _target_settings(self, rows: Data, in_time: bool, context: FitContext) -> dict[str, Any]:
        """Set `target_`, and return the likelihood setting of all members."""
        self.target_ = REAL if self.target == AUTO else self.target
        is_auto = isinstance(self.likelihood, str) and self.likelihood == AUTO
        settings: dict[str, Any] = {} if is_auto else {"likelihood": self.likelihood}
        is_default = self.target == AUTO and is_auto and isinstance(self.members, str)
        if is_default and self._point_mass is None:
            apart = rows.apart()
            self.target_ = choose_counts(apart, context)
            # If rows have times, log(y + c) is not tried, because it made predictions of later rows worse.
            if self.target_ == REAL and not in_time and (T := choose_transform(apart, context)) is not None:
                settings["likelihood"] = Warped(AUTO, T)
        if self.target_ == REAL:
            return settings
        if isinstance(self.likelihood, Warped):
            raise ValueError(
                f"target={self.target!r} already transforms the targets; remove Warped from the likelihood"
            )
        return {"likelihood": Warped(self.likelihood, "log" if self.target_ == "positive" else COUNT)}

    def _divide(self, rows: Data, in_time: bool, context: FitContext) -> tuple[Data, Roles, Roles | None]:
        """Return the rows, their roles and, for cross-validation, their folds."""
        apart, generator = rows.apart(), np.random.default_rng(context.seed("division"))
        if self._point_mass is not None or len(apart) < MIN_ROWS_FOLDS:
            return apart, np.full(len(apart), LEARNED), None
        if in_time and len(apart) >= MIN_ROWS_HELD_OUT:
            return apart, held_out_in_time(apart, self.time_order == AUTO, generator), None
        names = MEMBERS_OF_FEW if isinstance(self.members, str) else self.members
        is_folded = not isinstance(self.members, Mapping) and FOLDED.issuperset(names)
        if len(apart) >= MIN_ROWS_HELD_OUT or not is_folded:
            return apart, held_out(apart, generator), None
        fold = folds(len(rows), rows.group, N_FOLDS, context.seed("division"))
        return rows, np.full(len(rows), LEARNED), fold

    def _candidates(self, rows: Data, role: Roles, fold: Roles | None) -> dict[str, Any]:
        """Return the members to fit. If rows have times, one member is scored on single rows."""
        if self._point_mass is not None:
            return {POINT_MASS: self._hurdle(self._point_mass, rows)}
        in_time = bool((role >= BLOCK).any())
        names = MEMBERS if fold is None else MEMBERS_OF_FEW
        found = named_members(self.members, names, REGRESSORS, rows, self.memory_limit, RegressorMixin)
        first = next(iter(found))
        if fold is None and not role.any():
            found = {first: found[first]}
        elif in_time and self.time_order == AUTO and not isinstance(self.members, Mapping):
            single = {first: clone(found[first])}
            found = single | {name + BY_BLOCKS: member for name, member in found.items()}
        is_tried = self.point_mass == AUTO and self.ensemble and isinstance(self.members, str)
        is_tried = is_tried and self.target_ != COUNT and role.any()
        if is_tried and (value := frequent(rows)) is not None:
            found[POINT_MASS + (BY_BLOCKS if in_time else "")] = self._hurdle(value, rows)
        return found

    def _hurdle(self, value: float, rows: Data) -> HurdleRegressor:
        """Return a hurdle model with a pool of these settings. Raises ValueError for counts."""
        if self.target_ == COUNT:
            raise ValueError(
                "point_mass cannot be used with counts, because a model of counts already assigns a probability to each number"
            )
        others = rows.take(rows.y != value)
        # The regressor treats targets that differ from the point mass as continuous.
        target = self.target_ if len(others) and may_be_counts(others) else self.target
        regressor: Any = clone(self)
        regressor.set_params(point_mass=None, target=target)
        return HurdleRegressor(value, GPClassifier(), regressor)

    def _weigh(
        self, members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None,
        scores: dict[str, dict[str, float]], context: FitContext,
    ) -> PoolWeights:  # fmt: skip
        """Return the weights of the members from predictions of held-out rows."""
        first = next(iter(members))
        if len(members) == 1 and (fold is not None or POINT_MASS in members):
            return alone(first, "there is no other member")
        if fold is None and not role.any():
            return alone(first, f"{len(rows):,} rows are too few to compare members")
        predictions = predict_held_out(members, rows, role, fold, context)
        if predictions is None:
            best = first + BY_BLOCKS if first + BY_BLOCKS in members else first
            return alone(best, "there was no time to compare members")
        context.report["held_out_rows"] = len(predictions.y)
        record_scores(predictions, scores)
        middle = np.average(predictions.y, weights=predictions.weight)
        context.report["constant_rmse"] = predictions.rmse(middle)
        hurdles = [name for name in predictions.names if name.startswith(POINT_MASS)]
        others = predictions.of([name for name in predictions.names if name not in hurdles])
        if others.far is not None:
            others = widen_for_later_times(members, others, context)
        weights = weigh(others, self.ensemble, None if others.far is None else rows)
        for name in hurdles:
            cluster = held_out_clusters(members, predictions.rows)
            weights = unless_preferred(name, weights, others, predictions, cluster)
        if POINT_MASS in weights.names[0]:
            others = predictions
        else:
            if self.target == AUTO and shift_of(others.rows) is not None:
                weights = truncate(weights, others, context)
            weights = calibrated(weights, others, PITRecalibration, context)
        context.report["coverage_90"] = others.coverage(weights, 0.9)
        return weights

    def _refit(
        self, members: dict[str, Any], rows: Data, role: Roles, scores: dict[str, dict[str, float]],
        context: FitContext,
    ) -> None:  # fmt: skip
        """Update the members with the held-out rows, or refit them on all rows."""
        held, widths = rows.take(role != LEARNED), context.report.get("widths", {})
        haste = deadline.within(0.0 if context.is_interrupted else None)
        with haste, context.interruptible("the refits"):
            for name, member in members.items() if len(held) else ():
                grouped = rows if takes_groups(name, scores) else dataclasses.replace(rows, group=None)
                is_due = (role >= BLOCK).any() or (
                    has_trees(member) and len(held) > MIN_REFIT_SHARE * len(rows)
                )
                is_due = is_due and deadline.left() >= scores[name]["seconds"]
                if not (is_due and refitted_on_all(member, grouped, widths.get(name, 1.0))):
                    update_member(member, held)
