"""Pools of targets that have one value again and again: fitted, and compared with pools that know nothing of it."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from sklearn.base import clone

from stochgp.data.rows import Rows
from stochgp.distributions import AbstractDistribution
from stochgp.estimators.settings import CHOICES
from stochgp.pools.joining import raise_interrupt_of, with_encoder
from stochgp.pools.point_mass import Hurdle, frequent
from stochgp.pools.pool_division import HeldOut
from stochgp.pools.pool_run import Given
from stochgp.pools.pooled import FEWEST_ROWS as FEWEST_COMPARED
from stochgp.pools.pooled import PooledEstimator
from stochgp.pools.pooled_classifier import GPClassifier
from stochgp.pools.pooling import Compared, alone
from stochgp.pools.target_choice import (
    COUNT,
    REAL,
    Kind,
    kind_of_targets,
    may_be_counts,
    prefer_by_crps,
)
from stochgp.selection.likelihood import AUTO
from stochgp.training_data.new_rows import BETWEEN
from stochgp.training_data.progress import say

FEWEST_ROWS = 10  # of the value, and of others
AT_VALUE, ELSEWHERE = "at_value", "elsewhere"  # members of a hurdle model
KEEP = {"target_outliers": "keep"}  # of members: the pool has looked at the targets
# A hurdle model as a member, and the share of the CRPS of the others that it is to gain.
POINT_MASS, LEAST_GAIN = "point_mass", 0.01


@dataclass(eq=False, repr=False)
class HurdleEstimator(PooledEstimator):
    """A pool of real, positive or whole numbers, and maybe a hurdle model: y is `point_mass` with a probability that a classifier learns, and else what a pool

    of the other rows predicts.
    """

    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = {**CHOICES, "target": (AUTO, *CHOICES["target"])}
    target: str = field(default=AUTO, kw_only=True)
    point_mass: Any = field(default=AUTO, kw_only=True)

    @abc.abstractmethod
    def _compared_without(self, rows: Rows, division: HeldOut) -> Compared:
        """`_compared`, of the members but for a hurdle model."""

    @abc.abstractmethod
    def _scored(
        self, name: str, new: Rows, weight: Float[np.ndarray, " R"]
    ) -> tuple[AbstractDistribution, np.ndarray, np.ndarray]:
        """(Distributions, log densities, means) of held-out rows by this member; adds to `scores_`."""

    def _further(self, rows: Rows, names: Sequence[str], ending: str) -> dict[str, tuple[Any, bool]]:
        """A hurdle model, where targets have a value again and again."""
        is_asked = self.point_mass == AUTO and self.ensemble and isinstance(self.members, str)
        is_asked = is_asked and self.target_ != COUNT and len(rows) >= FEWEST_COMPARED
        value = frequent(rows) if is_asked else None
        return {} if value is None else {POINT_MASS + ending: (type(self)(point_mass=value), True)}

    @property
    @abc.abstractmethod
    def _asks_nothing(self) -> bool:
        """Whether each family has its own default likelihood."""

    @property
    def _is_hurdle(self) -> bool:
        """Whether a value is asked for."""
        return not (self.point_mass is None or isinstance(self.point_mass, str))

    def _fit_block_by_block(
        self, files: Any, target: Any, others: dict[str, Any], given: Given, why: str
    ) -> None:
        if self._is_hurdle:
            raise ValueError(f"point_mass is {self.point_mass:g}, which needs the rows in memory: {why}")
        self.target_ = REAL if self.target == AUTO else self.target
        super()._fit_block_by_block(files, target, others, given, why)

    def _fit(self, rows: Rows, encoder: Any, entries: dict[str, Any], grouped: bool, given: Given) -> None:
        kind = self._kind_of_targets(rows, rows.group is not None and not grouped, given)
        self.target_, self._shift, entries = kind.target, kind.shift, {**entries, **kind.entries}
        if not self._is_hurdle:
            super()._fit(rows, encoder, entries, grouped, given)
        else:
            self._fit_hurdle(Hurdle.of(self.point_mass, rows.y), rows, encoder, entries, given)

    def _kind_of_targets(self, rows: Rows, in_time: bool, given: Given) -> Kind:
        if self.target != AUTO:
            return Kind(self.target)
        if not self._asks_nothing or self._is_hurdle or isinstance(self.members, Mapping):
            return Kind()
        seed = given.seeds(1)[0]
        settings = {name: getattr(self, name) for name in ("dtype", "memory_limit", "devices")}
        settings |= {"random_state": seed, "missing": "refuse", "new_rows": BETWEEN, **KEEP}
        return kind_of_targets(rows.apart(), in_time, seed, settings)

    def _fit_hurdle(
        self, hurdle: Hurdle, rows: Rows, encoder: Any, entries: dict[str, Any], given: Given
    ) -> None:
        """Raises ValueError where few targets have the value, or few another one, and for counts."""
        if self.target_ == COUNT:
            raise ValueError("point_mass is for continuous targets: a model of counts has zeros of its own")
        at, others = hurdle.has(rows.y), hurdle.elsewhere(rows)
        if min(at.sum(), len(others)) < FEWEST_ROWS:
            raise ValueError(
                f"point_mass is {hurdle.value:g}, the target of {at.sum()} of {len(rows)} rows; at least {FEWEST_ROWS} must have it, and {FEWEST_ROWS} another one"
            )
        elsewhere: Any = clone(self)
        # Beside a point mass targets are continuous.
        target = self.target_ if may_be_counts(others) else self.target
        parts = {
            AT_VALUE: (GPClassifier(), rows, at),
            ELSEWHERE: (elsewhere.set_params(point_mass=None, target=target, **KEEP), others, others.y),
        }
        self.estimators_, self.scores_ = {}, {}
        for k, (name, (member, part, y)) in enumerate(parts.items()):
            say(self.verbose, f"{name}, {k + 1} of {len(parts)}: {type(member).__name__}")
            member.set_params(**self._settings_of(name, given.seeds(3)[k + 1], len(parts) - k))
            member.fit(part.X, y, part.weight, groups=part.group, **given.of(name))
            if name == AT_VALUE:  # without the other member this is no model
                raise_interrupt_of(member)
            with_encoder(member, encoder, self)
            self.estimators_[name], self.scores_[name] = member, {"seconds": member.fit_seconds_}
        share = float(np.average(at, weights=rows.weights))
        self.weights_ = {AT_VALUE: share, ELSEWHERE: 1 - share}
        self._pooling, self._correction = hurdle, None
        self._report(len(rows), entries, 0, alone(0, f"{share:.1%} of the targets are {hurdle.value:g}"))

    def _compared(self, rows: Rows, division: HeldOut) -> Compared:
        hurdles = {name: found for name, found in self.estimators_.items() if name.startswith(POINT_MASS)}
        if len(hurdles) == len(self.estimators_):
            return Compared(alone(0, "there is no other member"))
        for name in hurdles:
            del self.estimators_[name]
        try:
            found = self._compared_without(rows, division)
        finally:
            self.estimators_ |= hurdles
        for name in hurdles:
            found = self._unless_preferred(name, found)
        return found

    def _unless_preferred(self, name: str, found: Compared) -> Compared:
        """The hurdle model alone, where its CRPS of held-out rows is clearly lower than that of the others, else these."""
        if found.rows is None:
            return found
        new, (distribution, _, _) = found.rows, self._scored(name, found.rows, found.rows.weights)
        preferred = prefer_by_crps(found.mixed(), {name: distribution}, new, self._cells(new), LEAST_GAIN)
        picked = found.picked
        if not preferred.gains:  # one of the two has no finite scores
            return found
        why = preferred.why
        if preferred.name is None:
            return found._replace(picked=picked._replace(why=f"{picked.why}; {why}"))
        distributions = [*found.distributions, distribution]
        number = list(self.estimators_).index(name)
        return found._replace(picked=alone(number, f"{why}: {picked.why}"), distributions=distributions)

    def parts(self, rows: Rows) -> Iterator[tuple[Any, Rows]]:
        """(A member, those of new rows that it learns from): of a hurdle model the members elsewhere, and the rows of other values."""
        found, some = self.estimators_, rows
        if isinstance(self._pooling, Hurdle):
            found, some = found[ELSEWHERE].estimators_, self._pooling.elsewhere(rows)
        for member in found.values():
            inner = isinstance(member, HurdleEstimator)
            yield from member.parts(some) if inner else ((member, some),)
