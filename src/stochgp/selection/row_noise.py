"""What feature GPs do after learning: few rows are all learned from; likelihood= is constant noise, noise of the input, heavy tails, or both."""

import functools
import logging
from typing import Any

import jax
import numpy as np

from stochgp.choosing import AS_ASKED, choice
from stochgp.data.streams import AbstractSource
from stochgp.distributions import SplineCurve
from stochgp.families.left_out import SEED
from stochgp.families.likelihoods import AUTO, BOTH, ROW_NOISE, Asked, df_entries
from stochgp.learners import AbstractLearner
from stochgp.learning.log import Report
from stochgp.likelihoods import HeadNoise
from stochgp.models import FeatureGP
from stochgp.observations import Dispersion
from stochgp.results import FitResult
from stochgp.selection.closing import closes, on_all_rows
from stochgp.selection.curves import CURVED, chosen_curve
from stochgp.selection.dispersion import GAUSSIAN, STUDENT
from stochgp.selection.dispersion_choice import AS_BEFORE
from stochgp.selection.heavy_tails import heavy_tailed, learned_with_tails
from stochgp.selection.noise_of_inputs import (
    best_constant,
    compared,
    head_features,
    learned_further,
    rate_of,
    refusal,
    twin,
    with_head,
)
from stochgp.training_data.run import Run

logger = logging.getLogger("stochgp.estimators")


def closed(
    first: FitResult, gp: FeatureGP, learner: AbstractLearner, rows: AbstractSource, run: Run, asked: Asked
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, of few rows with features learned from all of them, what `plan_` says of that)."""
    if asked.name in (STUDENT, BOTH) and not asked.again:
        return first, {"closing_steps": choice(0, "heavy tails are fitted by rows that were held out")}
    if not closes(first, learner, rows):
        return first, {"closing_steps": choice(0, "on all rows, held-out ones included: only for few rows")}
    settings = {"key": run.learn_key, "checkpoint": run.beside("closing"), "devices": run.devices}
    found = on_all_rows(first, gp, learner, rows, rate_of(first, learner), **settings)
    why = "on all rows, held-out ones included, from the start; the variances are those that held-out rows chose"
    return found, {"closing_steps": choice(found.n_iter - first.n_iter, why)}


def with_noise(
    asked: Asked,
    first: FitResult,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Run,
    report: Report,
    dtype: str,
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, gone on with the noise that is asked for or chosen for "auto", what `plan_` says of it)."""
    name, curved = asked.name, asked.curved
    why_not = AS_ASKED if name == GAUSSIAN and not curved else refusal(first, to_choose=name == AUTO)
    if why_not is not None:
        return first, {"likelihood": choice(GAUSSIAN, why_not)}
    head = None
    if name in (ROW_NOISE, BOTH) or (name == AUTO and not asked.hashed):
        head = _with_head(first, learner, rows, run, report, dtype)
    if name == AUTO:
        found, why = _chosen(asked, first, head, learner, rows, run)
    else:
        found, why = first if head is None else head, AS_BEFORE if asked.again else AS_ASKED
        if name in (STUDENT, BOTH):
            found = heavy_tailed(found, learner, rows, key=run.learn_key, df=asked.df, devices=run.devices)
    heads = head is not None and isinstance(found.gp.noise, HeadNoise)
    entries = (
        {} if head is None or not heads else _steps("row_noise_steps", head, first, "from constant noise on")
    )
    tails = found.evidence.df is not None
    if tails:
        found, more = _on_with_tails(found, asked.df, learner, rows, run, report)
        entries |= more
    names = {(False, False): GAUSSIAN, (True, False): ROW_NOISE, (False, True): STUDENT, (True, True): BOTH}
    chosen = names[heads, tails]
    if name == AUTO or curved:
        found, more = _recalibrated(found, curved=curved)
        why = f"{why}; its probabilities: {more}"
        chosen = chosen if found.evidence.curve is None else chosen + CURVED
    return found, {"likelihood": choice(chosen, why)} | entries


def _recalibrated(found: FitResult, *, curved: bool) -> tuple[FitResult, str]:
    """(The fit with a recalibration curve R, where held-out rows gain clearly by it or an earlier fit chose it (`curved`); why).

    P(y ≤ m + √V t) = R(P(T ≤ t)), with m and V the mean and the variance of an observation and T of variance 1: one curve for all rows,
    whatever part of V is noise.
    """
    rows, df = found.evidence.held_out, found.evidence.df
    if rows is None:
        return found, "no rows were held out"
    shape, z = Dispersion(None, df), rows.error / rows.std
    u = shape.probability(z)
    if curved:
        curve, why = SplineCurve.of(u, rows.weight), AS_BEFORE
    else:
        before = shape.log_density(z**2, np.zeros(1)) - np.log(rows.std) + rows.value
        curve, why = chosen_curve(u, rows.cell, SEED, before, rows.weight)
    return found._replace(evidence=found.evidence._replace(curve=curve)), why


def _chosen(
    asked: Asked,
    first: FitResult,
    head: FitResult | None,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Run,
) -> tuple[FitResult, str]:
    """(The simplest noise model that no other one clearly beats on held-out rows, why).

    Compared are constant noise, noise that depends on the input, Student-t errors around the better of the two, and, where Student-t errors
    won over constant noise, both together. A model with a head is compared with constant noise that had as many steps.
    """
    said, found, base = list[str](), first, first
    student = functools.partial(
        heavy_tailed, learner=learner, source=rows, key=run.learn_key, devices=run.devices
    )

    def is_clear(one: FitResult, other: FitResult, what: str) -> bool:
        better = compared(one.evidence, other.evidence, what)
        said.append(better.why)
        return better.name is not None

    if head is not None:
        base = best_constant(first, twin(head, first, learner, rows, key=run.learn_key, devices=run.devices))
        found = head if is_clear(base, head, "noise that depends on the input") else first
    if asked.transformed:
        why = "; ".join([*said, "heavy tails are not compared for transformed targets"])
        return found, f"by held-out rows: {why}" if said else why
    tails = student(found)
    if is_clear(found, tails, "heavy tails"):
        both = None if head is None or found is head else student(head)
        found = tails
        if both is not None:
            rival = tails if base is first else best_constant(tails, student(base))
            found = (
                both if is_clear(rival, both, "noise that depends on the input, with heavy tails") else tails
            )
    return found, f"by held-out rows: {'; '.join(said)}"


def _with_head(
    first: FitResult, learner: AbstractLearner, rows: AbstractSource, run: Run, report: Report, dtype: str
) -> FitResult:
    """The run with noise of the input."""
    logger.info("going on with noise that depends on the input")
    gp = with_head(first.gp, head_features(rows, dtype, key=jax.random.fold_in(run.start_key, 1)))
    return learned_further(first, gp, learner, rows, run.going(report, "noise"))


def _on_with_tails(
    first: FitResult,
    df: float | None,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Run,
    report: Report,
) -> tuple[FitResult, dict[str, Any]]:
    """(The run with Student-t noise gone on, what `plan_` says of it)."""
    logger.info("going on with Student-t noise")
    found = learned_with_tails(first, learner, rows, run.going(report, "tails"))
    entries = df_entries(found.evidence.df, AS_ASKED if df else "by the rows held out")
    return found, entries | _steps(
        "heavy_tail_steps", found, first, "with Student-t noise, from Gaussian noise on"
    )


def _steps(name: str, found: FitResult, first: FitResult, why: str) -> dict[str, Any]:
    return {name: choice(found.n_iter - first.n_iter, why)}
