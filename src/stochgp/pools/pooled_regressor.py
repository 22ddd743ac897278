"""`GPRegressor`: a kernel GP, a feature GP, linear regression and trees, pooled."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import choice
from stochgp.data.rows import Rows
from stochgp.distributions import AbstractDistribution, PITRecalibration, recalibration
from stochgp.distributions.calibrating import recalibration_of_parts
from stochgp.distributions.curves import truncated
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.kernel import KernelGPRegressor
from stochgp.families.sparse import SparseGPRegressor
from stochgp.kernels import resolve
from stochgp.learners import LeaveOneOut
from stochgp.pools.comparing import LINE, Comparison
from stochgp.pools.hurdle import KEEP, HurdleEstimator
from stochgp.pools.joining import ANEW, has_trees, made_anew, takes_in
from stochgp.pools.point_mass import Hurdle
from stochgp.pools.pool import Pool
from stochgp.pools.pool_division import HeldOut
from stochgp.pools.pool_run import Given
from stochgp.pools.pooled import FEWEST_ROWS, ON_BLOCKS
from stochgp.pools.pooling import Compared
from stochgp.pools.target_choice import of_logarithm, shift_of
from stochgp.selection.choices import SPREAD
from stochgp.selection.kernel_choice import near_in_time
from stochgp.selection.likelihood import AUTO, FEATURE, KERNEL, SPARSE, Asked
from stochgp.selection.metric import COMPARE, INPUTS
from stochgp.selection.warping import untransformed
from stochgp.training_data.files import are_files, read_files
from stochgp.training_data.inputs import read_training_rows
from stochgp.training_data.new_rows import EITHER
from stochgp.training_data.units import LINEAR_MEAN, TREES

# Beyond so many rows the kernel GP of a pool is that of near rows: of 33,000 to 36,000 rows in a quarter of the seconds and a tenth of the memory, at 0.01 to
# 0.08 nats for it alone; up to 15,000 a solve of all rows takes as long as the rest of a fit, and gains 0.01 nats and 1 % RMSE.
GLOBAL_ROWS = 20_000

FACTORS = 2
LEAST_BELOW = 1e-3  # probability of numbers below 0, of positive targets

MANY = 0.05  # of the rows, held out, for which trees are learned again

FOLDS, FEWEST_IN_FOLDS = 5, 100  # of few rows

LINEAR = "linear"
OF_LOGARITHM = "_of_log"  # of the name of a member that learns log(y + c)

# Rows of a table with a time, up to which a feature GP is judged by blocks. Held-out blocks of larger ones left it out of nine pools of ten, for a tenth to a fifth of the time.
MOST_OF_FEATURES = 10_000

FAMILIES: dict[str, Callable[[], Any]] = {
    "kernel": KernelGPRegressor,
    "feature": FeatureGPRegressor,
    LINEAR: functools.partial(FeatureGPRegressor, LINEAR),
    TREES: functools.partial(FeatureGPRegressor, LINEAR, mean=TREES),
    "sparse": SparseGPRegressor,
    LINE: functools.partial(KernelGPRegressor, mean=LINEAR_MEAN),
}
LIKELIHOODS = {
    "kernel": KERNEL, "feature": FEATURE, LINEAR: FEATURE, TREES: FEATURE, "sparse": SPARSE, LINE: KERNEL,
}  # fmt: skip


@dataclass(eq=False, repr=False)
class GPRegressor(PosteriorRegressor, HurdleEstimator):
    """Gaussian process regression for any table: members of several families, mixed by how each predicts rows that none of them has seen.

    A tenth of the rows is held out: whole groups, where there are groups. Where the table says when its rows were taken it is a quarter: blocks of time, the last
    15 % of the rows and 5 % before them, and single rows, 5 %. Each member learns from the others. An observation is predicted as
    p(y | x) = Σ_k w_k(x) p_k(y | x), where the weights have the highest mean of log p(y) + log N(y | Σ_k w_k m_k, S) over the held-out rows, S the mean square of y − Σ_k w_k m_k: by densities and by means alike. They depend on the
    distance to the nearest training row where held-out rows gain by that: what is best between the training rows is not always best far from them. Of a table
    with a time there are two pools, by single rows and by blocks of time, and with the distance in time to the nearest training row the first gives way to
    the second. A member stays where it pays. The held-out rows then join the posteriors of those that stay; of a table with a time kernel GPs are made
    anew of all rows at their hyperparameters, and networks learned again, and trees in any table of which more than a twentieth was held out. Members that are judged by blocks of time have wider distributions
    where these blocks ask for it. Of 100 to 1,000 rows a kernel
    GP, linear regression and trees know all, and each fold of five is predicted by members that have learned from the others; fewer have a kernel GP alone.

    Parameters
    ----------
    ensemble : bool
        False: the one member that predicts held-out rows best.
    members
        "auto": a kernel GP, a feature GP, linear regression and linear regression around trees, and in tables with a time further ones that are judged by whole blocks of time (a feature GP of at most 10,000 rows); a list of
        names, "kernel", "kernel_and_line" (a kernel GP with a linear mean), "feature", "linear", "trees", "sparse"; or {name: estimator}.
    likelihood
        "auto", or what one of the families takes (`KernelGPRegressor`, `SparseGPRegressor`): members are of families that take it.
    target : "auto", "real", "positive" or "count"
        "positive": log y is modelled, so that predictions are positive. "count": log(y + ½), and predictions are whole numbers from 0 on. "auto": "count" of
        whole numbers, most of them small, where small kernel GPs say that rows they have not seen are clearly predicted better so; else "real", and of skew
        targets from 0 on members of log(y + c) are tried too, c half of the least positive target.
    point_mass : "auto", float or None
        A value that targets have again and again, such as 0 of rain or claims: y is this value with a probability that a classifier learns, "at_value", and
        else what a pool predicts that learned from the other rows, "elsewhere". "auto" tries the value that a tenth of the targets have, and five times as
        many as have any other; it takes this model in place of the pool where held-out rows gain in CRPS. None: never.
    target_outliers, missing, new_rows, random_state, memory_limit, time_limit, dtype, verbose, devices
        As of every estimator (`KernelGPRegressor`); `time_limit` is shared by the members.

    Attributes
    ----------
    estimators_ : dict
        The members that stay, by name, which predict on their own too.
    weights_ : dict
        The mean weight of each over the held-out rows.
    scores_ : dict
        Of every member that was tried its NLPD and RMSE by held-out rows, in target units, and its seconds.
    target_
        What `target` is, or was found to be.
    plan_
        Choices and reasons, those of a member under "member.name".
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

    _of_files: ClassVar[str] = "feature"
    _n_auto: ClassVar[int] = 4
    _of_few: ClassVar[tuple[str, ...]] = ("kernel", LINEAR, TREES)
    _on_blocks: ClassVar[tuple[str, ...]] = ("kernel", LINEAR, TREES, LINE)
    _of_correction: ClassVar[str] = "curve"
    likelihood: Any = field(default="auto", kw_only=True)
    target_outliers: str = field(default="warn", kw_only=True)

    @property
    def _fitted(self) -> Any:
        """The members as one."""
        parts = tuple(member._fitted for member in self.estimators_.values())
        if isinstance(self._pooling, Hurdle):
            return self._pooling.pool(*parts)
        return Pool(parts, self._pooling, self._correction)

    def _read_rows(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, given: Given
    ) -> tuple[Rows, Any, dict[str, Any]]:
        budget = Budget.of(self.memory_limit)
        if not are_files(X):
            place = EITHER if self.new_rows == "auto" else self.new_rows
            return read_training_rows(self, X, y, sample_weight, budget, self.missing, groups, new_rows=place)
        names = ("missing", "new_rows", "dtype", "target_outliers")
        like = FeatureGPRegressor(**{name: getattr(self, name) for name in names})
        others = {"sample_weight": sample_weight, "groups": groups}
        data, _ = read_files(like, X, y, others, budget, given.seeds(1)[0], keeps_all=True)
        for name in ("n_features_in_", "feature_names_in_"):
            setattr(self, name, getattr(like, name))
        return data.rows, data.encoder, data.entries

    def _families(self) -> Mapping[str, Callable[[], Any]]:
        """Raises the first family's ValueError or TypeError for a likelihood that none takes."""
        if self._asks_nothing:
            return FAMILIES
        found, refusal = {}, None
        for name, member in FAMILIES.items():
            try:
                Asked.of(untransformed(self.likelihood), LIKELIHOODS[name])
            except (TypeError, ValueError) as error:
                refusal = refusal or error
            else:
                found[name] = member
        if refusal is not None and not found:
            raise refusal
        return found

    def _shared(self) -> dict[str, Any]:
        return {"target": self.target_, **KEEP} | (
            {} if self._asks_nothing else {"likelihood": self.likelihood}
        )

    @property
    def _asks_nothing(self) -> bool:
        """Whether each family has its own default likelihood."""
        return isinstance(self.likelihood, str) and self.likelihood == AUTO

    def _further(self, rows: Rows, names: Sequence[str], ending: str) -> dict[str, tuple[Any, bool]]:
        """Besides, the same members for log(y + c), where that may be worth it; in tables with a time, whose names have an ending, it is not.

        These have a feature GP that learns its features, of at most 10,000 rows.
        """
        found = super()._further(rows, names, ending)
        if not isinstance(self.members, str):
            return found
        if ending:
            own = {"feature"} & set(self._families()) if len(rows) <= MOST_OF_FEATURES else ()
            return found | {name + ending: (FAMILIES[name](), True) for name in own}
        if self._shift is None:
            return found
        for name in names:
            found[name + OF_LOGARITHM] = of_logarithm(FAMILIES[name](), self._shift), True
        return found

    def _suit(self, name: str, member: Any, rows: Rows, days: list[int], found: Mapping[str, Any]) -> None:
        """Lengthscales are turned where rows have neither groups nor an order in time: there it took 1.5 times as long, and gained next to nothing.

        A kernel GP of log(y + c) begins at the kernel of that of y, in half of its seconds. One with a linear mean does not begin at that of a constant: on metro and
        flights it ended 0.02 to 0.15 nats from where it comes to by itself.
        """
        if isinstance(self.members, Mapping):  # what the user has set stays
            return
        if isinstance(member, KernelGPRegressor):
            prediction = "local" if len(rows) > GLOBAL_ROWS or self._is_short_for(rows) else "auto"
            kernel = _starting(member, rows.X.shape[1], days)
            metric = COMPARE if rows.group is None else INPUTS
            member.set_params(prediction=prediction, kernel=kernel, metric=metric)
            if (alike := found.get(name.removesuffix(OF_LOGARITHM))) is not None:
                _begin_at(member, alike)
        if isinstance(member, HurdleEstimator):
            member.set_params(target=self.target)  # what is elsewhere may be skew

    def _is_short_for(self, rows: Rows) -> bool:
        """Whether two factors of these rows, before and after held-out ones join, would take more than half of the memory that the user's limit leaves now.

        8,000 flights: a peak of 1.28 GB for 1.83, at the same scores.
        """
        limit = self.memory_limit
        return limit is not None and FACTORS * 8 * len(rows) ** 2 > Budget.of(limit).free() / 2

    def _is_quick(self, member: Any) -> bool:
        return getattr(member, "features", None) == LINEAR

    def _division(self, rows: Rows, in_time: bool, generator: np.random.Generator) -> HeldOut | None:
        """Of few rows none: they are held out fold by fold (`_compared_by_folds`)."""
        if in_time or not FEWEST_IN_FOLDS <= len(rows) < FEWEST_ROWS:
            return super()._division(rows, in_time, generator)
        return HeldOut.fold_by_fold(rows, FOLDS, generator)

    def _compared_without(self, rows: Rows, division: HeldOut) -> Compared:
        return self._comparison.of(rows, division)

    def _scored(
        self, name: str, new: Rows, weight: Float[np.ndarray, " R"]
    ) -> tuple[AbstractDistribution, np.ndarray, np.ndarray]:
        return self._comparison.scored(name, new, weight)

    @property
    def _comparison(self) -> Comparison:
        return Comparison(self.estimators_, self.scores_, self._cells, self.ensemble)

    def _groups_of(self, name: str, rows: Rows) -> np.ndarray | None:
        """Those that this member is given: none where it is judged by single rows beside others that are judged by blocks."""
        by_blocks = any(other.endswith(ON_BLOCKS) for other in self.scores_)
        return rows.group if name.endswith(ON_BLOCKS) or not by_blocks else None

    def _closed(self, rows: Rows, division: HeldOut, compared: Compared) -> dict[str, Any]:
        """Into the posteriors, where the family can take them and time and memory suffice: hyperparameters and features stay."""
        compared, found = self._truncated(rows, division, compared)
        self._pooling = compared.pooling
        found |= self._corrected(division, compared)
        if not division.all.any():
            return found
        new = rows.some(division.all)
        anew = [
            name
            for name in self.estimators_
            if self._asks_anew(name, division) and self._made_anew(name, rows, compared.widths.get(name, 1.0))
        ]
        remade = [self.estimators_[name] for name in anew]
        joined = [takes_in(member, part) for member, part in self.parts(new) if member not in remade]
        pooling, distance = compared.pooling, compared.pooling.distance
        if distance is not None and all(joined):
            self._pooling = dataclasses.replace(pooling, distance=distance.joined(new.X))
        if compared.widths:
            why = "factors of variances, for rows of later times, by blocks that were held out"
            found["widths"] = choice(dict(compared.widths), why)
        return found | ({"refit": choice(anew, ANEW)} if anew else {})

    def _truncated(
        self, rows: Rows, division: HeldOut, compared: Compared
    ) -> tuple[Compared, dict[str, Any]]:
        """Distributions of positive numbers for positive, skewed targets, if the CRPS of held-out rows is not higher; what `plan_` says of it."""
        if self.target != AUTO or rows.y.min() <= 0 or shift_of(rows) is None:
            return compared, {}
        parts = list(compared.held_out(rows))
        if not any(not found.has_masses and (found.cdf(0.0) > LEAST_BELOW).any() for _, found in parts):
            return compared, {}
        weight = np.concatenate([new.weights for new, _ in parts])
        before, after = (
            float(np.average(np.concatenate([of(found).crps(new.y) for new, found in parts]), weights=weight))
            for of in (lambda found: found, truncated)
        )
        why = f"whether distributions are cut at 0, as all targets are positive: CRPS of held-out rows {after:.5g} with the cut, {before:.5g} without"
        return compared._replace(positive=after <= before), {"positive": choice(after <= before, why)}

    def _asks_anew(self, name: str, division: HeldOut) -> bool:
        """Whether the rows are in the order of time, or trees are to see the many that were held out."""
        return division.in_time or (has_trees(self.estimators_[name]) and bool(division.all.mean() > MANY))

    def _made_anew(self, name: str, rows: Rows, width: float) -> bool:
        """Whether this member is now one of all these rows (`made_anew`), with its factor of variances."""
        if deadline.left() < self.scores_[name]["seconds"]:
            return False
        return made_anew(self.estimators_[name], rows, self._groups_of(name, rows), width)

    def _correction_by(self, compared: Compared, new: Rows) -> tuple[PITRecalibration, str]:
        """Of the probabilities of the pool, or of the one member that stays (a beta-transformed pool: Ranjan and Gneiting 2010).

        In tables with a time only of rows between the training rows: single ones are exchangeable with those that were held out one by one.
        """
        parts = list(compared.held_out(new))
        if any(found.has_masses for _, found in parts):
            raise ValueError("a correction is of continuous distributions")
        if compared.far is None:
            made = recalibration_of_parts([(found, part.y, part.group, part.weight) for part, found in parts])
            return made, f"Beta({made.a:.3g}, {made.b:.3g}) of F"
        near = np.flatnonzero(~compared.far)
        rows = new.some(near)
        strength = compared.pooling.strength(rows.X)
        made = recalibration(compared.mixed()[near], rows.y, weight=rows.weight, strength=strength)
        return made, f"Beta({made.a:.3g}, {made.b:.3g}) of F near the training rows, of later ones F"


def _starting(member: KernelGPRegressor, n_inputs: int, days: list[int]) -> Any:
    """Its kernel, from where a member that is given the table itself would start: members see only numbers."""
    return near_in_time(resolve(member.kernel, n_inputs, dtype=member.dtype), days) if days else member.kernel


def _begin_at(member: KernelGPRegressor, alike: KernelGPRegressor) -> None:
    """Learns from the hyperparameters of another on: neighbours are searched twice at most, and lengthscales stay along its directions."""
    member.set_params(kernel=alike.kernel_, metric=INPUTS)
    if alike.plan_["learner"]["choice"] == LeaveOneOut.__name__:
        member.set_params(learner=LeaveOneOut(spread=SPREAD, searches=1))
