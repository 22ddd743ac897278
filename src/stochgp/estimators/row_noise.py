"""What feature GPs do after learning: few rows are all learned from; likelihood= is constant noise, noise of the input, heavy tails, or both."""

import logging
from typing import Any, NamedTuple

import jax

from stochgp.data.streams import AbstractSource
from stochgp.estimators.report import choice
from stochgp.learners import AbstractLearner
from stochgp.learners.closing import closes, on_all_rows
from stochgp.learners.heavy_tails import heavy_tailed, learned_with_tails
from stochgp.learners.log import Report
from stochgp.learners.row_noise import (
    best_constant,
    gain,
    head_features,
    learned_on,
    rate_of,
    refusal,
    twin,
)
from stochgp.learners.run import Extent
from stochgp.likelihoods import AbstractNoise, Gaussian, StudentT
from stochgp.models import FeatureGP
from stochgp.names import lookup
from stochgp.parameters import Frozen
from stochgp.results import FitResult

AUTO, GAUSSIAN, ROW_NOISE, STUDENT = "auto", "gaussian", "row-noise", "student-t"
BOTH = f"{ROW_NOISE}-{STUDENT}"
LIKELIHOODS = (AUTO, GAUSSIAN, ROW_NOISE, STUDENT, BOTH)
LEAST_DF = 2.2  # below it the bound of ν governs standard deviations

logger = logging.getLogger("stochgp.estimators")


class Asked(NamedTuple):
    """`likelihood=` taken apart."""

    name: str
    noise: AbstractNoise | None = None  # a model of its own, learned with the features
    df: float | None = None  # degrees of freedom that are not to be learned
    hashed: bool = False  # whether inputs are fingerprints, which no network takes
    transformed: bool = False  # whether targets are T(y), whose mean heavy tails may not have

    @classmethod
    def of(cls, value: Any) -> "Asked":
        """Raises TypeError or ValueError, in one line, for what feature GPs do not take."""
        if isinstance(value, str):
            lookup(value, dict.fromkeys(LIKELIHOODS), "likelihood")
            return cls(value)
        if isinstance(value, Gaussian):
            return cls(GAUSSIAN, value.noise)
        if not isinstance(value, StudentT):
            names = ", ".join(map(repr, LIKELIHOODS))
            raise TypeError(
                f"likelihood must be one of {names}, Gaussian(noise) or StudentT(df, noise) of stochgp.likelihoods, or a Warped of these, not {value!r}; "
                "SparseGPRegressor and SparseGPClassifier have others"
            )
        df = float(value.df) if isinstance(value.df, Frozen) else None
        if df is not None and df <= 2:
            raise ValueError(f"df is {df:g}; observations have a standard deviation only above 2")
        return cls(STUDENT, value.noise, df)


def closed(
    first: FitResult, gp: FeatureGP, learner: AbstractLearner, rows: AbstractSource, run: Any, asked: Asked
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, of few rows with features learned from all of them, what `plan_` says of that). `run` is a `base.Run`."""
    if asked.name in (STUDENT, BOTH):
        return first, {"closing_steps": choice(0, "heavy tails are fitted by rows that were held out")}
    if not closes(first, learner, rows) or run.planned("closing_steps") == 0:
        return first, {"closing_steps": choice(0, "on all rows, held-out ones included: only for few rows")}
    settings = {"key": run.learn_key, "checkpoint": run.checkpoint, "devices": run.devices}
    found = on_all_rows(first, gp, learner, rows, rate_of(first, learner), **settings)
    why = "on all rows, held-out ones included, from the start; the variances are those that held-out rows chose"
    return found, {"closing_steps": choice(found.n_iter - first.n_iter, why)}


def with_noise(
    asked: Asked,
    first: FitResult,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Any,
    report: Report,
    dtype: str,
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, gone on with the noise that is asked for or chosen for "auto", what `plan_` says of it). `run` is a `base.Run`."""
    planned = None if run.plan is None else run.planned("likelihood")
    name = asked.name if planned is None else planned
    why_not = "as asked" if name == GAUSSIAN else refusal(first, to_choose=name == AUTO)
    if why_not is not None:
        return first, {"likelihood": choice(GAUSSIAN, why_not)}
    settings = learner, rows, run, report
    heads, why_head, told = False, [], {}
    found = first
    if name in (AUTO, ROW_NOISE, BOTH) and not (name == AUTO and asked.hashed):
        found, heads, why_head, told = _with_head(name, first, *settings, dtype)
    tails, why_tails = False, []
    if name in (STUDENT, BOTH) or (name == AUTO and not asked.transformed):
        found, tails, why_tails, more = _with_tails(name, asked.df, found, *settings)
        told |= more
    chosen = {(False, False): GAUSSIAN, (True, False): ROW_NOISE, (False, True): STUDENT, (True, True): BOTH}
    why = "; ".join(why_head + why_tails) if name == AUTO else "as asked" if planned is None else "as given"
    return found, {
        "likelihood": choice(chosen[heads, tails], why or "transformed fingerprints have no other")
    } | told


def _with_head(
    name: str,
    first: FitResult,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Any,
    report: Report,
    dtype: str,
) -> tuple[FitResult, bool, list[str], dict[str, Any]]:
    """(The run with noise of the input, or `first`; which it is; why; what `plan_` says of its steps)."""
    logger.info("going on with noise that depends on the input")
    found = learned_on(
        first,
        head_features(rows, dtype, key=jax.random.fold_in(run.start_key, 1)),
        learner,
        rows,
        key=run.learn_key,
        progress=report,
        checkpoint=run.checkpoint,
        extent=_extent(run, "row_noise_steps"),
        devices=run.devices,
    )
    steps = {"row_noise_steps": choice(found.n_iter - first.n_iter, "from constant noise on")}
    if name != AUTO:
        return found, True, [], steps
    constant = best_constant(first, twin(found, first, learner, rows, key=run.learn_key, devices=run.devices))
    better = gain(constant.evidence, found.evidence)
    why = f"held-out rows gain {better.told} by noise that depends on the input"
    if better.is_clear:
        return found, True, [why], steps
    return first, False, [f"{why}: less than two standard errors, or than 0.01"], {}


def _with_tails(
    name: str,
    df: float | None,
    first: FitResult,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Any,
    report: Report,
) -> tuple[FitResult, bool, list[str], dict[str, Any]]:
    """(The run with Student-t noise, or `first`; which it is; why; what `plan_` says of it)."""
    found, why = heavy_tailed(first, learner, rows, key=run.learn_key, df=df, devices=run.devices), []
    if name == AUTO:
        better = gain(first.evidence, found.evidence)
        why = [f"held-out rows gain {better.told} by heavy tails"]
        if not better.is_clear:
            return first, False, [f"{why[0]}: less than two standard errors, or than 0.01"], {}
    logger.info("going on with Student-t noise")
    found = learned_with_tails(
        found,
        learner,
        rows,
        key=run.learn_key,
        progress=report,
        checkpoint=run.checkpoint,
        extent=_extent(run, "heavy_tail_steps"),
        devices=run.devices,
    )
    nu = found.evidence.df
    bound = (
        "; at its bound: standard deviations are governed by it, quantiles are not" if nu < LEAST_DF else ""
    )
    told = {
        "heavy_tail_steps": choice(
            found.n_iter - first.n_iter, "with Student-t noise, from Gaussian noise on"
        ),
        "df": choice(
            nu, f"degrees of freedom of the Student-t, {'as asked' if df else 'by the rows held out'}{bound}"
        ),
    }
    return found, True, why, told


def _extent(run: Any, name: str) -> Extent:
    """As far as the plan given says, where it says it."""
    if run.plan is None or name not in run.plan:
        return Extent()
    return Extent(run.planned(name), 0)
