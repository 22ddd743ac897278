"""Visits that know the exact evidence: of models whose likelihood needs M × M numbers of all rows."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from stochgp.data.streams import AbstractSource, SomeRows
from stochgp.learners.judge import SETTLED_BY, AbstractJudge, Division, Numbers, Seed
from stochgp.models import FeatureGP, range_within
from stochgp.numerics.threads import few_blas_threads
from stochgp.objectives import Moments, Spectrum, add_up, chunk_rows, nlml_of_spectrum, refit, spectrum
from stochgp.objectives.feature import NOISE_RANGE, VARIANCE_RANGE
from stochgp.objectives.held_out import HeldOut, nlpd_of_spectrum, refit_held_out
from stochgp.planning.steps import RATES, StepPlan, held_out_rows, steps_by_epochs


class Variances(NamedTuple):
    """The two variances of a feature GP."""

    variance: float
    noise_variance: float


class EvidenceVisit(NamedTuple):
    """θ, its exact moments over the training rows, and what they say."""

    gp: FeatureGP
    moments: Moments
    spectrum: Spectrum
    fitted: Variances  # lowest exact NLML of the training rows (θ's own where nothing is refitted)
    chosen: Variances  # the same, or lowest held-out NLPD
    nlml: float
    nlpd: float | None

    @property
    def criterion(self) -> float:
        return self.nlml if self.nlpd is None else self.nlpd


class Evidence(NamedTuple):
    """Of all rows, at the model that a run returns."""

    spectrum: Spectrum
    nlml: float  # exact, per datum


class ByEvidence(AbstractJudge):
    """Every visit is a pass over all rows: exact moments in float64 and the exact NLML. A run returns the visit of the lowest criterion.

    refit                refit the output scale and σ² with the features fixed, at every visit and at the end
    validation_fraction  rows held out: 0 = the criterion (which rate, which state, the refit) is the exact NLML of the training rows;
                         above 0 = the NLPD of the held-out rows, which join the posterior at the end. Where the rows have groups, whole
                         groups are held out

    Settled: the best criterion improved by less than 0.01 nats per datum over the last tenth of the visits, and the run did not only
    ever get worse than its start.
    """

    refit: bool = True
    validation_fraction: float = 0.1

    def __check_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction is {self.validation_fraction}; it must lie in [0, 1)")

    def divide(self, source: AbstractSource, seed: Seed) -> Division:
        n_held_out, rows = (
            held_out_rows(source.size, self.validation_fraction),
            np.arange(source.size, dtype=np.int32),
        )
        if n_held_out == 0:
            return Division(source, None)
        if source.group is not None:
            held_out = _some_groups(source.group, n_held_out, seed)
            return Division(SomeRows(source, rows[~held_out]), SomeRows(source, rows[held_out]))
        order = np.random.default_rng(seed).permutation(rows)
        train, held_out = np.sort(order[n_held_out:]), np.sort(order[:n_held_out])
        return Division(SomeRows(source, train), SomeRows(source, held_out))

    def plan_steps(
        self, n_rows: int, bytes_per_row: int, batch_size: int, epochs: int | None, default_steps: int
    ) -> StepPlan:
        return steps_by_epochs(n_rows, bytes_per_row, batch_size, epochs)

    def need_bytes(self, gp: FeatureGP, n_rows: int, n_inputs: int) -> int:
        """Moments, their eigenbasis and those of the best visit; chunks of features; the held-out rows' features in float64."""
        M, itemsize = gp.n_features, gp.noise_variance.dtype.itemsize
        chunks = chunk_rows(M) * (20 * M + 3 * itemsize * (n_inputs + 2))
        return 8 * 8 * M**2 + chunks + 40 * held_out_rows(n_rows, self.validation_fraction) * M

    def at_start(self, gp: FeatureGP, division: Division) -> EvidenceVisit:
        return self.look(gp, {}, division)

    def look(self, gp: FeatureGP, numbers: Numbers, division: Division) -> EvidenceVisit:
        """One pass over the rows: exact moments, the exact NLML, the held-out NLPD and the refits."""
        with few_blas_threads(gp.n_features):
            return self._look(gp, division)

    def _look(self, gp: FeatureGP, division: Division) -> EvidenceVisit:
        moments = add_up(gp, division.train.chunks(chunk_rows(gp.n_features)))
        own = _own(gp)
        if not all(np.all(np.isfinite(np.asarray(part))) for part in moments):
            return _lost(gp, moments, own, division)
        s = spectrum(moments)
        limits = {
            "variance_range": range_within(gp.variance, VARIANCE_RANGE),
            "noise_range": range_within(gp.noise_variance, NOISE_RANGE),
        }
        fitted = Variances(*refit(s, *own, **limits)) if self.refit else own
        nlml = nlml_of_spectrum(s, *fitted)[0]
        if division.held_out is None:
            return EvidenceVisit(gp, moments, s, fitted, fitted, nlml, None)
        held_out = _held_out(gp, division.held_out, s)
        chosen = Variances(*refit_held_out(s, held_out, *fitted, **limits)) if self.refit else own
        return EvidenceVisit(gp, moments, s, fitted, chosen, nlml, nlpd_of_spectrum(s, held_out, *chosen)[0])

    def entry(self, visit: EvidenceVisit) -> Numbers:
        found = {"nlml": visit.nlml, **visit.chosen._asdict()}
        return found if visit.nlpd is None else {**found, "held_out_nlpd": visit.nlpd}

    @property
    def visits_are_free(self) -> bool:
        return False

    @property
    def returns_best(self) -> bool:
        return True

    @property
    def rates(self) -> tuple[float, ...]:
        return RATES

    def settled(self, history: list[Numbers]) -> bool:
        found = [entry.get("held_out_nlpd", entry["nlml"]) for entry in history if "step" in entry]
        values = [v if np.isfinite(v) else np.inf for v in found]
        lowest = np.minimum.accumulate(values)
        if lowest[-1] == values[0] and values[-1] > values[0] + SETTLED_BY:
            return False
        before = len(lowest) - 1 - max(1, len(lowest) // 10)
        return before >= 0 and bool(lowest[before] - lowest[-1] < SETTLED_BY)

    def conclude(self, visit: EvidenceVisit, division: Division) -> tuple[FeatureGP, Evidence]:
        """The held-out rows join the posterior."""
        s = visit.spectrum
        if division.held_out is not None:
            more = add_up(visit.gp, division.held_out.chunks(chunk_rows(visit.gp.n_features)))
            s = spectrum(jax.tree.map(jnp.add, visit.moments, more))
        nlml = nlml_of_spectrum(s, *visit.chosen)[0]
        return visit.gp.with_variances(*visit.chosen), Evidence(s, nlml)


def refitted(visit: EvidenceVisit) -> FeatureGP:
    """The model of a visit at the variances of the lowest exact NLML; itself where it has them already."""
    return visit.gp if visit.fitted == _own(visit.gp) else visit.gp.with_variances(*visit.fitted)


def _own(gp: FeatureGP) -> Variances:
    return Variances(float(gp.variance), float(gp.noise_variance))


def _lost(gp: FeatureGP, moments: Moments, own: Variances, division: Division) -> EvidenceVisit:
    """The visit of a model whose features are not finite."""
    empty = np.full(gp.n_features, np.nan)
    nothing = Spectrum(empty, np.diag(empty), empty, np.nan, float(moments.count))
    return EvidenceVisit(
        gp, moments, nothing, own, own, np.nan, None if division.held_out is None else np.nan
    )


def _some_groups(group: Int[np.ndarray, " N"], n_rows: int, seed: Seed) -> Bool[np.ndarray, " N"]:
    """Which rows are in some groups of about `n_rows` rows together: in random order, each that brings their number nearer to it.

    Where every group is too large, the smallest one. Raises ValueError where there is one group only.
    """
    labels, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if len(labels) == 1:
        raise ValueError("all rows are of one group: none can be held out; set validation_fraction=0")
    chosen, total = [], 0
    for one in np.random.default_rng(seed).permutation(len(labels)):
        if sizes[one] < 2 * (n_rows - total) and total + sizes[one] < len(group):
            chosen.append(one)
            total += sizes[one]
    return np.isin(number, chosen if chosen else [np.argmin(sizes)])


def _held_out(gp: FeatureGP, source: AbstractSource, s: Spectrum) -> HeldOut:
    parts: list[tuple[Any, ...]] = []
    for rows in source.chunks(chunk_rows(gp.n_features)):
        Phi, precision = _features(gp, rows.X, rows.count)
        seen = (np.asarray(Phi, np.float64) @ s.basis, rows.y, rows.count, precision)
        parts.append(tuple(np.asarray(part, np.float64) for part in seen))
    P, y, count, precision = (np.concatenate(part) for part in zip(*parts, strict=True))
    there = count > 0
    return HeldOut(P[there], y[there], count[there], precision[there])


@eqx.filter_jit
def _features(gp: FeatureGP, X: Any, count: Any) -> tuple[Any, Any]:
    """(Φ, precisions)."""
    return gp.features(X), gp.noise.precision(X, count)
