"""What `plan_` says of learning, and the line of progress."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from stochgp.budget import Budget, format_bytes
from stochgp.choosing import AS_ASKED, choice
from stochgp.devices import Devices
from stochgp.learners import AbstractLearner
from stochgp.learning.judge import SETTLED_BY
from stochgp.learning.placing import SHARE_FOR_ROWS, Placement
from stochgp.learning.standard_errors import named
from stochgp.results import RESULTS, FitResult
from stochgp.training_data.new_rows import AFTER
from stochgp.training_data.units import TrainingData

PLANNED = "planned"
MIN_SHARED_BATCH = 4096  # rows; smaller batches take no less time on several devices (docs/methods/scale.md)
_SHORTENED = {
    RESULTS.interrupted: "Ctrl-C ended learning or solving",
    RESULTS.time_limit: "the time limit ended learning or solving",
    RESULTS.stopped: "the callback ended learning",
}  # those that come first count

LOCAL = "single rows have means and variances; there are no functions, covariances or likelihood"


def describe_learning(
    placed: Placement,
    why: str,
    found: FitResult,
    n_rows: int,
    data: TrainingData,
    asked: dict[str, Any],
    budget: Budget,
) -> dict[str, Any]:
    """Name → {choice, why}, JSON values only. `n_rows` is how many rows were learned from, `asked` are the estimator's settings."""
    learner, plan = placed.learner, found.plan
    seen = learner.seen_rows(n_rows)
    return _scores(found, data.log_unit) | {
        "learner": choice(type(learner).__name__, why),
        "learner_settings": choice(
            _settings(learner), "those that can be written down; see the learner's docstring"
        ),
        "gradients": choice(*learner.exactness(found.history[-1] if found.history else {})),
        "learning_rows": choice(seen, _rows_reason(seen, data.n_rows)),
        "batch_size": choice(
            plan.batch_size, _batch_reason(learner, plan.batch_size, asked.get("batch_size"))
        ),
        "epochs": choice(plan.total_steps / plan.steps_per_epoch, _epochs_reason(learner)),
        "learning_rate": choice(*_rate(learner, found.history)),
        "held_out_rows": choice(
            found.held_out_rows,
            "they judge states and choose rate and noise; they join the posterior at the end",
        ),
        **_in_memory(placed, budget),
        "rows_in_time": choice(*_rows_in_time(n_rows, data.n_rows)),
        "result": choice(found.result.name, found.result.value),
        **_standard_errors(found),
    }


def _in_memory(placed: Placement, budget: Budget) -> dict[str, Any]:
    """Where the rows of learning are, and what it takes."""
    return {
        "rows": choice(
            "device" if placed.on_device else "host",
            f"standardised copies on the device take at most {SHARE_FOR_ROWS:.0%} of the free memory",
        ),
        "memory": choice(
            placed.need, f"bytes needed beyond those in use, within a limit of {format_bytes(budget.limit)}"
        ),
    }


def shared_steps(devices: Devices, learner: AbstractLearner, n_rows: int) -> tuple[Devices, dict[str, Any]]:
    """Return the devices, which share mini-batches if the rule says so, and the entry of `plan_`."""
    if devices.mesh is None:
        return devices, {}
    shares, why = _shares_batches(devices, learner, min(learner.batch_size or n_rows, n_rows))
    found = Devices(devices.mesh, devices.shards, shares)
    entries = {
        "count": found.count,
        "processes": found.processes,
        "virtual_shards": found.shards,
        "batches": "spread" if found.steps else "whole",
    }
    return found, {"devices": choice(entries, why)}


def _shares_batches(devices: Devices, learner: AbstractLearner, batch_size: int) -> tuple[bool, str]:
    """Return whether devices share mini-batches of so many rows, and the reason."""
    if devices.count == 1:
        return devices.steps, "one device"
    if not learner.shares_steps:
        return False, "every device takes the learner's steps whole; passes over the rows are shared"
    if batch_size % devices.count:
        return False, f"batches of {batch_size} rows have no equal parts; passes over the rows are shared"
    if devices.steps:
        return True, AS_ASKED
    if not devices.share_work:
        return False, "devices of one processor share its cores; passes over the rows are shared"
    if batch_size < MIN_SHARED_BATCH:
        return False, f"batches of fewer than {MIN_SHARED_BATCH} rows; passes over the rows are shared"
    return True, f"batches of at least {MIN_SHARED_BATCH} rows: each device has its part"


def _standard_errors(found: FitResult) -> dict[str, Any]:
    if found.standard_errors is None:
        return {}
    errors, of_loss, df = found.standard_errors
    shown = named(errors) | {"loss": float(f"{of_loss:.3g}"), "degrees_of_freedom": df}
    why = "of the logarithms of the kernel's and the noise's parameters, and of the loss; rows that depend on one another allowed for"
    return {"standard_errors": choice(shown, why)}


def describe_end(results: Iterable[RESULTS | None], reason: str | None) -> dict[str, Any]:
    """What ended the fit; `reason` says what was done in place of what had no time."""
    found = set(results)
    for result, text in _SHORTENED.items():
        if result in found:
            return choice(result.name, text if reason is None else f"{text}; {reason}")
    return choice(PLANNED, "neither a limit nor an interrupt ended anything before its time")


def learning_text(entry: dict[str, float]) -> str:
    """One line of progress."""
    seconds = f"{entry['seconds']:.0f} s"
    if "trial_rate" in entry:
        return (
            f"trying learning rate {entry['trial_rate']:g}: {entry['criterion']:.4f} nats per row, {seconds}"
        )
    numbers = [
        f"{words} {entry[name]:.4f}"
        for name, words in (("loss", "loss"), ("nlml", "NLML"), ("held_out_nlpd", "held-out NLPD"))
        if name in entry and math.isfinite(entry[name])
    ]
    return ", ".join([f"learning, step {entry['step']:.0f}, epoch {entry['epoch']:.1f}", *numbers, seconds])


def _rows_in_time(n_rows: int, n_all: int) -> tuple[int | None, str]:
    return (None, "all of them") if n_rows >= n_all else (n_rows, "random ones: a time limit allowed no more")


def _scores(found: FitResult, log_unit: float) -> dict[str, Any]:
    """How held-out rows were predicted, in target units, and how a constant predicts them; nothing where none were held out."""
    scores = {name: getattr(found.evidence, name, None) for name in ("held_out_nlpd", "constant_nlpd")}
    why = {
        "held_out_nlpd": "nats per held-out row, before they joined",
        "constant_nlpd": "theirs under the mean and the variance of the training targets",
    }
    return {name: choice(value + log_unit, why[name]) for name, value in scores.items() if value is not None}


def _settings(learner: AbstractLearner) -> dict[str, Any]:
    """The fields that are plain values."""
    plain = (bool, int, float, str, type(None))
    fields = {field.name: getattr(learner, field.name) for field in dataclasses.fields(learner)}
    return {name: value for name, value in fields.items() if isinstance(value, plain)}


def _rows_reason(seen: int, n_rows: int) -> str:
    if seen == n_rows:
        return "all rows"
    return f"lengthscales and variances are those of {seen} of the {n_rows} rows, chosen at random"


def notes(plan: dict[str, Any], n_rows: int) -> list[str]:
    """What a user may not expect of the choices in `plan_`, a line each."""
    found = [
        f"column {name!r}: {note}" for name, note in plan.get("columns", {"choice": {}})["choice"].items()
    ]
    if "unused_rows" in plan:
        found.append(f"{plan['unused_rows']['choice']} rows {plan['unused_rows']['why']}")
    found += [plan["target_outliers"]["why"]] if "target_outliers" in plan else []
    found += [f"the targets are {plan['target_unit']['choice']}"] if "target_unit" in plan else []
    if "learning_rows" in plan and plan["learning_rows"]["choice"] < n_rows:
        found.append(plan["learning_rows"]["why"])
    if useless := worse_than_a_constant(plan):
        found.append(useless)
    if "learned_noise_variance" in plan:
        found.append(f"the noise variance is not the learned one: {plan['noise_variance']['why']}")
    if "new_rows" in plan and plan["new_rows"]["choice"] == AFTER:
        found.append(f"new rows are taken to come after the training rows: {plan['new_rows']['why']}")
    if "prediction" in plan and plan["prediction"]["choice"] == "local":
        found.append(f"prediction is local ({plan['prediction']['why']}): {LOCAL}")
    return found


def worse_than_a_constant(plan: dict[str, Any]) -> str:
    """What to say of a fit that does not help, by rows that were held out or by `caution` of some it was fitted to; "" for one that does."""
    if "caution" in plan:
        return plan["caution"]["choice"]
    if "held_out_nlpd" not in plan:
        return ""
    found, constant = (plan[name]["choice"] for name in ("held_out_nlpd", "constant_nlpd"))
    if found <= constant + SETTLED_BY:
        return ""
    return (
        f"held-out rows are predicted worse than by a constant: {found:.3f} nats per row, against {constant:.3f} for the mean and "
        "variance of the training targets. Predictions and their uncertainty may be useless"
    )


def _batch_reason(learner: AbstractLearner, used: int, asked: int | None) -> str:
    if learner.batch_size is None:
        return "the learner uses all rows, or all of a set"
    if used < learner.batch_size:
        return f"{learner.batch_size} was to be used, but there are only {used} rows to train on"
    return AS_ASKED if asked is not None else "the learner's own"


def _epochs_reason(learner: AbstractLearner) -> str:
    return "as asked, or the learner's own" if learner.epochs is not None else "chosen by the number of rows"


def _rate(learner: AbstractLearner, history: list[dict[str, float]]) -> tuple[float | None, str]:
    """(The learning rate, None where a rule of the step sets it; why)."""
    rate = next((entry["rate"] for entry in history if "rate" in entry), None)
    tried = sorted({entry["trial_rate"] for entry in history if "trial_rate" in entry})
    if tried:
        return rate, f"the best of short trials of {', '.join(map(str, tried))}: see history_"
    if callable(learner.learning_rate):
        return rate, "the learner's own rule of the step"
    return rate, "as asked, the learner's own, or the one for few rows"
