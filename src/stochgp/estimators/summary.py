"""A fitted model in words."""

import textwrap
from typing import Any

import numpy as np

from stochgp import features
from stochgp.choosing import WIDTH
from stochgp.estimators.report import notes
from stochgp.kernels import AbstractStationary, Product, Sum, Warped
from stochgp.kernels.rotated import Metric, along_inputs
from stochgp.likelihoods import Gaussian
from stochgp.names import printable
from stochgp.parameters import value_of

MOST_LISTED = 12  # inputs, the most relevant first


def summarise(estimator: Any) -> str:
    """Lines of text: data, model, noise, how far from exact, what was chosen and why. Raises NotFittedError before a fit."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    parts = [
        _title(estimator),
        *_of_data(estimator),
        *_of_model(estimator),
        *_of_fit(estimator),
        *_of_notes(estimator),
        "",
        "Chosen:",
    ]
    return printable("\n".join([*parts, str(estimator.plan_.without("columns"))]))


def relevance(estimator: Any) -> list[tuple[str, str, float]]:
    """(input, kernel, lengthscale) of every stationary kernel, shortest lengthscale first: the most relevant inputs.

    Of a kernel whose lengthscales are along other directions, that of each input alone (`kernels.rotated`). Lengthscales are in standard deviations of the inputs when `standardize=True`, else in the inputs' units.
    """
    kernel = getattr(estimator, "kernel_", None)
    names = _input_names(estimator)
    found = [item for part in _stationary(kernel) for item in _lengths(part, names)]
    return sorted(found, key=lambda item: item[2])


def _title(estimator: Any) -> str:
    target = f" of {estimator.target_name_!r}" if estimator.target_name_ else ""
    return f"{type(estimator).__name__}{target}, fitted in {estimator.fit_seconds_:.1f} s"


def _of_data(estimator: Any) -> list[str]:
    fitted = estimator._fitted
    inputs = getattr(fitted.encoder, "described", f"{len(fitted.inputs.mean)} numeric inputs")
    return [f"Data: {estimator.n_rows_} rows (equal ones counted once), {inputs}; " + _of_targets(fitted)]


def _of_targets(fitted: Any) -> str:
    transform = fitted.observation.transform
    if transform is None and fitted.observation.outward is not None:
        return "targets are counts"
    mean, scale = float(fitted.targets.mean), fitted.target_scale
    which = "targets" if transform is None else "transformed targets"
    if (taken_out := fitted.observation.mean_function) is not None:
        return f"{which} but for {taken_out.described} ± {scale:.4g} (taken out)"
    return f"{which} {mean:.4g} ± {scale:.4g} (mean and standard deviation taken out)"


def _of_model(estimator: Any) -> list[str]:
    lines = []
    if hasattr(estimator, "kernel_"):
        kernel, turned = value_of(estimator.kernel_), Metric.of(estimator.kernel_)
        if turned is None or not isinstance(kernel, Warped):
            lines.append(f"Kernel: {type(kernel).__name__}")
        else:
            lines.append(
                f"Kernel: {type(turned.kernel).__name__} along other directions; where one input alone changes,"
            )
        listed = relevance(estimator)
        for name, kind, length in listed[:MOST_LISTED]:
            lines.append(f"  {name}: lengthscale {length:.3g} ({kind})")
        if len(listed) > MOST_LISTED:
            lines.append(f"  and {len(listed) - MOST_LISTED} less relevant inputs")
    if hasattr(estimator, "features_"):
        phi, beyond = estimator.features_, ""
        if isinstance(phi, features.Sum) and isinstance(phi.right, features.Extrapolation):
            phi, beyond = phi.left, f", {phi.right.n_features} beyond the range of the rows"
        lines.append(f"Features: {phi.n_features} of {type(phi).__name__}{beyond}")
    if hasattr(estimator, "noise_variance_"):
        std, scale = estimator.noise_variance_**0.5, estimator._fitted.target_scale
        share = (std / scale) ** 2
        lines.append(f"Noise: standard deviation {std:.4g}, {share:.2%} of the targets' variance")
    observation = estimator._fitted.observation
    other = observation.inflation is not None or not isinstance(observation.likelihood, Gaussian)
    if other and "likelihood" in estimator.plan_:  # a classifier's is known by its classes
        lines.append(f"Observations around predictions: {estimator.plan_['likelihood']['choice']}")
    return lines


def _of_fit(estimator: Any) -> list[str]:
    lines = [f"Fit: {estimator.n_iter_} steps, {'converged' if estimator.converged_ else 'NOT converged'}"]
    if hasattr(estimator, "nlml_"):
        lines[0] += f"; exact negative log marginal likelihood {estimator.nlml_:.4f} per row"
    if hasattr(estimator, "elbo_"):
        lines[0] += f"; lower bound of the log marginal likelihood {estimator.elbo_:.4f} per row"
    if (residual := estimator.fit_report_.get("residual")) is not None:
        lines[0] += f"; relative residual {residual:.2g}, measured on all rows"
    return lines


def _of_notes(estimator: Any) -> list[str]:
    seen = estimator._fitted.seen
    outside = "" if seen is None else seen.note()
    found = [*notes(estimator.plan_, estimator.fit_report_, estimator.n_rows_), *filter(None, [outside])]
    return [textwrap.fill(f"Note: {note}", WIDTH, subsequent_indent="      ") for note in found]


def _input_names(estimator: Any) -> list[str]:
    encoder = estimator._fitted.encoder
    names = None if encoder is None else list(encoder.output_names)
    return names or [f"x{i}" for i in range(len(estimator._fitted.inputs.mean))]


def _stationary(kernel: Any) -> list[AbstractStationary]:
    """Those of a kernel whose inputs are the data's own."""
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return _stationary(kernel.left) + _stationary(kernel.right)
    found = along_inputs(kernel)
    return [] if found is None else [found]


def _lengths(kernel: AbstractStationary, names: list[str]) -> list[tuple[str, str, float]]:
    used = names if kernel.active_dims is None else [names[i] for i in kernel.active_dims]
    lengths = np.broadcast_to(np.asarray(kernel.lengthscale, np.float64), (len(used),))
    return [(name, type(kernel).__name__, float(length)) for name, length in zip(used, lengths, strict=True)]
