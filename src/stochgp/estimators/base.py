"""The one fit of all regressors: read, standardise, start, learn, solve, report."""

import abc
import html
import logging
import math
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import PRNGKeyArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import estimator_html_repr

from stochgp.budget import Budget
from stochgp.estimators.fitted import Fitted
from stochgp.estimators.inputs import read_training_rows
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.estimators.progress import progress_line, say
from stochgp.estimators.report import choice, describe_learning, learning_text, notes, worse_than_a_constant
from stochgp.estimators.settings import DTYPES, check_settings
from stochgp.estimators.summary import summarise
from stochgp.estimators.units import TrainingData, in_target_units
from stochgp.learners import AbstractLearner, fit
from stochgp.learners.placing import place
from stochgp.models import AbstractGP
from stochgp.numerics.seeds import as_key, key_of, split
from stochgp.posteriors import AbstractPosterior
from stochgp.results import RESULTS, FitResult, Solution

logger = logging.getLogger("stochgp.estimators")


class Run(NamedTuple):
    """What one call of `fit` was given beside its data."""

    learn_key: PRNGKeyArray
    solve_key: PRNGKeyArray
    start_key: PRNGKeyArray
    budget: Budget
    begun: float
    time_limit: float | None
    checkpoint: str | os.PathLike | None
    callback: Callable[[dict[str, float]], object] | None
    plan: dict[str, Any] | None  # `plan_` of another fit

    def left(self) -> float | None:
        """Seconds until the time limit; None without one."""
        return None if self.time_limit is None else self.time_limit - (time.perf_counter() - self.begun)

    def planned(self, name: str) -> Any:
        """The choice of this name in the plan given; None without a plan. ValueError where the plan has none."""
        if self.plan is None:
            return None
        if not isinstance(self.plan, dict) or name not in self.plan:
            raise ValueError(f"plan has no {name!r}: give `plan_` of a fit of the same estimator")
        return self.plan[name]["choice"]


class GPRegressor(PosteriorRegressor):
    """A regressor of one family: a leaf says how its model starts, which learner trains it, and what the posterior is."""

    batch_size: int | None
    epochs: int | None
    learning_rate: float | None
    standardize: bool
    random_state: Any
    plan: dict[str, Any] | None

    @abc.abstractmethod
    def _start(self, data: TrainingData, key: PRNGKeyArray) -> AbstractGP:
        """The model with the user's values, or starting values."""

    @abc.abstractmethod
    def _choose_learner(self, data: TrainingData) -> tuple[AbstractLearner | None, str]:
        """(The learner, None where nothing is learned; why)."""

    @abc.abstractmethod
    def _posterior_of(
        self, gp: AbstractGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """(The posterior at θ̂, how systems were solved for it, what `plan_` says of that)."""

    @abc.abstractmethod
    def _nlml(self, learned: FitResult | None) -> float | None:
        """Exact, per datum, of standardised targets; None where it is not known."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        checkpoint: str | os.PathLike | None = None,
        callback: Callable[[dict[str, float]], object] | None = None,
    ) -> "GPRegressor":
        """Learn the model's parameters from rows X [N, D] (array or data frame) and targets y [N], and compute the posterior.

        A row of weight ρ counts as ρ rows: its noise variance is σ²/ρ. Text columns of a data frame are one-hot encoded, dates become
        numbers. `checkpoint` names a file that is kept up to date; a killed fit, called again with the same data and settings, goes on
        from it to the same result. `callback` is called with every entry that learning adds to `history_`, as it comes, in target units.
        If it returns True, or on Ctrl-C, learning ends with the best state so far.

        Raises ValueError or TypeError, in one line, for data or settings that cannot be used, and for a fit that would exceed
        `memory_limit` (with both numbers).
        """
        begun = time.perf_counter()
        check_settings(self.get_params(deep=False))
        learn_key, solve_key, start_key = map(key_of, split(as_key(self.random_state), 3))
        budget = Budget.of(self.memory_limit)
        rows = read_training_rows(self, X, y, sample_weight, budget, self.missing)
        data = TrainingData.of(rows, bool(self.standardize), self.mean, self.dtype)
        limit, plan = self.time_limit, self.plan
        run = Run(learn_key, solve_key, start_key, budget, begun, limit, checkpoint, callback, plan)
        with jax.enable_x64(True):
            gp = self._start(data, run.start_key)
            learned, choices = self._learn(gp, data, run)
            gp = gp if learned is None else learned.gp
            posterior, solved, more = self._posterior_of(gp, learned, data, run)
        dtype = self.dtype if posterior.dtype is None else posterior.dtype
        self._fitted = Fitted(data.encoder, data.inputs, data.targets, posterior, dtype)
        name = getattr(y, "name", None)
        self.target_name_ = name if isinstance(name, str) else None
        self.plan_ = choices | more
        for note in notes(self.plan_, data.n_rows):
            logger.info(note)
            say(self.verbose, note)
        self._report(learned, solved, data)
        self.fit_seconds_ = time.perf_counter() - begun
        return self

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
        N, D, itemsize = data.n_rows, data.n_inputs, DTYPES[self.dtype]
        placed = place(learner, gp, N, D, itemsize, run.budget, run.planned("learning_memory"))
        logger.info("learning from %d rows by %s: %s", N, type(learner).__name__, why)

        def report(entry: dict[str, float]) -> object:
            shown = in_target_units(entry, data.scale, placed.learner.loss_shift)
            if progress is not None:
                progress(shown)
            return None if run.callback is None else run.callback(shown)

        with progress_line(self.verbose, learning_text) as progress:
            found = fit(
                placed.learner,
                gp,
                data.source(placed.on_device),
                key=run.learn_key,
                progress=report,
                checkpoint=run.checkpoint,
                time_limit=self.time_limit,
            )
        if found.result is RESULTS.diverged:
            warnings.warn(found.result.value, ConvergenceWarning, stacklevel=4)
        plan = describe_learning(placed, why, found, data, self.get_params(deep=False), run.budget)
        if useless := worse_than_a_constant(plan):
            warnings.warn(useless, ConvergenceWarning, stacklevel=4)
        return found, plan

    def _report(self, learned: FitResult | None, solved: Solution | None, data: TrainingData) -> None:
        """The fitted attributes, in target units."""
        s, parts = data.scale, [part for part in (learned, solved) if part is not None]
        self.noise_variance_ = self._fitted.noise_variance * s**2
        self.n_iter_ = int(
            learned.n_iter if learned is not None else solved.n_steps if solved is not None else 0
        )
        self.converged_ = all(part.converged for part in parts)
        shift = 1.0 if learned is None else learned.loss_shift
        self.history_ = [in_target_units(entry, s, shift) for part in parts for entry in part.history]
        self.n_rows_ = data.n_rows
        nlml = self._nlml(learned)
        if nlml is not None:
            self.nlml_ = nlml + math.log(s)
