"""likelihood="auto" of feature GPs: constant noise, or noise that depends on the input."""

import logging
from typing import Any

import jax

from stochgp.data.streams import AbstractSource
from stochgp.estimators.report import choice
from stochgp.learners import AbstractLearner
from stochgp.learners.log import Report
from stochgp.learners.row_noise import best_constant, gain, head_features, learned_on, refusal, twin
from stochgp.learners.run import Extent
from stochgp.results import FitResult

GAUSSIAN, ROW_NOISE = "gaussian", "row-noise"

logger = logging.getLogger("stochgp.estimators")


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
