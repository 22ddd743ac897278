"""Fits with mini-batches of neighbours on sets split 60/40, and scores of predictions."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from benchmarks.datasets import Dataset, load_function
from benchmarks.datasets import load as load_named
from measuring import tables
from measuring.store import Cell
from stochgp import SparseGPRegressor, budget, data, learners, learning, metrics
from stochgp.data.memory import MemorySource
from stochgp.kernels import resolve
from stochgp.models import KernelGP
from stochgp.posteriors import LocalPosterior
from stochgp.results import FitResult

TEST_FRACTION, NEIGHBOURS, MOST_TEST_ROWS = 0.4, 256, 40_000
FUNCTIONS = {"levy": 10_000, "griewank": 10_000, "borehole": 1_000_000, "otl": 2_000_000, "wing": 2_000_000}


class Split(NamedTuple):
    """Standardised rows on the host; `floor` is the smallest possible RMSE, or NaN."""

    train: MemorySource
    X_test: np.ndarray
    y_test: np.ndarray
    floor: float


def load(name: str, trial: int, rows: int | None = None) -> Split:
    """Load a set with 60 % training rows, standardised by these; `rows` draws fewer rows."""
    if name in FUNCTIONS:
        rows = FUNCTIONS[name] if rows is None else rows
        raw = load_function(name, rows, test_fraction=TEST_FRACTION, seed=trial, dtype=np.float32)
    else:
        raw = _resplit(load_named("uci:protein:0" if name == "protein" else name), trial)
    inputs, targets = data.Standardiser.fit(raw.X), data.Standardiser.fit(raw.y)
    some = slice(MOST_TEST_ROWS)
    floor = np.nan if raw.noise_std is None else raw.noise_std / float(targets.scale)
    return Split(
        MemorySource(raw.X, raw.y, inputs=inputs, targets=targets, on_device=False),
        inputs.transform(raw.X_test[some], np.float32),
        targets.transform(raw.y_test[some], np.float32),
        floor,
    )


def _resplit(raw: Dataset, trial: int) -> Dataset:
    """Return all rows of the set, split at random."""
    X, y = np.concatenate([raw.X, raw.X_test]), np.concatenate([raw.y, raw.y_test])
    train, test = data.train_test_indices(len(y), TEST_FRACTION, trial)
    return Dataset(
        X[train], y[train], X[test], y[test], raw.feature_names, raw.target_name, raw.name, raw.noise_std
    )


def fit(cell: Cell, split: Split) -> tuple[FitResult, dict]:
    """Fit an RBF kernel with a lengthscale per input. Return the fit and its seconds."""
    learner = learners.BSGD(cell["batch"], cell["epochs"])
    gp = KernelGP(resolve("rbf", split.train.n_inputs))
    found = learning.fit(learner, gp, split.train, key=jax.random.key(cell["trial"]))
    first, second, last = found.history[0], found.history[1], found.history[-1]
    return found, {
        "fit_seconds": found.seconds,
        "search_seconds": first["seconds"],
        "step_us": 1e6 * (last["seconds"] - second["seconds"]) / max(last["step"] - second["step"], 1),
        "steps": found.n_iter,
        "loss": found.loss,
        "converged": found.converged,
        "noise_variance": float(found.gp.noise_variance),
        "variance": float(found.gp.kernel.variance),
        "lengthscales": [round(float(value), 4) for value in np.asarray(found.gp.kernel.lengthscale)],
        "peak_bytes": budget.peak_resident(),
    }


def training_rows(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised inputs and targets in float32."""
    train = split.train
    return train.inputs.transform(train.X, np.float32), train.targets.transform(train.y, np.float32)


def posterior(found: FitResult, split: Split) -> LocalPosterior:
    """Return local prediction with the learned hyperparameters."""
    return LocalPosterior(found.gp, *training_rows(split), np.ones(split.train.size, np.float32), NEIGHBOURS)


CALIBRATION_ROWS = 1_000
EXACT_ROWS = 12_000  # maximum number of training rows for the exact posterior


def predict(found: FitResult, split: Split, trial: int) -> dict:
    """Score local prediction; `calibrated` uses a factor fitted to left-out rows."""
    begun = time.perf_counter()
    near = posterior(found, split)
    mean, variance = near.mean_and_variance(split.X_test)
    seconds = time.perf_counter() - begun
    calibrated, _ = near.calibrated(CALIBRATION_ROWS, trial)
    std = np.sqrt(variance + near.noise_variance)
    wider = calibrated.scale**0.5 * std
    return {
        **_scores(split, mean, std),
        "nlpd_calibrated": metrics.nlpd(split.y_test, mean, wider),
        "scale": calibrated.scale,
        "predict_seconds": seconds,
        "predict_rows": len(split.y_test),
        "rmse_exact": _exact_rmse(found, split) if split.train.size <= EXACT_ROWS else np.nan,
    }


def sparse(split: Split, seed: int) -> dict:
    """Return the scores of a default sparse GP."""
    model: Any = SparseGPRegressor("rbf", likelihood="gaussian", n_inducing_mean=0, random_state=seed)
    begun = time.perf_counter()
    model.fit(*training_rows(split))
    seconds = time.perf_counter() - begun
    return {
        **_scores(split, *model.predict(split.X_test, return_std=True, include_noise=True)),
        "fit_seconds": seconds,
        "steps": model.n_iter_,
        "converged": str(model.converged_),
        "peak_bytes": budget.peak_resident(),
    }


def _scores(split: Split, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Return scores of predictions of observations with these standard deviations."""
    rmse = metrics.rmse(split.y_test, mean)
    return {
        "rmse": rmse,
        "ratio": rmse / split.floor,
        "nlpd": metrics.nlpd(split.y_test, mean, std),
        "coverage95": metrics.coverage(split.y_test, mean, std),
    }


def _exact_rmse(found: FitResult, split: Split) -> float:
    """Return the RMSE of the exact posterior mean, from a float64 Cholesky factor."""
    with jax.enable_x64(True):
        X, y, Z = (jnp.asarray(part, jnp.float64) for part in (*training_rows(split), split.X_test))
        A = np.array(found.gp.kernel.matrix(X, X))
        A[np.diag_indices(len(A))] += float(found.gp.noise_variance)
        weights = scipy.linalg.solve(A, np.asarray(y), assume_a="pos", overwrite_a=True)
        mean = np.asarray(found.gp.kernel.matrix(Z, X)) @ weights
    return metrics.rmse(split.y_test, mean)


def published(table: str) -> dict[str, dict[str, str]]:
    """Return the results of sgGP in the paper for each set."""
    return {row["dataset"]: row for row in tables.published(table) if row["method"] == "sgGP"}
