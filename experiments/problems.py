"""Data, models and scores that experiments share. Training targets have unit variance."""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.datasets.prepared import load_raw
from measuring.harness import choice
from measuring.store import Cell
from stochgp import data, features, metrics
from stochgp.budget import peak_resident
from stochgp.data.memory import MemorySource
from stochgp.distributions.base import AbstractDistribution
from stochgp.models import FeatureGP
from stochgp.posteriors import FeaturePosterior
from stochgp.results import FitResult

SETS = ("bike", "elevators", "pol", "kin40k", "protein", "keggdirected")


class Problem(NamedTuple):
    """Standardised rows; `scale` is the standard deviation of the training targets."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    scale: float

    @property
    def source(self) -> MemorySource:
        return MemorySource(self.X, self.y)


def load(name: str, split: int, rows: int | None = None) -> Problem:
    """Load a set, standardised by its training rows; `rows` draws some rows (None = all)."""
    raw = load_raw(name, split)
    chosen = slice(None)
    if rows is not None:
        chosen = np.sort(np.random.default_rng(0).permutation(len(raw.y))[:rows])
    return standardised(raw.X[chosen], raw.y[chosen], raw.X_test, raw.y_test)


def standardised(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> Problem:
    """Standardise by means and standard deviations of the training rows."""
    inputs, targets = data.Standardiser.fit(X), data.Standardiser.fit(y)
    Z, Z_test = inputs.transform(X, np.float32), inputs.transform(X_test, np.float32)
    t, t_test = targets.transform(y, np.float32), targets.transform(y_test, np.float64)
    return Problem(Z, t, Z_test, t_test, float(targets.scale))


def deep_gp(problem: Problem, seed: int, kernel: str | None = None, network: str = "mlp") -> FeatureGP:
    """Return a GP on the network of the papers, linear or with 1000 Fourier features.

    At the start k(x, x) is about 1.
    """
    map_ = features.resolve(network, kernel=kernel, n_inputs=problem.X.shape[1], key=jax.random.key(seed))
    variance = 1.0 if kernel is not None else {"mlp": 0.01, "attention": 0.03}[network]
    return FeatureGP(map_, noise=0.1, variance=variance)


def score(result: FitResult, problem: Problem) -> dict[str, float | int | str]:
    """Return the scores of a fit: `nlml`, `rmse` and `nlpd_raw` in raw units, and `nlpd`."""
    noise = float(result.gp.noise_variance)
    with jax.enable_x64(True):
        posterior = FeaturePosterior.of(result.gp.features, result.spectrum, float(result.gp.variance), noise)
        mean, variance = posterior.mean_and_variance(jnp.asarray(problem.X_test, jnp.float32))
        mean, variance = np.asarray(mean), np.asarray(variance) + noise
    told = {"variance": float(result.gp.variance), "noise_variance": noise}
    nlml = {"nlml": result.nlml + math.log(problem.scale)}
    return nlml | outcome(result, problem, mean, np.sqrt(variance)) | told


def outcome(
    result: FitResult, problem: Problem, mean: np.ndarray, std: np.ndarray
) -> dict[str, float | int | str]:
    """Return how a run ended, and the scores of its predictions of test rows."""
    s = problem.scale
    unit, raw = scores(problem.y_test, mean, std), scores(s * problem.y_test, s * mean, s * std)
    return {
        "rmse": raw["rmse"],
        "nlpd": unit["nlpd"],
        "nlpd_raw": raw["nlpd"],
        "coverage95": unit["coverage95"],
        "fit_seconds": round(result.seconds, 2),
        "steps": result.n_iter,
        "recoveries": sum(1 for entry in result.history if entry.get("recovered")),
        "result": result.result.name,
    }


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Return scores of predictions of observations, in their units; `std` includes noise."""
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, std),
        "coverage95": metrics.coverage(y, mean, std),
    }


def unit_scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray, scale: float) -> dict[str, float]:
    """Return scores of predictions in raw units, rescaled to targets of unit variance."""
    return scores(y / scale, mean / scale, std / scale)


def density_scores(y: np.ndarray, predicted: AbstractDistribution, scale: float) -> dict[str, float]:
    """Return `unit_scores` of predictive distributions, with CRPS and four coverages."""
    t, unit = y / scale, predicted.affine(1 / scale, 0.0)
    covered = {
        f"coverage{round(100 * level)}": share for level, (share, _) in metrics.coverages(t, unit).items()
    }
    return {
        "rmse": metrics.rmse(t, unit.mean),
        "nlpd": metrics.nlpd(t, unit),
        "crps": metrics.crps(t, unit),
        **covered,
    }


def default_scores(
    kind: Callable[..., Any], cell: Cell, raw: Any = None
) -> tuple[Any, dict[str, Any], float]:
    """Return a default model, its scores, and the scale of the training targets."""
    raw = load_raw(cell["set"], cell["split"]) if raw is None else raw
    begun, scale = time.perf_counter(), float(np.std(raw.y))
    with warnings.catch_warnings(action="ignore"):
        model = kind(random_state=cell["seed"], memory_limit="3GB").fit(raw.X, raw.y)
    seconds = round(time.perf_counter() - begun, 2)
    found = density_scores(raw.y_test, model.predict_distribution(raw.X_test), scale)
    about = {"likelihood": choice(model, "likelihood", "gaussian"), "fit_seconds": seconds}
    return model, found | about | {"peak_bytes": peak_resident()}, scale


def curve(
    result: FitResult, problem: Problem, field: str = "nlml", most: int = 101
) -> dict[str, list[float]]:
    """Return epoch, seconds and NLML of at most `most` evaluations."""
    evaluations = [entry for entry in result.history if "step" in entry and field in entry]
    evaluations = evaluations[:: max(1, -(-len(evaluations) // most))]
    return {
        "epoch": [round(entry["epoch"], 2) for entry in evaluations],
        "seconds": [round(entry["seconds"], 2) for entry in evaluations],
        "nlml": [round(entry[field] + math.log(problem.scale), 5) for entry in evaluations],
    }
