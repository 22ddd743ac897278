"""Targets of regressors: their transform, a fitted prior mean, and rows set aside for a calibration."""

import dataclasses
from typing import Any

import numpy as np

from stochgp.choosing import AS_ASKED
from stochgp.context import FitContext
from stochgp.data.files import FileSource
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.distributions import ConformalScores, PITRecalibration
from stochgp.distributions.calibrating import FEWEST
from stochgp.estimators.fitted import Fitted
from stochgp.likelihoods import Warped
from stochgp.likelihoods.base import TRANSFORMS, as_transform
from stochgp.numerics.clustered import divisible, reaching
from stochgp.objectives.warping import fit_transforms
from stochgp.observations import MEANS, LinearMean
from stochgp.tables.targets import refuse_no_counts
from stochgp.transforms import AbstractTransform, Log

TARGETS = {"real": None, "positive": "log", "count": "count"}  # `target=` and its transform
CANDIDATES = ("sinh-arcsinh",)  # candidates of "auto"
POSITIVE_CANDIDATES = ("log",)  # further candidates if all targets are positive
CONFORMAL = "conformal"
SHARE, MOST = 0.1, 2000  # of the rows, and rows, that are set aside
LEAST_KEPT = 200  # rows that the fit is to have
TIED = 0.002  # of all pairs of targets, which may be equal: rounded numbers are, now and then, atoms often


def target_transform(likelihood: Any, target: str) -> AbstractTransform | str | None:
    """Return the transform of `likelihood=` or `target=`. Raises ValueError if both set one."""
    of_target = TARGETS[target]
    if not isinstance(likelihood, Warped):
        return None if of_target is None else as_transform(of_target)
    if of_target is not None:
        raise ValueError(
            f"target={target!r} is a transform of its own: leave it, or the Warped likelihood, out"
        )
    return likelihood.transform


def standardised(
    rows: Data, mean: float | str | None, estimator: Any, leaves_inputs: bool, context: FitContext
) -> TrainingData:
    """Return the data, standardised as set; less a fitted mean if `mean` is its name."""
    settings = bool(estimator.standardize), estimator.dtype
    if not isinstance(mean, str):
        return TrainingData.of(rows, settings[0], mean, settings[1], leaves_inputs)
    found, values = MEANS[mean].fit(rows)
    variance = lambda part: float(np.cov(part, ddof=0, aweights=rows.weight))
    share = 1.0 - variance(rows.y - values) / (variance(rows.y) or 1.0)
    values = found(rows.X) if isinstance(found, LinearMean) else values
    rest = dataclasses.replace(rows, y=rows.y - values)
    data = TrainingData.of(rest, settings[0], None, settings[1], leaves_inputs)
    context.record("mean", mean, f"{share:.0%} of the variance of the targets is that of {found.described}")
    return dataclasses.replace(data, mean_function=found, mean_values=values)


def transformed(
    rows: Data,
    wanted: AbstractTransform | str,
    estimator: Any,
    leaves_inputs: bool,
    context: FitContext,
) -> TrainingData:
    """Return the data with transformed targets. A numeric `mean` is in original units.

    Raises ValueError, naming a target, for targets that the transform does not take.
    """
    if estimator.target == "count":
        refuse_no_counts(rows.y)
    mean = estimator.mean
    plain = TrainingData.of(rows, bool(estimator.standardize), None, estimator.dtype, leaves_inputs)
    T = _fitted_transform(wanted, rows, plain, context)
    if T is None:
        return standardised(rows, mean, estimator, leaves_inputs, context)
    if mean is not None and not isinstance(mean, str):
        T.check(np.atleast_1d(np.float64(mean)))
        mean = float(T(np.asarray(mean, np.float64)))
    z = np.asarray(T(rows.y), np.float64)
    data = standardised(dataclasses.replace(rows, y=z), mean, estimator, leaves_inputs, context)
    slope = float(np.average(T.log_slope(rows.y), weights=data.rows.weights))
    return dataclasses.replace(data, transform=T, log_slope=slope)


def refuse_learned_transform(wanted: AbstractTransform | str | None) -> None:
    """Raise ValueError for a transform with parameters, which targets in files do not have."""
    if wanted is not None and not isinstance(wanted, Log):
        raise ValueError(
            "of targets in files the transforms 'log' and 'count' are taken, which have no parameters to learn: give arrays or a table for others"
        )


def transformed_files(data: TrainingData, found: FileSource, context: FitContext) -> TrainingData:
    """Return the data of files with their transform T = log(y + c): mean log T' is −mean T."""
    T = found.transform
    whole = data.everything is None
    mean = np.average(data.rows.y, weights=data.rows.weights) if whole else found.of_targets.mean[0]
    context.record("transform", type(T).__name__, "as asked; it has no parameters to learn")
    return dataclasses.replace(data, transform=T, log_slope=-float(mean))


def _fitted_transform(
    wanted: AbstractTransform | str, rows: Data, plain: TrainingData, context: FitContext
) -> AbstractTransform | None:
    """Return the fitted transform; None if "auto" finds no clear gain on held-out rows."""
    chooses = isinstance(wanted, str)
    if isinstance(wanted, AbstractTransform):
        wanted.check(rows.y)
    if plain.leaves_inputs and not isinstance(wanted, Log):
        raise ValueError(
            "the Tanimoto kernel takes the transforms 'log' and 'count', whose parameters need not be learned"
        )
    T: Any = wanted
    why = f"{AS_ASKED}; it has no parameters to learn"
    if chooses and (refusal := context.refusal()):
        T, why = None, refusal
    elif not isinstance(wanted, Log):
        names = CANDIDATES + (POSITIVE_CANDIDATES if rows.y.min() > 0 else ())
        tried = {name: TRANSFORMS[name] for name in names} if chooses else {type(wanted).__name__: wanted}
        options: dict[str, Any] = {"seed": context.sample_seed, "group": rows.group, "weight": rows.weight}
        T, found = fit_transforms(tried, plain.X.astype(np.float64), rows.y, **options)
        T, why = (
            None if chooses and found.name is None else T,
            f"by rows that none was fitted to: {found.why}",
        )
    context.record("transform", None if T is None else type(getattr(T, "inner", T)).__name__, why)
    return T


def set_aside(rows: Data, method: str, target: str, seed: Any) -> tuple[Data, Data]:
    """Return the rows of the fit, and random ones, or whole groups, for the calibration.

    Raises ValueError for too few rows or groups, and for targets that are repeated: their F(y) are not continuous.
    """
    N, counts = len(rows.y), np.unique(rows.y, return_counts=True)[1].astype(np.float64)
    if N < FEWEST + LEAST_KEPT:
        raise ValueError(
            f"calibration={method!r} wants at least {FEWEST + LEAST_KEPT} different rows, of which {FEWEST} are left out of the fit; there are {N}"
        )
    tied = float(np.sum(counts * (counts - 1)) / (N * (N - 1)))
    if target == "count" or tied > TIED:
        raise ValueError(
            f"calibration={method!r} takes targets that are hardly ever repeated, and {tied:.2%} of all pairs are equal; at most {TIED:.1%} may be"
        )
    if rows.group is not None and len(np.unique(rows.group)) < 2 * FEWEST:
        raise ValueError(
            f"calibration wants at least {2 * FEWEST} groups, half of which are left out of the fit"
        )
    number = np.arange(N) if rows.group is None else divisible(rows.group)
    sizes = np.bincount(number)
    order = np.random.default_rng(seed).permutation(len(sizes))
    enough = reaching(sizes[order], int(np.clip(SHARE * N, FEWEST, MOST)))
    left = np.isin(number, order[: min(max(enough, FEWEST), len(sizes) // 2)])
    return rows.take(~left), rows.take(left)


def calibrated(fitted: Fitted, left_out: Data, method: str, context: FitContext) -> Fitted:
    """Return the model with the correction by these rows, which is recorded."""
    kind = ConformalScores if method == CONFORMAL else PITRecalibration
    made = kind.fit(
        fitted.distribution(left_out.X), left_out.y, groups=left_out.group, weight=left_out.weight
    )
    if made is None:
        context.record("calibration", "identity", "left-out rows do not clearly gain by a curve")
        return fitted
    what = "intervals, by" if method == CONFORMAL else "the probabilities of"
    context.record("calibration", getattr(made, "name", CONFORMAL), f"{what} {made.n_rows} left-out rows")
    observation = dataclasses.replace(fitted.observation, correction=made)
    return dataclasses.replace(fitted, observation=observation)
