"""Noise that depends on the input, learned on from a feature GP with constant noise; kept where held-out rows say so."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.choosing import Preference, prefer, too_few
from stochgp.data.streams import AbstractSource
from stochgp.devices import ONE, Devices
from stochgp.features import AbstractFeatureMap, Network
from stochgp.learning.base import AbstractLearner
from stochgp.learning.evidence import Evidence
from stochgp.learning.fit import fit
from stochgp.learning.going_on import DONE, gone_on
from stochgp.learning.run import Going
from stochgp.likelihoods import HeadNoise
from stochgp.models import FeatureGP
from stochgp.networks import Embedded, mlp, smooth_clip
from stochgp.results import FitResult

FEWEST_HELD_OUT = 500  # rows that a choice of noise needs
SHARE_OF_STEPS = 1 / 3  # of the steps planned for constant noise
SHARE_OF_RATE = 1 / 3  # of the rate found for it
WIDTHS = (64, 64)  # of the network whose outputs the head is linear in
SAMPLE_ROWS = 10_000  # from which its inputs are clipped


def refusal(first: FitResult, *, to_choose: bool) -> str | None:
    """Why no other noise model is tried; None where one can be. Choosing between them (`to_choose`) takes held-out rows."""
    if first.evidence is None:
        return "the learner knows no other"
    held_out = first.evidence.held_out
    if to_choose:
        few = too_few(0) if held_out is None else too_few(len(held_out.value), held_out.cell, FEWEST_HELD_OUT)
        if few is not None:
            return f"held out {few}"
    if first.result not in DONE:
        return "the run was ended before another could be tried"
    return None


def head_features(source: AbstractSource, dtype: str, *, key: PRNGKeyArray) -> AbstractFeatureMap:
    """The outputs of a small network of smoothly clipped inputs."""
    some = np.linspace(0, source.size - 1, min(source.size, SAMPLE_ROWS)).astype(np.int64)
    clip = smooth_clip(np.asarray(source.on_host(some).X), dtype=dtype)
    return Network(Embedded(clip, mlp(source.n_inputs, WIDTHS, key=key, dtype=dtype)))


def with_head(gp: FeatureGP, features: AbstractFeatureMap) -> FeatureGP:
    """The model with a head on `features`, which makes no difference yet."""
    noise = HeadNoise(gp.noise_variance, features, _zeros(features, gp))
    return FeatureGP(features=gp.features, noise=noise, variance=gp.variance)


def learned_further(
    first: FitResult, gp: FeatureGP, learner: AbstractLearner, source: AbstractSource, going: Going
) -> FitResult:
    """Further steps from `first` on with the model `gp`, in one cycle. With the key of `first` the same rows are held out."""
    per_epoch = first.plan.steps_per_epoch
    options: dict[str, Any] = {"epochs": max(1, round(SHARE_OF_STEPS * first.plan.total_steps / per_epoch))}
    if (rate := rate_of(first, learner)) is not None:
        options["learning_rate"] = SHARE_OF_RATE * rate
    return gone_on(first, gp, dataclasses.replace(learner, **options), source, going)


def twin(
    second: FitResult,
    first: FitResult,
    learner: AbstractLearner,
    source: AbstractSource,
    *,
    key: PRNGKeyArray,
    devices: Devices = ONE,
) -> FitResult:
    """The fit that `second` is compared with: its features, and constant noise as in `first`, with both variances fitted again.

    So that the further steps of `second` do not count as a gain of its noise model.
    """
    gp = FeatureGP(features=second.gp.features, noise=first.gp.noise, variance=second.gp.variance)
    return fit(learner, gp, source, key=key, max_steps=0, devices=devices)


def best_constant(*runs: FitResult) -> FitResult:
    """The run whose held-out rows have the highest density."""
    scores = [run.evidence.held_out_nlpd for run in runs]
    return runs[int(np.nanargmin([np.inf if score is None else score for score in scores]))]


def compared(first: Evidence, second: Evidence, what: str) -> Preference:
    """Whether the second, called `what`, predicts held-out rows better than the first; rows weigh what they count."""
    one, other = first.held_out, second.held_out
    if one is None or other is None:
        raise ValueError("a gain is that of rows which were held out of both runs, and there are none")
    return prefer(-one.value, {what: -other.value}, one.cell, one.weight)


def rate_of(first: FitResult, learner: AbstractLearner) -> float | None:
    """The rate that `first` found or was given; None where a rule of the step sets it."""
    if learner.learning_rate is not None:
        return None if callable(learner.learning_rate) else learner.learning_rate
    return next((entry["rate"] for entry in first.history if "rate" in entry), None)


def _zeros(features: AbstractFeatureMap, gp: FeatureGP) -> jax.Array:
    return jax.numpy.zeros(features.n_features, gp.noise_variance.dtype)
