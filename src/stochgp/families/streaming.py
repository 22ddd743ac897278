"""Feature GPs that take rows in as they come: sums of moments, with the features and both variances held."""

import dataclasses
import typing
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from stochgp.data import Standardiser
from stochgp.data.rows import Rows
from stochgp.data.streams import HostRows
from stochgp.estimators.fitted import Fitted
from stochgp.models import FeatureGP
from stochgp.objectives import Moments, nlml_of_spectrum, spectrum
from stochgp.objectives.moments import add_up
from stochgp.posteriors import FeaturePosterior
from stochgp.posteriors.feature import BLOCK


class Stream(NamedTuple):
    """What a fitted feature GP needs to take in more rows: the sums over all rows so far, and the output scale (a variance)."""

    moments: Moments
    variance: float


def begun(gp: FeatureGP, moments: Moments) -> Stream:
    """The stream of a model that was just fitted, on the host."""
    return Stream(jax.tree.map(_wide, moments), float(gp.variance))


def moments_of(fitted: Fitted, new: Rows) -> Moments:
    """The sums over rows in the user's units. Always by blocks of BLOCK rows, so that no row's features depend on how rows are cut into calls."""
    posterior = _posterior(fitted)
    gp = FeatureGP(features=posterior.features, noise=posterior.noise)
    units = {"inputs": fitted.inputs, "targets": fitted.targets, "dtype": np.dtype(fitted.dtype)}
    rows = HostRows(new.X, fitted.observation.centred(new.X, new.y), new.weight, **units)
    with jax.enable_x64(True):
        return jax.tree.map(_wide, add_up(gp, rows.blocks(BLOCK)))


def added(stream: Stream, more: Moments, forget: float = 1.0) -> Stream:
    """forget · (the sums so far) + the new ones: rows of k calls ago weigh forgetᵏ."""
    return stream._replace(moments=jax.tree.map(lambda a, b: forget * a + b, stream.moments, more))


def taken_in(fitted: Fitted, stream: Stream) -> tuple[Fitted, float]:
    """(The posterior of all rows of the stream, their exact NLML per datum of standardised targets)."""
    posterior = _posterior(fitted)
    with jax.enable_x64(True):
        s, s2 = spectrum(stream.moments), float(posterior.noise.level)
        found = FeaturePosterior.of(posterior.features, s, stream.variance, s2, posterior.noise)
    return dataclasses.replace(fitted, posterior=found), nlml_of_spectrum(s, stream.variance, s2)[0]


def check_mergeable(one: Fitted, other: Fitted) -> None:
    """Raises ValueError unless both models see rows in the same way: equal features, noise and standardisers."""
    same = _same(one.inputs, other.inputs) and _same(one.targets, other.targets)
    for part in ("transform", "mean_function"):
        same = same and bool(eqx.tree_equal(*(getattr(each.observation, part) for each in (one, other))))
    leaves = [jax.tree.leaves((_posterior(f).features, _posterior(f).noise)) for f in (one, other)]
    if not (same and len(leaves[0]) == len(leaves[1]) and all(map(_alike, *leaves))):
        raise ValueError(
            "merge takes a model with the same features, variances and standardisers: load one fitted model twice, and let each take in rows of its own"
        )


def _posterior(fitted: Fitted) -> FeaturePosterior:
    return typing.cast(FeaturePosterior, fitted.posterior)


def _wide(part: Any) -> np.ndarray:
    return np.asarray(part, np.float64)


def _alike(one: Any, other: Any) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other))


def _same(one: Standardiser, other: Standardiser) -> bool:
    return _alike(one.mean, other.mean) and _alike(one.scale, other.scale)
