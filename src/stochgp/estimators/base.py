"""The one fit of all regressors: read, standardise, start, learn, solve, report."""

import abc
import dataclasses
import html
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import estimator_html_repr

from stochgp import deadline
from stochgp.choosing import AS_GIVEN, Decisions, choice
from stochgp.compiled import kept_on_disk
from stochgp.context import restored_on_error
from stochgp.data.model_rows import ModelRows
from stochgp.data.rows import Rows
from stochgp.data.streams import AbstractSource, SomeRows
from stochgp.deadline import granted, within
from stochgp.devices import ONE, Devices
from stochgp.estimators.calibrating import calibrated
from stochgp.estimators.fitted import Fitted
from stochgp.estimators.helps import Scores, caution_after_fit
from stochgp.estimators.predictor import PosteriorEstimator
from stochgp.estimators.report import (
    PLANNED,
    describe_end,
    describe_learning,
    learning_text,
    notes,
    shared_steps,
    worse_than_a_constant,
)
from stochgp.estimators.settings import DTYPES, check_settings
from stochgp.estimators.summary import summarise
from stochgp.learners import AbstractLearner, fit
from stochgp.learning.log import Report
from stochgp.learning.placing import place, rows_in_time
from stochgp.likelihoods import AbstractLikelihood
from stochgp.models import AbstractGP
from stochgp.numerics.seeds import random_rows
from stochgp.observations import Dispersion, Observation
from stochgp.observations.observation import supported_by
from stochgp.posteriors import AbstractPosterior
from stochgp.results import RESULTS, FitResult, Solution
from stochgp.tables.molecules import MoleculeEncoder
from stochgp.training_data.cautions import Seen, warn_of
from stochgp.training_data.fingerprinted import Inputs
from stochgp.training_data.inputs import name_of_targets
from stochgp.training_data.progress import progress_line, say
from stochgp.training_data.run import Run
from stochgp.training_data.units import TrainingData, in_target_units
from stochgp.warning import warn

logger = logging.getLogger("stochgp.estimators")


@dataclass(eq=False, repr=False, kw_only=True)
class GPEstimator(PosteriorEstimator):
    """An estimator of one family: a leaf says how its model starts, which learner trains it, and what the posterior is.

    Parameters
    ----------
    batch_size, epochs, learning_rate
        Of the learner: None = its own, or chosen for you; given here and in a learner: ValueError.
    new_rows : "auto", "between" or "after"
        Between the training rows, or after them in time, held out in blocks of it. "auto": after, where dates or increasing columns say when, and it matters.
    random_state : None, an integer, a NumPy RandomState or Generator
    standardize : bool, inputs, and real targets, to mean 0 and standard deviation 1 by the (weighted) training rows
    missing : "auto" (or "impute"): gaps are filled in, rows without a target and columns that tell nothing left out (docs/methods/data.md); "refuse": errors
    dtype : "float32" or "float64", of rows, kernel and features; sums over rows and small factorisations are float64 in any case
    memory_limit : "1GB", bytes or None (half of what is available), for the process during a call; what exceeds it is refused
    time_limit : seconds that the whole fit may take; what would end later is not begun, and `plan_["ended"]` says what was done instead
    devices : None = one; "all", a number of them, or a list of JAX's devices or their numbers: what they share, `plan_` says (docs/methods/devices.md)
    verbose : 0, or 1 for progress on stderr
    """

    # scikit-learn wants any value taken by `__init__`, and judged in `fit`.
    __no_type_check__: ClassVar[bool] = True
    batch_size: int | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    standardize: bool = True
    memory_limit: str | int | float | None = None
    time_limit: float | None = None
    dtype: str = "float32"
    random_state: Any = None
    verbose: int = 0
    missing: str = "auto"
    devices: Any = None
    new_rows: str = "auto"
    _keeps_all_rows: ClassVar[bool] = True  # whether the posterior needs all rows in memory
    _shares_learning: ClassVar[bool] = True  # whether devices and processes share what learners do

    def __init_subclass__(cls, **given: Any) -> None:
        """`help` shows the parameters that all estimators share, and all regressors, after those of the family."""
        super().__init_subclass__(**given)
        if cls.__doc__ is not None and "{shared}" in cls.__doc__:
            shared = [
                str(base.__doc__).partition("----------\n")[2]
                for base in cls.__mro__[1:]
                if issubclass(base, GPEstimator)
            ]
            cls.__doc__ = cls.__doc__.replace("{shared}", "\n    ".join(part.strip() for part in shared))

    @abc.abstractmethod
    def _start(self, data: TrainingData, run: Run) -> tuple[AbstractGP, dict[str, Any]]:
        """(The model with the user's values, or starting values; what `plan_` says of it)."""

    @abc.abstractmethod
    def _choose_learner(self, data: TrainingData) -> tuple[AbstractLearner | None, str]:
        """(The learner, None where nothing is learned; why)."""

    @abc.abstractmethod
    def _posterior_of(
        self, gp: AbstractGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """(The posterior at θ̂, how systems were solved for it, what `plan_` says of that)."""

    def _inputs(self) -> Inputs:
        """What is made of the inputs."""
        return Inputs.NUMBERS

    def _dispersion_of(
        self,
        gp: AbstractGP,
        learned: FitResult | None,
        posterior: AbstractPosterior,
        data: TrainingData,
        run: Run,
    ) -> tuple[Dispersion | None, dict[str, Any]]:
        """(The dispersion of observations, None for that of the likelihood; what `plan_` says of it)."""
        return None, {}

    @abc.abstractmethod
    def _likelihood_of(
        self, gp: AbstractGP, learned: FitResult | None, posterior: AbstractPosterior
    ) -> AbstractLikelihood:
        """Of the standardised targets."""

    def _least_seconds(self) -> float:
        """Seconds that learning takes in any case, where nothing would be learned without them."""
        return 0.0

    def _seconds_after(self, data: TrainingData, run: Run) -> float:
        """Seconds of the time limit that learning leaves to what follows."""
        return 0.0

    def _refine(
        self,
        found: FitResult,
        gp: AbstractGP,
        learner: AbstractLearner,
        rows: AbstractSource,
        run: Run,
        report: Report,
    ) -> tuple[FitResult, dict[str, Any]]:
        """(What was learned from `gp` on, or what the same learner made of it further from the same rows, what `plan_` says of that)."""
        return found, {}

    def _close(self, learned: FitResult, data: TrainingData, run: Run) -> tuple[FitResult, dict[str, Any]]:
        """(What was learned, seen by all rows where `data` are a sample of them; what `plan_` says of that)."""
        return learned, {}

    def _stream_of(self, gp: AbstractGP, learned: FitResult | None, data: TrainingData, run: Run) -> Any:
        """What `partial_fit` goes on from; None where the family learns from no stream."""
        return None

    @abc.abstractmethod
    def _nlml(self, learned: FitResult | None) -> float | None:
        """Exact, per datum, of standardised targets; None where it is not known."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "GPEstimator":
        """Learn the model's parameters from rows X [N, D] and targets y [N], and compute the posterior.

        Raises ValueError or TypeError, in one line, for data or settings that cannot be used, and where `memory_limit` would be exceeded (both numbers). A fit that raises leaves the estimator as it was.

        Parameters
        ----------
        X, y
            An array or a data frame (text columns are one-hot encoded, dates become numbers). Of files, X is a path of a table or of a folder of tables, or
            `data.Blocks`, and y the name of the target's column: read block by block, so that memory does not grow with the rows where a model keeps none.
        sample_weight
            A row of weight ρ counts as ρ rows: its noise variance is σ²/ρ.
        groups
            Which rows belong together, by numbers or text (days, patients): held out together, and left out together by leave-one-out learning.
        checkpoint
            A file that is kept up to date; a killed fit, called again with the same data and settings, goes on from it to the same result.
        callback
            Called with every entry that learning adds to `history_`, in target units. If it returns True, or on Ctrl-C, learning ends with the best state.
        """
        check_settings(self.get_params(deep=False))
        begun = time.perf_counter()
        devices = Devices.of(getattr(self, "devices", None))
        if devices.processes > 1 and not self._shares_learning:
            raise ValueError(f"{type(self).__name__} is fitted in one process, not in {devices.processes}")
        with restored_on_error(self), devices.as_one(), within(self.time_limit), kept_on_disk():
            self._fit(X, y, sample_weight, groups, checkpoint, callback, devices)
        self.fit_seconds_ = time.perf_counter() - begun
        return self

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, checkpoint: Any, callback: Any,
        devices: Devices = ONE,
    ) -> None:  # fmt: skip
        run = Run.of(self, checkpoint, callback, devices)
        data = self._read_data(X, y, sample_weight, groups, run)
        warn_of(
            dataclasses.replace(data, encoder=vars(self).pop("_encoder_of_pool", data.encoder)),
            learns=self._choose_learner(data)[0] is not None,
            stacklevel=3,
        )
        with jax.enable_x64(True):
            gp, start = self._start(data, run)
            start |= self._entries_of_inputs(data)
            learned, choices = self._learn(gp, data, run)
            if learned is not None:
                learned, closing = self._close(learned, data, run)
                gp, choices = learned.gp, choices | closing
            fewer = learned is not None and choices["rows_in_time"]["choice"] is not None
            posterior, solved, more = self._posterior_in_time(gp, learned, data, run, fewer)
            dispersion, further = self._dispersion_in_time(gp, learned, posterior, data, run, more)
            stream = self._stream_of(gp, learned, data, run)
        likelihood = self._likelihood_of(gp, learned, posterior)
        observation = self._observation_of(likelihood, dispersion, posterior, data, learned is not None)
        self._fitted = self._fitted_of(data, posterior, observation, stream)
        if data.left_out is not None:
            self._fitted, further = calibrated(self._fitted, data.left_out, self._calibration, further)
        self.target_name_ = name_of_targets(y)
        self.plan_ = Decisions(data.entries) | start | choices | more | further
        self._judge(learned, data)
        for note in notes(self.plan_, data.n_rows):
            logger.info(note)
            say(self.verbose if run.devices.is_writer else 0, note)
        self._report(learned, solved, data)

    def _entries_of_inputs(self, data: TrainingData) -> dict[str, Any]:
        """What `plan_` says of inputs that stay as they are."""
        if not data.leaves_inputs:
            return {}
        what = f"{data.encoder.described}, " if isinstance(data.encoder, MoleculeEncoder) else ""
        return {"inputs": choice(AS_GIVEN, what + self._inputs().value)}

    def _fitted_of(
        self, data: TrainingData, posterior: AbstractPosterior, observation: Observation, stream: Any
    ) -> Fitted:
        """What predictions are made from."""
        seen = self.dtype if posterior.dtype is None else posterior.dtype
        return Fitted(
            data.encoder, data.inputs, posterior, seen, observation, Seen.of(data),
            log_slope=data.log_slope, slope_rows=data.passes.count, stream=stream,
        )  # fmt: skip

    @abc.abstractmethod
    def _read_data(self, X: Any, y: Any, sample_weight: Any, groups: Any, run: Run) -> TrainingData:
        """What the model learns from, of rows in memory or in files."""

    @property
    def _calibration(self) -> str | None:
        """Of observations, by left-out rows of the fit."""
        return None

    @property
    def _target(self) -> str:
        """Which numbers the targets are: "real", "positive" or "count"."""
        return "real"

    def _posterior_in_time(
        self, gp: AbstractGP, learned: FitResult | None, data: TrainingData, run: Run, fewer: bool
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """`_posterior_of`, as quickly as it can be had after Ctrl-C; `plan_` says what ended the fit, or made it learn from `fewer` rows."""
        results = [None if learned is None else learned.result]
        if results[0] is not RESULTS.interrupted:
            try:
                posterior, solved, choices = self._posterior_of(gp, learned, data, run)
            except KeyboardInterrupt:
                results.append(RESULTS.interrupted)
        if RESULTS.interrupted in results:
            with within(0.0):
                posterior, solved, choices = self._posterior_of(gp, learned, data, run)
        late = choices.pop("late", "it was learned from fewer rows" if fewer else None)
        results += [None if solved is None else solved.result, None if late is None else RESULTS.time_limit]
        return posterior, solved, choices | {"ended": describe_end(results, late)}

    def _observation_of(
        self,
        likelihood: AbstractLikelihood,
        dispersion: Dispersion | None,
        posterior: AbstractPosterior,
        data: TrainingData,
        is_learned: bool,
    ) -> Observation:
        """All that lies between f and what is observed."""
        is_count = self._target == "count"
        found = Observation(data.targets, likelihood, dispersion, data.transform, rounding=is_count)
        if data.transform is not None:
            found = dataclasses.replace(found, support=supported_by(data.given_targets(is_count)))
        if data.mean_function is None:
            return found
        some = ModelRows(data.rows.X[random_rows(data.n_rows, 1000)], data.inputs, self.dtype)
        _, variance = some.by_block(posterior.mean_and_variance, posterior.block_rows)
        learns_noise = is_learned and getattr(self, "noise_variance", None) is None
        return found.around(data.mean_function, learns_noise, variance)

    def _dispersion_in_time(
        self,
        gp: AbstractGP,
        learned: FitResult | None,
        posterior: AbstractPosterior,
        data: TrainingData,
        run: Run,
        entries: dict[str, Any],
    ) -> tuple[Dispersion | None, dict[str, Any]]:
        """`_dispersion_of`, by default after the first Ctrl-C, which `entries` then record. Raise a second one."""
        is_over = entries["ended"]["choice"] == RESULTS.interrupted.name
        try:
            with within(0.0 if is_over else None):
                return self._dispersion_of(gp, learned, posterior, data, run)
        except KeyboardInterrupt:
            if is_over:
                raise
            entries["ended"] = describe_end([RESULTS.interrupted], None)
            with within(0.0):
                return self._dispersion_of(gp, learned, posterior, data, run)

    def summary(self) -> str:
        """The fitted model in words: data, kernel or features, noise, how far from exact, what was chosen and why."""
        return summarise(self)

    def _html_repr(self) -> str:
        """In notebooks: what scikit-learn shows, and the summary."""
        text = f"<pre>{html.escape(self.summary())}</pre>" if hasattr(self, "plan_") else ""
        return estimator_html_repr(self) + text

    def _learn(self, gp: AbstractGP, data: TrainingData, run: Run) -> tuple[FitResult | None, dict[str, Any]]:
        """(What the learner made of the model, what `plan_` says of it)."""
        learner, why = self._choose_learner(data)
        if learner is None:
            return None, {"learner": choice(None, why)}
        with within(deadline.left() - self._seconds_after(data, run)), granted(self._least_seconds()):
            return self._learn_in_time(learner, why, gp, data, run)

    def _learn_in_time(
        self, learner: AbstractLearner, why: str, gp: AbstractGP, data: TrainingData, run: Run
    ) -> tuple[FitResult, dict[str, Any]]:
        run = run if self._shares_learning else run._replace(devices=ONE)
        D, itemsize = data.n_inputs, DTYPES[self.dtype]
        N = rows_in_time(learner, gp, data.source(False)) if run.may_choose else data.n_rows
        placed = place(learner, gp, N, D, itemsize, run.budget, run.devices)
        devices, spread = shared_steps(run.devices, placed.learner, N)
        run = run._replace(devices=devices)
        logger.info("learning from %d rows by %s: %s", N, type(learner).__name__, why)

        def report(entry: dict[str, float]) -> object:
            shown = in_target_units(entry, data.scale, placed.learner.loss_shift, data.log_unit)
            if progress is not None:
                progress(shown)
            return None if run.callback is None else run.devices.agree(run.callback(shown) is True)

        source = data.source(placed.on_device)
        with progress_line(self.verbose if run.devices.is_writer else 0, learning_text) as progress:
            rows = source if data.n_rows <= N else SomeRows(source, run.some(N, data.n_rows))
            found = fit(
                placed.learner, gp, rows, key=run.learn_key, progress=report, checkpoint=run.checkpoint,
                devices=run.devices,
            )  # fmt: skip
            try:
                found, more = self._refine(found, gp, placed.learner, rows, run, report)
            except KeyboardInterrupt:  # what was learned before stays, and nothing else is tried
                found = found._replace(result=RESULTS.interrupted, converged=False)
                found, more = self._refine(found, gp, placed.learner, rows, run, report)
        if found.result is RESULTS.diverged:
            warn(found.result.value, ConvergenceWarning, stacklevel=4)
        plan = describe_learning(placed, why, found, N, data, self.get_params(deep=False), run.budget)
        # A mean function may say it all.
        if data.mean_function is None and (useless := worse_than_a_constant(plan)):
            warn(useless, ConvergenceWarning, stacklevel=4)
        return found, plan | more | spread

    def _judge(self, learned: FitResult | None, data: TrainingData) -> None:
        """Warns of a fit that does not help, where no held-out rows have said so, and lets `plan_` say it."""
        if learned is None or "held_out_nlpd" in self.plan_ and learned.n_iter > 0:
            return
        rows = dataclasses.replace(data.rows, y=data.given_targets(self._target == "count"))
        if said := caution_after_fit(self, learned, rows):
            self.plan_ |= {"caution": choice(said, "of predictions of rows that the fit has seen")}
            warn(said, ConvergenceWarning, stacklevel=4)

    @abc.abstractmethod
    def _scores(self, rows: Rows) -> Scores:
        """How rows of numbers, and targets as `fit` reads them, are predicted."""

    def _report(self, learned: FitResult | None, solved: Solution | None, data: TrainingData) -> None:
        """The fitted attributes, in target units."""
        s, parts = data.scale, [part for part in (learned, solved) if part is not None]
        if self._fitted.observation.has_noise:
            self.noise_variance_ = self._fitted.observation.noise_variance * s**2
        self.n_iter_ = int(
            learned.n_iter if learned is not None else solved.n_steps if solved is not None else 0
        )
        ended = self.plan_["ended"]["choice"] == PLANNED
        self.converged_ = (
            ended and all(part.converged for part in parts) and not worse_than_a_constant(self.plan_)
        )
        shift = 1.0 if learned is None else learned.loss_shift
        unit = data.log_unit
        self.history_ = [in_target_units(entry, s, shift, unit) for part in parts for entry in part.history]
        self.n_rows_ = data.n_all
        nlml = self._nlml(learned)
        if nlml is not None:
            self.nlml_ = nlml + data.log_unit
