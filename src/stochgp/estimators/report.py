"""Reports of a fit: measured numbers, progress lines, notes and the summary."""

import dataclasses
import math
import textwrap
from typing import Any

import numpy as np

from stochgp import features
from stochgp.choosing import WIDTH
from stochgp.context import FitContext
from stochgp.data.time_order import FORECAST
from stochgp.data.training import TrainingData
from stochgp.kernels import AbstractStationary, Product, Sum, Warped
from stochgp.kernels.warped import along_inputs, kernel_and_directions
from stochgp.learners import AbstractLearner
from stochgp.likelihoods import Gaussian
from stochgp.names import printable
from stochgp.parameters import value_of
from stochgp.results import FitResult

LOCAL = "covariances, function samples and the likelihood are not available"


def record_learning(
    learner: AbstractLearner, found: FitResult, n_rows: int, data: TrainingData, context: FitContext,
) -> None:  # fmt: skip
    """Record the number of rows used for learning, and measured numbers of the run."""
    seen = learner.seen_rows(n_rows)
    if seen < data.n_rows:
        why = f"hyperparameters were learned from {seen} of the {data.n_rows} rows, chosen at random"
        context.record("learning_rows", seen, why)
    settings = {field.name: getattr(learner, field.name) for field in dataclasses.fields(learner)}
    plain = bool | int | float | str | None
    context.report |= {
        "learner": {name: value for name, value in settings.items() if isinstance(value, plain)},
        "gradients": "exact" if learner.exact else "stochastic",
        "batch_size": found.plan.batch_size,
        "epochs": found.plan.total_steps / found.plan.steps_per_epoch,
        "learning_rate": next((entry["rate"] for entry in found.history if "rate" in entry), None),
        "held_out_rows": found.held_out_rows,
        "result": found.result.name,
    }
    for name in ("held_out_nlpd", "constant_nlpd"):
        if (value := getattr(found.evidence, name, None)) is not None:
            context.report[name] = value + data.log_unit  # nats per row, in target units


def learning_text(entry: dict[str, float]) -> str:
    """Return a progress line for an entry of the history."""
    if "trial_rate" in entry:
        return f"trying learning rate {entry['trial_rate']:g}: {entry['criterion']:.4f} nats per row"
    text = f"learning, step {entry['step']:.0f}, epoch {entry['epoch']:.1f}"
    for name, words in (("loss", "loss"), ("nlml", "NLML"), ("held_out_nlpd", "held-out NLPD")):
        if math.isfinite(entry.get(name, math.nan)):
            text += f", {words} {entry[name]:.4f}"
    return text


def notes(plan: dict[str, Any], n_rows: int) -> list[str]:
    """Return notes about decisions of a fit that may surprise users."""
    columns = plan.get("columns", {"choice": {}})["choice"]
    found = [f"column {name!r}: {note}" for name, note in columns.items()]
    if "unused_rows" in plan:
        found.append(f"{plan['unused_rows']['choice']} rows {plan['unused_rows']['why']}")
    found += [plan["target_outliers"]["why"]] if "target_outliers" in plan else []
    found += [f"the targets are {plan['target_unit']['choice']}"] if "target_unit" in plan else []
    if "learning_rows" in plan and plan["learning_rows"]["choice"] < n_rows:
        found.append(plan["learning_rows"]["why"])
    found += [plan["caution"]["choice"]] if "caution" in plan else []
    if "noise_floor" in plan:
        found.append(f"the noise variance was raised above the learned value: {plan['noise_floor']['why']}")
    if "time_order" in plan and plan["time_order"]["choice"] == FORECAST:
        found.append(f"new rows are assumed to be later than the training rows: {plan['time_order']['why']}")
    if "prediction" in plan and plan["prediction"]["choice"] == "local":
        found.append(f"predictions use only nearby rows ({plan['prediction']['why']}): {LOCAL}")
    return found


MAX_LISTED, MAX_LINES = 3, 20  # listed inputs; lines of a summary


def summarise(estimator: Any) -> str:
    """Return the summary. Raises NotFittedError before `fit`."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    target = f" of {estimator.target_name_!r}" if estimator.target_name_ else ""
    inputs = f"{len(estimator._fitted.inputs.mean)} numeric inputs"
    inputs = getattr(estimator._fitted.encoder, "described", inputs)
    parts = [
        f"{type(estimator).__name__}{target}, fitted in {estimator.fit_seconds_:.1f} s",
        f"Data: {estimator.n_rows_} rows (repeated rows counted once), {inputs}; {_of_targets(estimator)}",
        *_of_model(estimator),
        _of_fit(estimator),
    ]
    return with_notes(parts, notes(estimator.plan_, estimator.n_rows_))


def with_notes(lines: list[str], found: list[str]) -> str:
    """Return the lines of a summary with as many notes as fit in MAX_LINES."""
    wrapped = [textwrap.wrap(f"Note: {note}", WIDTH, subsequent_indent="      ") for note in found]
    for number, note in enumerate(wrapped):
        if len(lines) + len(note) > MAX_LINES - 2:
            lines = [*lines, f"{len(wrapped) - number} more notes in plan_"]
            break
        lines = lines + note
    return printable("\n".join([*lines, "Decisions and their reasons: plan_. Measurements: fit_report_."]))


def relevance(estimator: Any) -> list[tuple[str, float]]:
    """Return (input name, lengthscale) for all stationary kernels, shortest lengthscale first.

    For rotated inputs, lengthscales along single inputs are computed (`kernels.warped.along_inputs`).
    """
    encoder, found = estimator._fitted.encoder, []
    names = None if encoder is None else list(encoder.output_names)
    names = names or [f"x{i}" for i in range(len(estimator._fitted.inputs.mean))]
    for kernel in _stationary(getattr(estimator, "kernel_", None)):
        used = names if kernel.active_dims is None else [names[i] for i in kernel.active_dims]
        lengths = np.broadcast_to(np.asarray(kernel.lengthscale, np.float64), (len(used),)).tolist()
        found += zip(used, lengths, strict=True)
    return sorted(found, key=lambda item: item[1])


def shortest_lengthscales(estimator: Any) -> list[str]:
    """Return a line with the inputs of shortest lengthscale; no line without such a kernel."""
    listed = [f"{name} {length:.3g}" for name, length in relevance(estimator)]
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    return [f"Shortest lengthscales: {', '.join(listed[:MAX_LISTED])}{more}"] if listed else []


def _of_targets(estimator: Any) -> str:
    if hasattr(estimator, "classes_"):
        return f"{len(estimator.classes_)} classes"
    fitted = estimator._fitted
    transform = fitted.observation.transform
    if transform is None and fitted.observation.outward is not None:
        return "targets are counts"
    mean, scale = float(fitted.targets.mean), fitted.target_scale
    which = "targets" if transform is None else "transformed targets"
    if (taken_out := fitted.observation.mean_function) is not None:
        return f"{which} minus {taken_out.described}, with standard deviation {scale:.4g}"
    return f"{which} with mean {mean:.4g} and standard deviation {scale:.4g}"


def _of_model(estimator: Any) -> list[str]:
    lines = []
    if hasattr(estimator, "kernel_"):
        kernel, turned = value_of(estimator.kernel_), kernel_and_directions(estimator.kernel_)
        name = type(kernel).__name__
        if turned is not None and isinstance(kernel, Warped):
            name = f"{type(turned[0]).__name__} on rotated inputs"
        n_inducing = estimator.plan_.get("n_inducing")
        lines.append(f"Kernel: {name}" + (f", {n_inducing['choice']} inducing points" if n_inducing else ""))
        lines += shortest_lengthscales(estimator)
    if hasattr(estimator, "features_"):
        phi, beyond = estimator.features_, ""
        if isinstance(phi, features.Sum) and isinstance(phi.right, features.Extrapolation):
            phi, beyond = phi.left, f", {phi.right.n_features} for extrapolation"
        lines.append(f"Features: {phi.n_features} ({type(phi).__name__}){beyond}")
    if hasattr(estimator, "noise_variance_"):
        std, scale = estimator.noise_variance_**0.5, estimator._fitted.target_scale
        share = (std / scale) ** 2
        lines.append(f"Noise: standard deviation {std:.4g}, {share:.2%} of the targets' variance")
    observation = estimator._fitted.observation
    other = observation.inflation is not None or not isinstance(observation.likelihood, Gaussian)
    if other and "likelihood" in estimator.plan_:  # not for classifiers
        lines.append(f"Distribution of observations: {estimator.plan_['likelihood']['choice']}")
    return lines


def _of_fit(estimator: Any) -> str:
    line = f"Fit: {estimator.n_iter_} steps, {'converged' if estimator.converged_ else 'NOT converged'}"
    if hasattr(estimator, "nlml_"):
        line += f"; exact negative log marginal likelihood {estimator.nlml_:.4f} per row"
    if hasattr(estimator, "elbo_"):
        line += f"; lower bound of the log marginal likelihood {estimator.elbo_:.4f} per row"
    if (residual := estimator.fit_report_.get("residual")) is not None:
        line += f"; relative residual {residual:.2g}, measured on all rows"
    if (score := estimator.fit_report_.get("held_out_nlpd")) is not None:
        line += f"; NLPD of held-out rows {score:.4f}, constant prediction {estimator.fit_report_['constant_nlpd']:.4f}"
    return line


def _stationary(kernel: Any) -> list[AbstractStationary]:
    """Return the stationary kernels with lengthscales along the columns of the data."""
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return _stationary(kernel.left) + _stationary(kernel.right)
    found = along_inputs(kernel)
    return [] if found is None else [found]
