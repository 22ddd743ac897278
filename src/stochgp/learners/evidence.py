"""Evaluator that uses the exact evidence of a feature GP or the density of held-out rows."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Int

from stochgp.choosing import too_few
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.features import on_host
from stochgp.learners import evaluators
from stochgp.learners.evaluators import FEW_ROWS, SETTLED_BY, Division, Numbers, Seed, StepPlan
from stochgp.likelihoods.noise import NOISE_FLOOR, multipliers_of_rows
from stochgp.models import FeatureGP, range_within
from stochgp.objectives import feature
from stochgp.objectives.feature import Loss, Spectrum, nlml_of_spectrum, spectrum
from stochgp.objectives.moments import Moments, chunk_rows, moments_of_source
from stochgp.sharding import agreed

SAFE_NOISE = 0.1  # noise variance of a second start, for targets with unit variance
FEWEST_EVALUATIONS = 4
TARGET_ROWS = 1 << 16  # number of targets read at a time
HELD_OUT_BYTES = 24  # peak bytes per feature of a held-out row

Variances = tuple[float, float]  # variance and noise variance of a feature GP


class EvidenceEvaluation(NamedTuple):
    """A model, its exact moments on the training rows, and the criteria of its quality."""

    gp: FeatureGP
    moments: Moments
    spectrum: Spectrum
    fitted: Variances  # variances that minimise the NLML on the training rows, or the model's variances
    chosen: Variances  # variances that minimise the held-out NLPD, or `fitted` without held-out rows
    nlml: float
    nlpd: float | None
    score: float | None = None  # `robust_nlpd` for few held-out rows
    error: float = 0.0  # 0, because all evaluations use the same rows

    @property
    def criterion(self) -> float:
        return next(value for value in (self.score, self.nlpd, self.nlml) if value is not None)

    def numbers(self) -> Numbers:
        found = {"nlml": self.nlml, "variance": self.chosen[0], "noise_variance": self.chosen[1]}
        more = {"held_out_nlpd": self.nlpd, "criterion": self.score}
        return found | {name: value for name, value in more.items() if value is not None}


class Evidence(NamedTuple):
    """Sums over all rows (`Moments`), NLML and NLPD of the model that a run returns."""

    moments: Moments
    spectrum: Spectrum
    nlml: float  # NLML per datum
    held_out_nlpd: float | None  # NLPD of the held-out rows, given the training rows
    constant_nlpd: float | None  # NLPD of the held-out rows under N(mean, variance) of the training targets
    held_out: Data | None = None  # the held-out rows, with their standardised errors as targets


class ByEvidence(eqx.Module):
    """Evaluator that uses the exact NLML of training rows or the NLPD of held-out rows.

    A run returns the state with the lowest criterion. A run with cycles has settled if the criterion fell by
    less than 0.01 nats per datum in the last cycle. A run without cycles has settled if the criterion fell by
    less than 0.01 nats per datum in the last three quarters of the steps.

    Parameters
    ----------
    refit : bool
        If True, every evaluation sets `variance` and `noise_variance` to their optimum for fixed features.
    validation_fraction : float
        The share of held-out rows; groups stay whole. If no rows are held out, the criterion is the NLML of
        the training rows. Otherwise the criterion is the NLPD of the held-out rows, or
        `objectives.feature.robust_nlpd` if there are few training rows. The final posterior includes the
        held-out rows.
    """

    is_exact: ClassVar[bool] = True
    refit: bool = True
    validation_fraction: float = 0.1

    def __check_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction is {self.validation_fraction}; it must be ≥ 0 and < 1")

    def divide(self, source: MemorySource, seed: Seed) -> Division:
        """Return the training rows and random held-out rows, or whole groups if there are groups."""
        n_held_out = evaluators.held_out_rows(source.size, self.validation_fraction)
        if n_held_out == 0:
            return source, None
        if source.group is not None:
            left = _some_groups(source.group, n_held_out, seed)
        else:
            rows = np.arange(source.size, dtype=np.int32)
            left = np.zeros(source.size, bool)
            left[np.random.default_rng(seed).permutation(rows)[:n_held_out]] = True
        train, held_out = (np.flatnonzero(part).astype(np.int32) for part in (~left, left))
        return source.some(train), source.some(held_out)

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        """Return a plan with cycles unless `epochs` is set or there are few rows."""
        few = evaluators.few_epochs(n_rows, batch_size) if self.validation_fraction > 0 else None
        given = few if epochs is None else epochs
        plan = evaluators.steps_by_epochs(n_rows, bytes_per_row, batch_size, given)
        return plan if given is not None else evaluators.in_cycles(plan)

    def peak_bytes(self, gp: FeatureGP, n_rows: int, n_inputs: int) -> int:
        M, itemsize = gp.n_features, gp.noise_variance.dtype.itemsize
        chunks = chunk_rows(M) * (20 * M + 3 * itemsize * (n_inputs + 2))
        n_held_out = evaluators.held_out_rows(n_rows, self.validation_fraction)
        return 8 * 8 * M**2 + chunks + (HELD_OUT_BYTES * M + itemsize * n_inputs) * n_held_out

    def evaluate(self, gp: FeatureGP, numbers: Numbers, division: Division) -> EvidenceEvaluation:
        """Return the exact moments and criteria of `gp`, with refitted variances."""
        return agreed(self._evaluate(gp, *division))

    def _evaluate(
        self, gp: FeatureGP, train: MemorySource, held_out: MemorySource | None
    ) -> EvidenceEvaluation:
        moments, own = moments_of_source(gp, train), _own(gp)
        # Use a robust criterion for few held-out rows, or if the features may interpolate the rows.
        few = held_out is not None and train.size < max(FEW_ROWS, 2 * gp.n_features)
        if not all(np.all(np.isfinite(np.asarray(part))) for part in moments):
            nothing, nlpd = np.full(gp.n_features, np.nan), None if held_out is None else np.nan
            lost = Spectrum(nothing, np.diag(nothing), nothing, np.nan, float(moments.count))
            return EvidenceEvaluation(gp, moments, lost, own, own, np.nan, nlpd, nlpd if few else None)
        s = spectrum(moments)
        widest = (gp.variance, feature.VARIANCE_RANGE), (gp.noise_variance, feature.NOISE_RANGE)
        ranges: Any = tuple(range_within(part, feature.times_square(most, s)) for part, most in widest)
        fitted = (
            feature.refit(s, *own, variance_range=ranges[0], noise_range=ranges[1]) if self.refit else own
        )
        nlml = nlml_of_spectrum(s, *fitted)[0]
        if held_out is None:
            return EvidenceEvaluation(gp, moments, s, fitted, fitted, nlml, None)
        left = _held_out(gp, held_out, s)
        loss: Loss = lambda v, s2: feature.nlpd_of_spectrum(s, left, v, s2)
        if few:
            grouped = left._replace(group=_groups(held_out))
            loss = feature.robust_nlpd(s, grouped, spectrum(_with_rows(moments, gp, held_out)))
        chosen = own
        if self.refit:  # with few rows, the search starts from two points
            starts = [fitted, (fitted[0], max(fitted[1], SAFE_NOISE))][: 1 + few]
            found = [feature.minimise_variances(loss, start, ranges) for start in starts]
            chosen = min(found, key=lambda variances: loss(*variances)[0])
        nlpd = feature.nlpd_of_spectrum(s, left, *chosen)[0]
        score = loss(*chosen)[0] if few else None
        return EvidenceEvaluation(gp, moments, s, fitted, chosen, nlml, nlpd, score)

    def rates(self, n_rows: int) -> tuple[float, ...]:
        """Return the learning rates to try, or a single rate if few rows are held out."""
        many = n_rows >= FEW_ROWS or self.validation_fraction == 0
        return evaluators.RATES if many else (evaluators.RATE_OF_FEW,)

    def settled(self, history: list[Numbers]) -> bool:
        """Return True if the criterion of a completed run no longer decreased."""
        names = ("criterion", "held_out_nlpd", "nlml")
        evaluations = [entry for entry in history if "step" in entry]
        found = [next(entry[name] for name in names if name in entry) for entry in evaluations]
        values = [v if np.isfinite(v) else np.inf for v in found]
        lowest = np.minimum.accumulate(values)
        if lowest[-1] == values[0] and values[-1] > values[0] + SETTLED_BY:
            return False
        steps = np.array([entry["step"] for entry in evaluations])
        early = int(np.sum(steps <= steps[-1] / 4)) - 1  # the last evaluation of the first quarter
        return len(steps) > FEWEST_EVALUATIONS and bool(lowest[early] - lowest[-1] < SETTLED_BY)

    def finalize(self, at: EvidenceEvaluation, division: Division) -> tuple[FeatureGP, Evidence]:
        """Return the final model and the exact evidence of all rows, including held-out rows."""
        train, held_out = division
        gp = at.gp.with_variances(*at.chosen)
        if held_out is None:
            nlml = nlml_of_spectrum(at.spectrum, *at.chosen)[0]
            return gp, agreed(Evidence(at.moments, at.spectrum, nlml, at.nlpd, None))
        error, std = feature.errors_of_spectrum(
            at.spectrum, _held_out(at.gp, held_out, at.spectrum), *at.chosen
        )
        rows = held_out.on_host(np.arange(held_out.size))
        rows = dataclasses.replace(rows, group=held_out.group).counted()
        moments = _with_rows(at.moments, gp, held_out)
        s = spectrum(moments)
        nlml, constant = nlml_of_spectrum(s, *at.chosen)[0], _constant_nlpd(train, held_out)
        errors = dataclasses.replace(rows, y=error / std)
        return gp, agreed(Evidence(moments, s, nlml, at.nlpd, constant, errors))


def refitted(at: EvidenceEvaluation) -> FeatureGP:
    """Return the model of an evaluation with the variances that minimise the exact NLML."""
    return at.gp if at.fitted == _own(at.gp) else at.gp.with_variances(*at.fitted)


def _own(gp: FeatureGP) -> Variances:
    return float(gp.variance), float(gp.noise_variance)


def _with_rows(moments: Moments, gp: FeatureGP, more: MemorySource) -> Moments:
    """Return the sum of `moments` and the moments of more rows."""
    return jax.tree.map(lambda a, b: np.asarray(a) + np.asarray(b), moments, moments_of_source(gp, more))


def _held_out(gp: FeatureGP, source: MemorySource, s: Spectrum) -> feature.HeldOut:
    rows = source.on_host(np.arange(source.size), source.dtype).counted()
    P, at = on_host(gp.features, rows.X) @ s.basis, rows.wide()
    return feature.HeldOut(P, at.y, at.weights, multipliers_of_rows(gp.noise, rows.X))


def _constant_nlpd(train: MemorySource, held_out: MemorySource) -> float:
    """Return the NLPD of the held-out rows under N(mean, variance) of the training targets."""
    (target, count), (y, rho) = _targets(train), _targets(held_out)
    mean = np.average(target, weights=count)
    variance = max(float(np.average((target - mean) ** 2, weights=count)), NOISE_FLOOR)
    density = np.log(2 * np.pi * variance) + (y[rho > 0] - mean) ** 2 / variance
    return float(np.average(density, weights=rho[rho > 0])) / 2


def _targets(source: MemorySource) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets and weights of all rows, in host memory."""
    parts = np.array_split(np.arange(source.size), 1 + source.size // TARGET_ROWS)
    return np.concatenate([source.on_host(part).y for part in parts]), source.weights()


def _groups(source: MemorySource) -> np.ndarray | None:
    """Return the group numbers of rows with positive weight; None without enough groups."""
    if source.group is None:
        return None
    group = source.group[source.weights() > 0]
    return None if too_few(len(group), group, 0) else np.unique(group, return_inverse=True)[1]


def _some_groups(group: Int[np.ndarray, " N"], n_rows: int, seed: Seed) -> Bool[np.ndarray, " N"]:
    """Return a mask of the rows in random groups: about `n_rows`, at most half of all rows.

    If all groups are too large, the mask contains the smallest group. Raises ValueError for a single group.
    """
    labels, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if len(labels) == 1:
        raise ValueError("all rows are in one group, so no rows can be held out; set validation_fraction=0")
    chosen, total = [], 0
    for one in np.random.default_rng(seed).permutation(len(labels)):
        if sizes[one] < 2 * (n_rows - total) and 2 * (total + sizes[one]) < len(group):
            chosen.append(one)
            total += sizes[one]
    return np.isin(number, chosen if chosen else [np.argmin(sizes)])
