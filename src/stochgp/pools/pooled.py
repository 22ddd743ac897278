"""What pools share: members of several families learn from most of the rows, and are weighed by how they predict the others."""

import abc
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from sklearn.base import ClassifierMixin, RegressorMixin, clone

from stochgp import deadline
from stochgp.budget import MemoryLimitError, release
from stochgp.choosing import Decisions, choice
from stochgp.compiled import kept_on_disk
from stochgp.data.rows import Rows
from stochgp.deadline import TimeIsUpError, within
from stochgp.estimators.predictor import PosteriorEstimator, restored_on_error
from stochgp.estimators.report import PLANNED
from stochgp.estimators.settings import CHOICES, check_settings
from stochgp.names import lookup, printable
from stochgp.numerics.clustered import clusters
from stochgp.pools.joining import raise_interrupt_of, with_encoder
from stochgp.pools.pool_division import HeldOut, held_out, held_out_in_time
from stochgp.pools.pool_run import Given
from stochgp.pools.pooling import Chosen, Compared, Pooling, alone
from stochgp.results import RESULTS
from stochgp.selection.kernel_choice import short_days
from stochgp.storage.checkpoint import CheckpointError, key_of_run
from stochgp.storage.writing import check_can_write
from stochgp.training_data.files import are_files
from stochgp.training_data.inputs import name_of_targets
from stochgp.training_data.progress import say
from stochgp.warning import silent

FEWEST_ROWS = 1_000  # from which rows are held out and members compared
AFTER_CTRL_C = 10.0  # seconds to compare the members that there are
FOR_THE_END = 0.35  # of a time limit: members are compared, and take in the held-out rows
SECONDS = 1.0  # for each member that is left, or no further one begins
AS_THEY_ARE = "as they are"  # probabilities
NOT_EXCHANGEABLE = "rows of later times are not exchangeable with those held out"
ON_BLOCKS = "_by_blocks"  # of the name of a member that is judged by whole blocks of time


@dataclass(eq=False, repr=False)
class PooledEstimator(PosteriorEstimator):
    """An estimator of several: a leaf says what the members are, how they are compared, and how held-out rows join them.

    missing, new_rows, random_state, memory_limit, time_limit, dtype, verbose, devices
                    as of every estimator (`KernelGPRegressor`); `time_limit` is shared by the members
    """

    # scikit-learn wants any value taken by `__init__`, and judged in `fit`.
    __no_type_check__: ClassVar[bool] = True
    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = CHOICES  # what settings may be
    _of_files: ClassVar[str]  # the family that reads rows block by block
    _alone_of_files: ClassVar[str] = ""  # why it is alone also where rows would fit
    _of_correction: ClassVar[str]  # what corrects probabilities
    _n_auto: ClassVar[int] = 2  # how many of the families "auto" takes, the first ones
    # Those that "auto" takes of rows that are held out fold by fold, if not all.
    _of_few: ClassVar[tuple[str, ...]] = ()
    _on_blocks: ClassVar[tuple[str, ...]] = ()  # those of blocks of time, if not the same
    ensemble: bool = True
    members: Any = field(default="auto", kw_only=True)
    missing: str = field(default="auto", kw_only=True)
    new_rows: str = field(default="auto", kw_only=True)
    random_state: Any = field(default=None, kw_only=True)
    memory_limit: str | int | float | None = field(default=None, kw_only=True)
    time_limit: float | None = field(default=None, kw_only=True)
    dtype: str = field(default="float32", kw_only=True)
    verbose: int = field(default=0, kw_only=True)
    devices: Any = field(default=None, kw_only=True)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "PooledEstimator":
        """Fit the members and their weights.

        Raises ValueError or TypeError, in one line, for data or settings that cannot be used, and where no member can be fitted within `memory_limit`.
        Ctrl-C ends the fit with the members fitted so far. A second one, or one before there is a member, raises, and the pool stays as it was.

        Parameters
        ----------
        X, y, sample_weight, groups, callback
            As of every estimator (`KernelGPRegressor.fit`).
        checkpoint
            A file for each member, its name with the member's at the end. Without `random_state` the file of this name keeps the seed.
        """
        check_settings(self.get_params(deep=False), self._choices)
        if checkpoint is not None:
            check_can_write(checkpoint)
        begun = time.perf_counter()
        with restored_on_error(self), within(self.time_limit), kept_on_disk():
            given = Given(key_of_run(checkpoint, self.random_state), checkpoint, callback, {})
            why = self._alone_of_files if are_files(X) else ""
            try:
                found = None if why else self._read_rows(X, y, sample_weight, groups, given)
            except MemoryLimitError as refusal:
                if not are_files(X):
                    raise
                found, why = None, str(refusal)
            if found is None:
                self._fit_block_by_block(X, y, {"sample_weight": sample_weight, "groups": groups}, given, why)
            else:
                self._fit(*found, groups is not None, given)
        release()
        self.target_name_ = name_of_targets(y)
        self.fit_seconds_ = time.perf_counter() - begun
        return self

    @abc.abstractmethod
    def _read_rows(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, given: Given
    ) -> tuple[Rows, Any, dict[str, Any]]:
        """(Rows in the user's units, what made numbers of them, what `plan_` says of that). Raises MemoryLimitError for files to be read block by block."""

    @abc.abstractmethod
    def _families(self) -> Mapping[str, Callable[[], Any]]:
        """Members by name, of those that take the pool's settings; "auto" takes the first `_n_auto`, few rows the first."""

    @abc.abstractmethod
    def _compared(self, rows: Rows, division: HeldOut) -> "Compared":
        """How the members predict the held-out rows; adds to `scores_`. Raises TimeIsUpError where that would not end in time."""

    @abc.abstractmethod
    def _correction_by(self, compared: "Compared", new: Rows) -> tuple[Any, str]:
        """(The correction of the probabilities of what stays by the held-out rows, in words). Raises ValueError where these cannot say."""

    @abc.abstractmethod
    def _closed(self, rows: Rows, division: HeldOut, compared: "Compared") -> dict[str, Any]:
        """The held-out rows join the members that stay; what `plan_` says of that."""

    def _corrected(self, division: HeldOut, compared: "Compared") -> dict[str, Any]:
        """Sets the correction of the probabilities, where the held-out rows ask for one; what `plan_` says of it."""
        if division.in_time and compared.far is None:
            return {"probabilities": choice(AS_THEY_ARE, NOT_EXCHANGEABLE)}
        rows = compared.table if compared.rows is None else compared.rows
        if rows is None:  # nothing was compared, or one member stays as it is
            return {}
        try:
            made, words = self._correction_by(compared, rows)
        except ValueError as refusal:
            return {"probabilities": choice(AS_THEY_ARE, str(refusal))}
        if made.is_identity:
            why = f"held-out rows do not clearly gain by another {self._of_correction}"
            return {"probabilities": choice(AS_THEY_ARE, why)}
        self._correction = made
        why = f"gains {made.gain:.4f} nats a row by {made.n_rows:,} held-out rows"
        return {"probabilities": choice(words, why)}

    def _cells(self, new: Rows) -> Int[np.ndarray, " R"]:
        """Of held-out rows: sums over a cell, a group or near rows, are taken as independent."""
        inputs = next(iter(self.estimators_.values()))._fitted.inputs
        return clusters(np.asarray(inputs.transform(new.X, np.float64)), new.group)

    def _targets_of(self, rows: Rows) -> np.ndarray:
        """What members learn, of rows in memory."""
        return rows.y

    def _shared(self) -> dict[str, Any]:
        """Settings that all members get beside those of every estimator."""
        return {}

    def _division(self, rows: Rows, in_time: bool, generator: np.random.Generator) -> HeldOut | None:
        """Which rows no member sees before they are compared; None: members are not compared. `in_time`: groups are blocks of time."""
        if len(rows) < FEWEST_ROWS:
            return None
        if in_time:
            return held_out_in_time(rows, self.new_rows == "auto", generator)
        return held_out(rows, generator)

    def summary(self) -> str:
        """What was tried, what it scored and cost, what stays with which weight, and what was decided; `estimators_[name].summary()` says more of one."""
        lines = [
            f"{type(self).__name__}{f' of {self.target_name_!r}' if self.target_name_ else ''}, fitted in {self.fit_seconds_:.1f} s",
            f"Data: {self.n_rows_} rows (equal ones counted once)",
            "Members, by held-out rows:" if len(self.scores_) > 1 else "Member:",
        ]
        for name, found in self.scores_.items():
            weight = f"weight {self.weights_[name]:.2f}" if name in self.weights_ else "left out"
            scored = "".join(f"{score} {found[score]:.4g}, " for score in found if score != "seconds")
            lines.append(f"  {name}: {weight}; {scored}{found['seconds']:.1f} s")
        own = Decisions({name: entry for name, entry in self.plan_.items() if "." not in name})
        return printable("\n".join([*lines, "", "Chosen:", str(own)]))

    def _fit(self, rows: Rows, encoder: Any, entries: dict[str, Any], grouped: bool, given: Given) -> None:
        in_time, n_different, rows = rows.group is not None and not grouped, len(rows), rows.apart()
        division = self._division(rows, in_time, np.random.default_rng(given.seeds(1)[0]))
        by_blocks = in_time and self.new_rows == "auto"
        candidates = self._candidates(by_blocks, division)
        if division is not None:
            candidates |= self._further(rows, list(candidates), ON_BLOCKS if by_blocks else "")
        seen = rows if division is None else rows.some(~division.all)
        fitted, seconds = self._fitted_members(candidates, seen, encoder, given)
        self.estimators_, self.scores_ = fitted, {name: {"seconds": seconds[name]} for name in fitted}
        compared = self._picked(rows, division, given)
        picked = compared.picked
        names = [list(fitted)[k] for k in picked.members]
        self.estimators_ = {name: fitted[name] for name in names}
        self.weights_ = dict(zip(names, picked.average.tolist(), strict=True))
        self._pooling = compared.pooling
        self._correction = None
        of_rows, free = {}, 0.0 if given.is_interrupted else None
        with within(free), given.interruptible("what follows the comparison"):
            of_rows = {} if division is None else self._closed(rows, division, compared)
        for member in self.estimators_.values():
            with_encoder(member, encoder, self)
        n_held_out = 0 if division is None else int(division.all.sum())
        if compared.rows is not None:
            n_held_out = max(n_held_out, len(compared.rows))
        elif division is not None and n_held_out == 0:  # fold by fold
            n_held_out = n_different
        self._report(n_different, entries | of_rows | given.entries, n_held_out, picked)

    def _fit_block_by_block(
        self, files: Any, target: Any, others: dict[str, Any], given: Given, why: str
    ) -> None:
        """The one family that needs few of the rows in memory. `others` are arguments of `fit` of rows in memory, which it refuses."""
        name = self._of_files
        member = lookup(name, self._families(), "members")()
        self._set(member, name, given.seeds(2)[1], 1)
        own = {
            key: getattr(self, key)
            for key in ("missing", "new_rows", "target_outliers")
            if hasattr(self, key)
        }
        member.set_params(**own)
        member.fit(files, target, **others, **given.of(name))
        self.estimators_, self.weights_, self._correction = {name: member}, {name: 1.0}, None
        self.scores_ = {name: {"seconds": member.fit_seconds_}}
        self._pooling = Pooling(np.zeros(1), np.zeros(1))
        for attribute in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(member, attribute):
                setattr(self, attribute, getattr(member, attribute))
        self._report(member.n_rows_, {}, 0, alone(0, f"the rows are read block by block: {why}"))

    def _picked(self, rows: Rows, division: HeldOut | None, given: Given) -> Compared:
        """The members that stay, by their predictions."""
        if division is None:
            return Compared(alone(0, f"{len(rows):,} rows are too few to compare members"))
        compared, free = None, AFTER_CTRL_C if given.is_interrupted else None
        try:
            with within(free), given.interruptible("the comparison"):
                compared = self._compared(rows, division)
            if compared is None:  # once more, in haste
                with within(AFTER_CTRL_C):
                    compared = self._compared(rows, division)
        except TimeIsUpError:
            given.end(RESULTS.time_limit, "there was no time to compare members")
            names = list(self.estimators_)
            first = names[0] + ON_BLOCKS if names[0] + ON_BLOCKS in names else names[0]
            scored = {name: self.scores_[name]["nlpd"] for name in names if "nlpd" in self.scores_[name]}
            best = min(scored, key=lambda name: scored[name], default=first)
            return Compared(alone(names.index(best), "there was no time to compare members"))
        return compared

    def _candidates(self, by_blocks: bool, division: HeldOut | None) -> dict[str, tuple[Any, bool]]:
        """Name → (an estimator, whether it is given the groups). `by_blocks`: of rows near and far, one for the first and all for the others."""
        known, compares = self._families(), division is not None
        named = not isinstance(self.members, str)
        if not named:
            lookup(self.members, {"auto": None}, "members")
        few = division is not None and not division.all.any()
        few = [name for name in self._of_few if few and name in known]
        names = (list(self.members) if named else list(few or known)[: self._n_auto])[
            : None if compares else 1
        ]
        if isinstance(self.members, Mapping):
            wanted = ClassifierMixin if isinstance(self, ClassifierMixin) else RegressorMixin
            for name, member in self.members.items():
                if not isinstance(member, wanted):
                    what = f"members[{name!r}] is a {type(member).__name__}"
                    raise TypeError(f"{what}, not a {wanted.__name__.removesuffix('Mixin').lower()}")
            return {name: (clone(self.members[name]), True) for name in names}
        made = lambda name: lookup(name, known, "members")()
        if not by_blocks:
            return {name: (made(name), True) for name in names}
        own = [name for name in self._on_blocks if name in known and compares and not named]
        return {names[0]: (made(names[0]), False)} | {
            name + ON_BLOCKS: (made(name), True) for name in own or names
        }

    def _further(self, rows: Rows, names: Sequence[str], ending: str) -> dict[str, tuple[Any, bool]]:
        """Candidates beside those of these names that the rows ask for; `ending` is that of their names."""
        return {}

    def _fitted_members(
        self, candidates: dict[str, tuple[Any, bool]], rows: Rows, encoder: Any, given: Given
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """(Those that could be fitted, their seconds). Raises the last error where there is none.

        What a short `time_limit` falls back on begins: quick ones, then the kernel of blocks of time, which errs less near the rows than the other far from them.
        """
        found, seconds, error = {}, {}, ValueError("members names no estimator")
        seeds = dict(zip(candidates, given.seeds(len(candidates) + 1)[1:], strict=True))
        is_quick = {name: self._is_quick(member) for name, (member, _) in candidates.items()}
        of_blocks = next(iter(candidates)) + ON_BLOCKS
        order = sorted(candidates, key=lambda name: (not is_quick[name], name != of_blocks))
        for k, name in enumerate(order):
            member, takes_groups = candidates[name]
            least = max([*seconds.values(), SECONDS * (len(candidates) - k)])
            if not all(is_quick[other] for other in found) and self._free() < least:
                given.end(RESULTS.time_limit, f"there was no time for {', '.join(order[k:])}")
                break
            say(self.verbose, f"{name}, {k + 1} of {len(candidates)}: {type(member).__name__}")
            self._set(member, name, seeds[name], len(candidates) - k)
            groups = rows.group if takes_groups else None
            self._suit(name, member, rows, short_days(encoder, len(rows), groups), found)
            if not isinstance(member, PooledEstimator):
                vars(member)["_encoder_of_pool"] = encoder  # names the columns in its warnings
            try:
                # The first member warns of the rows; the others would repeat it.
                with (
                    given.interruptible(f"the fit of {name!r}"),
                    contextlib.nullcontext() if name == next(iter(candidates)) else silent(),
                ):
                    member.fit(rows.X, self._targets_of(rows), rows.weight, groups=groups, **given.of(name))
                    found[name], seconds[name] = member, member.fit_seconds_
                    raise_interrupt_of(member)
                release()  # what compiling has left behind
            except ValueError as refused:
                if len(candidates) == 1 or isinstance(refused, CheckpointError):
                    raise
                error = refused
                given.leave_out(name, str(refused))
            if given.is_interrupted:
                break
        if not found:
            raise KeyboardInterrupt if given.is_interrupted else error
        return given.with_steps({name: found[name] for name in candidates if name in found}), seconds

    def _set(self, member: Any, name: str, seed: int, n_left: int) -> None:
        """The pool's settings for this member."""
        shared = self._settings_of(name, seed, n_left) | self._shared()
        if isinstance(self.members, Mapping):  # what the user has set there stays
            default = type(member)()
            shared = {
                key: value for key, value in shared.items() if getattr(member, key) == getattr(default, key)
            }
        member.set_params(**shared)

    def _settings_of(self, name: str, seed: int, n_left: int) -> dict[str, Any]:
        """Settings of every estimator, with its share of the time that is left."""
        left = None
        if self.time_limit is not None:
            left = max(self._free(), 0.1) / n_left
        return {
            "dtype": self.dtype, "memory_limit": self.memory_limit, "time_limit": left, "verbose": self.verbose,
            "new_rows": "between", "random_state": seed, "missing": "refuse", "devices": self.devices,
        }  # fmt: skip

    def _free(self) -> float:
        """Seconds that are left for further members."""
        return deadline.left() - FOR_THE_END * (self.time_limit or 0.0)

    def _is_quick(self, member: Any) -> bool:
        """Whether it takes next to no time beside the others."""
        return False

    def _suit(self, name: str, member: Any, rows: Rows, days: list[int], found: Mapping[str, Any]) -> None:
        """Settings of a member that depend on the rows, and on those that were `found`; `days` are the columns whose lengthscales start short."""

    def _report(self, n_rows: int, entries: dict[str, Any], n_held_out: int, picked: Chosen) -> None:
        members = self.estimators_
        plans = {
            f"{name}.{key}": entry for name, member in members.items() for key, entry in member.plan_.items()
        }
        ended = [entries["ended"]] if "ended" in entries else []
        ended += [member.plan_["ended"] for member in members.values()]
        late = next((entry for entry in ended if entry["choice"] != PLANNED), ended[0])
        own = {
            "members": choice(list(members), picked.why),
            "weights": choice(self.weights_, "mean over the held-out rows"),
            "held_out_rows": choice(
                n_held_out, "that no member had seen when they were compared; they were then learned from"
            ),
            "ended": late,
        }
        self.plan_ = Decisions(entries) | own | plans
        self.n_rows_ = n_rows
        self.n_iter_ = sum(member.n_iter_ for member in members.values())
        self.converged_ = late["choice"] == PLANNED and all(member.converged_ for member in members.values())
        self.history_ = [entry for member in members.values() for entry in member.history_]
