"""A visit: what the host learns of a state between two stretches of steps."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from stochgp.data.streams import AbstractSource
from stochgp.learners.base import AbstractLearner
from stochgp.models import FeatureGP, range_within
from stochgp.objectives import Moments, Spectrum, add_up, chunk_rows, nlml_of_spectrum, refit, spectrum
from stochgp.objectives.feature import NOISE_RANGE, VARIANCE_RANGE
from stochgp.objectives.held_out import HeldOut, nlpd_of_spectrum, refit_held_out
from stochgp.planning.steps import held_out_rows


class Split(NamedTuple):
    """Which rows train and which are held out (none: empty)."""

    train: Int[np.ndarray, " n"]
    held_out: Int[np.ndarray, " V"]


class Variances(NamedTuple):
    """The two variances of a feature GP."""

    variance: float
    noise_variance: float


class Visit(NamedTuple):
    """θ, its exact moments over the training rows, and what they say."""

    gp: FeatureGP
    moments: Moments
    spectrum: Spectrum
    fitted: Variances  # lowest exact NLML of the training rows (θ's own where the learner does not refit)
    chosen: Variances  # the same, or lowest held-out NLPD
    nlml: float
    nlpd: float | None

    @property
    def criterion(self) -> float:
        return self.nlml if self.nlpd is None else self.nlpd


def make_split(n_rows: int, fraction: float, seed: tuple[int, ...]) -> Split:
    """Holds out `planning.held_out_rows` random rows."""
    n_held_out, rows = held_out_rows(n_rows, fraction), np.arange(n_rows, dtype=np.int32)
    if n_held_out == 0:
        return Split(rows, rows[:0])
    order = np.random.default_rng(seed).permutation(rows)
    return Split(np.sort(order[n_held_out:]), np.sort(order[:n_held_out]))


def examine(learner: AbstractLearner, gp: FeatureGP, source: AbstractSource, split: Split) -> Visit:
    """One pass over the rows: exact moments, the exact NLML, the held-out NLPD and the refits."""
    size = chunk_rows(gp.n_features)
    moments = add_up(gp.features, source.chunks(split.train, size))
    found = Variances(float(gp.variance), float(gp.noise_variance))
    if not all(bool(jnp.all(jnp.isfinite(part))) for part in moments):
        empty = np.full(gp.n_features, np.nan)
        nothing = Spectrum(empty, np.diag(empty), empty, np.nan, float(moments.count))
        return Visit(gp, moments, nothing, found, found, np.nan, None if len(split.held_out) == 0 else np.nan)
    s = spectrum(moments)
    limits = {
        "variance_range": range_within(gp.variance, VARIANCE_RANGE),
        "noise_range": range_within(gp.noise_variance, NOISE_RANGE),
    }
    fitted = Variances(*refit(s, *found, **limits)) if learner.refit else found
    nlml = nlml_of_spectrum(s, *fitted)[0]
    if len(split.held_out) == 0:
        return Visit(gp, moments, s, fitted, fitted, nlml, None)
    held_out = _held_out(gp, source, split, s, size)
    chosen = Variances(*refit_held_out(s, held_out, *fitted, **limits)) if learner.refit else found
    nlpd = nlpd_of_spectrum(s, held_out, *chosen)[0]
    return Visit(gp, moments, s, fitted, chosen, nlml, nlpd)


def on_all_rows(visit: Visit, source: AbstractSource, split: Split) -> tuple[Spectrum, float]:
    """(moments of training and held-out rows together in their eigenbasis, exact NLML of all rows) at the chosen variances."""
    s = visit.spectrum
    if len(split.held_out) > 0:
        more = add_up(visit.gp.features, source.chunks(split.held_out, chunk_rows(visit.gp.n_features)))
        s = spectrum(jax.tree.map(jnp.add, visit.moments, more))
    return s, nlml_of_spectrum(s, *visit.chosen)[0]


def _held_out(gp: FeatureGP, source: AbstractSource, split: Split, s: Spectrum, size: int) -> HeldOut:
    P, y, weight = [], [], []
    for rows in source.chunks(split.held_out, size):
        P.append(np.asarray(_features(gp.features, rows.X), np.float64) @ s.basis)
        y.append(np.asarray(rows.y, np.float64))
        weight.append(np.asarray(rows.weight, np.float64))
    weight = np.concatenate(weight)
    there = weight > 0
    return HeldOut(np.concatenate(P)[there], np.concatenate(y)[there], weight[there])


@eqx.filter_jit
def _features(features, X):
    return features(X)
