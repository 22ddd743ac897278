"""What feature GPs do after learning: few rows are all learned from; likelihood="auto", constant noise or noise that depends on the input."""

import logging
from typing import Any

import jax

from stochgp.data.streams import AbstractSource
from stochgp.estimators.report import choice
from stochgp.learners import AbstractLearner
from stochgp.learners.closing import closes, on_all_rows
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
from stochgp.models import FeatureGP
from stochgp.names import lookup
from stochgp.results import FitResult

GAUSSIAN, ROW_NOISE = "gaussian", "row-noise"
LIKELIHOODS = ("auto", GAUSSIAN, ROW_NOISE)

logger = logging.getLogger("stochgp.estimators")


def check_likelihood(value: Any) -> None:
    """Raises TypeError for what is no name, and ValueError for a name that is not one of LIKELIHOODS."""
    if not isinstance(value, str):
        names = ", ".join(map(repr, LIKELIHOODS))
        raise TypeError(f"likelihood must be one of {names}, or a Warped of such a name, not {value!r}")
    lookup(value, dict.fromkeys(LIKELIHOODS), "likelihood")


def closed(
    first: FitResult, gp: FeatureGP, learner: AbstractLearner, rows: AbstractSource, run: Any
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, of few rows with features learned from all of them, what `plan_` says of that). `run` is a `base.Run`."""
    if not closes(first, learner, rows) or run.planned("closing_steps") == 0:
        return first, {"closing_steps": choice(0, "on all rows, held-out ones included: only for few rows")}
    settings = {"key": run.learn_key, "checkpoint": run.checkpoint}
    found = on_all_rows(first, gp, learner, rows, rate_of(first, learner), **settings)
    why = "on all rows, held-out ones included, from the start; the variances are those that held-out rows chose"
    return found, {"closing_steps": choice(found.n_iter - first.n_iter, why)}


def with_row_noise(
    asked: str,
    first: FitResult,
    learner: AbstractLearner,
    rows: AbstractSource,
    run: Any,
    report: Report,
    dtype: str,
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, gone on with row noise where that is asked for or chosen for "auto", what `plan_` says of it). `run` is a `base.Run`."""
    planned = None if run.plan is None else run.planned("likelihood")
    asked = asked if planned is None else planned
    why_not = "as asked" if asked == GAUSSIAN else refusal(first, to_choose=asked != ROW_NOISE)
    if why_not is not None:
        return first, {"likelihood": choice(GAUSSIAN, why_not)}
    logger.info("going on with noise that depends on the input")
    found = learned_on(
        first,
        head_features(rows, dtype, key=jax.random.fold_in(run.start_key, 1)),
        learner,
        rows,
        key=run.learn_key,
        progress=report,
        checkpoint=run.checkpoint,
        extent=Extent() if planned is None else Extent(run.planned("row_noise_steps"), 0),
    )
    steps = {"row_noise_steps": choice(found.n_iter - first.n_iter, "from constant noise on")}
    if asked == ROW_NOISE:
        return found, {"likelihood": choice(ROW_NOISE, "as asked")} | steps
    constant = best_constant(first, twin(found, first, learner, rows, key=run.learn_key))
    better = gain(constant.evidence, found.evidence)
    why = f"held-out rows gain {better.mean:.3f} ± {better.error:.3f} nats each, {better.n_rows} of them, by noise that depends on the input"
    if better.is_clear:
        return found, {"likelihood": choice(ROW_NOISE, why)} | steps
    return first, {"likelihood": choice(GAUSSIAN, f"{why}: less than two standard errors")}
