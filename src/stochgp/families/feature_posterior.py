"""Updates, extrapolation and refits of feature GPs."""

import dataclasses
import time
import typing
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.context import FitContext
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.estimators.fitted import Fitted
from stochgp.features import Extrapolation
from stochgp.learners.base import AbstractLearner
from stochgp.learners.evaluators import FEW_ROWS
from stochgp.learners.evidence import ByEvidence, Evidence
from stochgp.learning.fit import DONE, fit
from stochgp.models import FeatureGP, range_within
from stochgp.numerics.arrays import filled_up, matmul
from stochgp.objectives import nlml_of_spectrum, spectrum
from stochgp.objectives.feature import NOISE_RANGE, VARIANCE_RANGE, refit, times_square
from stochgp.objectives.moments import Moments, add_up, moments_on_host
from stochgp.posteriors import FeaturePosterior
from stochgp.posteriors.feature import BLOCK
from stochgp.results import RESULTS, FitResult

Stream = tuple[Moments, float]
"""The moments of all rows so far, and the output scale (a variance)."""


def stream_of(gp: FeatureGP, moments: Moments) -> Stream:
    """Return the moments and the output variance that `partial_fit` needs."""
    return jax.tree.map(_wide, moments), float(gp.variance)


def moments_of(fitted: Fitted, new: Data) -> Moments:
    """Return the moments of rows, block by block; the division into calls has no effect."""
    posterior = _posterior(fitted)
    gp = FeatureGP(features=posterior.features, noise=posterior.noise)
    units = {"inputs": fitted.inputs, "targets": fitted.targets, "dtype": np.dtype(fitted.dtype)}
    rows = MemorySource(new.X, fitted.observation.centred(new.X, new.y), new.weight, **units, on_device=False)
    with jax.enable_x64(True):
        return jax.tree.map(_wide, add_up(gp, rows.equal_blocks(BLOCK)))


def with_rows(fitted: Fitted, more: Moments, forget: float) -> tuple[Fitted, float]:
    """Return the posterior of forget · (earlier moments) + `more`, and its NLML per row."""
    posterior, (before, variance) = _posterior(fitted), fitted.stream
    moments = jax.tree.map(lambda a, b: forget * a + b, before, more)
    with jax.enable_x64(True):
        s, s2 = spectrum(moments), float(posterior.noise.level)
        found = FeaturePosterior.of(posterior.features, s, variance, s2, posterior.noise)
    fitted = dataclasses.replace(fitted, posterior=found, stream=(moments, variance))
    return fitted, nlml_of_spectrum(s, variance, s2)[0]


def _posterior(fitted: Fitted) -> FeaturePosterior:
    return typing.cast(FeaturePosterior, fitted.posterior)


def _wide(part: Any) -> np.ndarray:
    return np.asarray(part, np.float64)


SLOPE_ROWS = 1_000  # rows to estimate slopes
LONGEST = 100.0  # maximum lengthscale outside the range, in standard deviations of the input
MEDIAN = 0.6745  # median of |z|, z ~ N(0, 1)


def beyond_limits(
    posterior: FeaturePosterior, variance: float, data: TrainingData, *, key: PRNGKeyArray
) -> Extrapolation:
    """Return features for inputs outside the training range.

    Far outside, f varies as much as the targets. Near the range, f has typical slopes of the posterior mean.
    Slopes of a stationary GP are Gaussian, so median |slope| / 0.6745 estimates the root mean square slope.
    """
    some = np.linspace(0, data.n_rows - 1, min(data.n_rows, SLOPE_ROWS)).astype(np.int64)
    X = data.inputs.transform(data.rows.X[some], data.dtype)
    found = np.asarray(_slopes(posterior, filled_up(np.asarray(X), SLOPE_ROWS)))[: len(X)]
    slopes = np.asarray(np.median(np.abs(found), axis=0) / found.dtype.type(MEDIAN), np.float64)
    limits = data.inputs.transform(data.limits, data.dtype)
    scale = 1.0 if data.standardized else np.maximum(data.rows.X[some].std(axis=0), 1e-30)
    far, near = data.spread / variance, slopes / variance**0.5
    return Extrapolation.init(limits, far, near, longest=LONGEST * scale, key=key, dtype=data.dtype)


@eqx.filter_jit
def _slopes(posterior: FeaturePosterior, X: Float[Any, "n D"]) -> Float[Array, "n D"]:
    """Return the slopes ∂m/∂x_d of the posterior mean m at each row."""

    def mean(x: Array) -> Array:
        return matmul(posterior.features(x[None]).astype(posterior.weights.dtype), posterior.weights)[0]

    return jax.vmap(jax.grad(mean))(jnp.asarray(X))


def learned_variances(gp: FeatureGP, data: TrainingData, context: FitContext) -> FitResult:
    """Return the noise and output variances that maximise the likelihood of linear features."""
    began = time.perf_counter()
    moments = moments_on_host(gp, Data(data.X, data.y, data.rows.weights))
    found, own = spectrum(moments), (gp.variance, gp.noise_variance)
    limits = zip(own, (VARIANCE_RANGE, NOISE_RANGE), strict=True)
    ranges: Any = [range_within(part, times_square(widest, found)) for part, widest in limits]
    start = tuple(float(part) for part in own)
    variances = refit(found, *start, variance_range=ranges[0], noise_range=ranges[1])
    nlml = nlml_of_spectrum(found, *variances)[0]
    context.report |= {
        "gradients": "none: the features have no parameters",
        "result": RESULTS.successful.name,
    }
    numbers = {"nlml": nlml, "variance": variances[0], "noise_variance": variances[1]}
    entry = {"step": 1.0, "epoch": 1.0, **numbers, "seconds": time.perf_counter() - began}
    evidence, gp = Evidence(moments, found, nlml, None, None), gp.with_variances(*variances)
    plan: Any = None
    return FitResult(gp, nlml, evidence, 1, True, RESULTS.successful, [entry], entry["seconds"], plan, 0)


def refit_on_all_rows(
    first: FitResult,
    gp: FeatureGP,
    learner: AbstractLearner,
    source: MemorySource,
    context: FitContext,
) -> FitResult:
    """Learn again from `gp` without held-out rows, with the steps and rate of `first`.

    Return `first` if it used many rows, or if time ended the second run. The result has both variances of
    `first`, because features learned from all rows nearly interpolate these rows.
    """
    evaluator = learner.evaluator_for(first.gp)
    few = first.held_out_rows > 0 and source.size - first.held_out_rows < FEW_ROWS
    refits = isinstance(evaluator, ByEvidence) and evaluator.refit and learner.batch_size is not None
    if not (few and refits and first.result in DONE):
        return first
    B, options = first.plan.batch_size, dict[str, Any]()
    if learner.learning_rate is None:  # the rate from trials, or None if a rule sets the rate
        options["learning_rate"] = next((entry["rate"] for entry in first.history if "rate" in entry), None)
    epochs = max(1, round(first.n_iter / max(1, source.size // B)))
    held = dataclasses.replace(evaluator, validation_fraction=0.0)
    options |= {"batch_size": B, "epochs": epochs, "evaluator": held}
    again = dataclasses.replace(learner, **options)
    checkpoint = context.checkpoint_of("refit")
    second = fit(again, gp, source, key=context.learn_key, checkpoint=checkpoint)
    if second.result not in DONE or second.evidence is None:
        ended = second.result in (RESULTS.interrupted, RESULTS.stopped)
        return first._replace(result=second.result) if ended else first
    variances = float(first.gp.variance), float(first.gp.noise_variance)
    evidence = first.evidence._replace(
        moments=second.evidence.moments,
        spectrum=second.evidence.spectrum,
        nlml=nlml_of_spectrum(second.evidence.spectrum, *variances)[0],
    )
    context.report["refit_steps"] = second.n_iter
    return first._replace(
        gp=second.gp.with_variances(*variances),
        evidence=evidence,
        n_iter=first.n_iter + second.n_iter,
        seconds=first.seconds + second.seconds,
    )
