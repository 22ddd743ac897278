"""What feature GPs do after learning: few rows are all learned from; likelihood= is constant noise, noise of the input, heavy tails, or both."""

import functools
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
from stochgp.likelihoods import AbstractNoise, Gaussian, HeadNoise, StudentT
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
    head = None
    if name in (ROW_NOISE, BOTH) or (name == AUTO and not asked.hashed):
        head = _with_head(first, learner, rows, run, report, dtype)
    if name == AUTO:
        found, why = _chosen(asked, first, head, learner, rows, run)
    else:
        found, why = first if head is None else head, "as asked" if planned is None else "as given"
        if name in (STUDENT, BOTH):
            found = heavy_tailed(found, learner, rows, key=run.learn_key, df=asked.df, devices=run.devices)
    heads = head is not None and isinstance(found.gp.noise, HeadNoise)
    told = (
        {} if head is None or not heads else _steps("row_noise_steps", head, first, "from constant noise on")
    )
    tails = found.evidence.df is not None
    if tails:
        found, more = _on_with_tails(found, asked.df, learner, rows, run, report)
        told |= more
    chosen = {(False, False): GAUSSIAN, (True, False): ROW_NOISE, (False, True): STUDENT, (True, True): BOTH}
    return found, {"likelihood": choice(chosen[heads, tails], why)} | told


def _chosen(
    asked: Asked,
    first: FitResult,
    head: FitResult | None,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Any,
) -> tuple[FitResult, str]:
    """(The simplest noise that no other one clearly beats on held-out rows, why): noise of the input, heavy tails around what it left, and where these

    hid that noise both together. What has a head is compared with constant noise after as many steps.
    """
    told, found, base = list[str](), first, first
    student = functools.partial(
        heavy_tailed, learner=learner, source=rows, key=run.learn_key, devices=run.devices
    )

    def is_clear(one: FitResult, other: FitResult, what: str) -> bool:
        better = gain(one.evidence, other.evidence)
        short = "" if better.is_clear else ": less than two standard errors, or than 0.01"
        told.append(f"held-out rows gain {better.told} by {what}{short}")
        return better.is_clear

    if head is not None:
        base = best_constant(first, twin(head, first, learner, rows, key=run.learn_key, devices=run.devices))
        found = head if is_clear(base, head, "noise that depends on the input") else first
    if asked.transformed:
        return found, "; ".join([*told, "heavy tails are not compared for transformed targets"])
    tails = student(found)
    if is_clear(found, tails, "heavy tails"):
        both = None if head is None or found is head else student(head)
        found = tails
        if both is not None:
            rival = tails if base is first else best_constant(tails, student(base))
            found = (
                both if is_clear(rival, both, "noise that depends on the input, with heavy tails") else tails
            )
    return found, "; ".join(told)


def _with_head(
    first: FitResult, learner: AbstractLearner, rows: AbstractSource, run: Any, report: Report, dtype: str
) -> FitResult:
    """The run with noise of the input."""
    logger.info("going on with noise that depends on the input")
    return learned_on(
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


def _on_with_tails(
    first: FitResult,
    df: float | None,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Any,
    report: Report,
) -> tuple[FitResult, dict[str, Any]]:
    """(The run with Student-t noise gone on, what `plan_` says of it)."""
    logger.info("going on with Student-t noise")
    found = learned_with_tails(
        first,
        learner,
        rows,
        key=run.learn_key,
        progress=report,
        checkpoint=run.checkpoint,
        extent=_extent(run, "heavy_tail_steps"),
        devices=run.devices,
    )
    nu = found.evidence.df
    how = "as asked" if df else "by the rows held out"
    bound = (
        "; at its bound: standard deviations are governed by it, quantiles are not" if nu < LEAST_DF else ""
    )
    told = {"df": choice(nu, f"degrees of freedom of the Student-t, {how}{bound}")}
    return found, told | _steps(
        "heavy_tail_steps", found, first, "with Student-t noise, from Gaussian noise on"
    )


def _steps(name: str, found: FitResult, first: FitResult, why: str) -> dict[str, Any]:
    return {name: choice(found.n_iter - first.n_iter, why)}


def _extent(run: Any, name: str) -> Extent:
    """As far as the plan given says, where it says it."""
    if run.plan is None or name not in run.plan:
        return Extent()
    return Extent(run.planned(name), 0)
