"""Scores of local prediction after a fit by mini-batches of neighbours; the exact posterior's error beside them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from measuring.sggp import Split, posterior, training_rows
from stochgp import SparseGPRegressor, budget, metrics
from stochgp.results import FitResult

CALIBRATION_ROWS = 1_000
EXACT_ROWS = 12_000  # training rows up to which the exact posterior is computed too


def predict(found: FitResult, split: Split, trial: int) -> dict:
    """Scores of local prediction; `calibrated` is the NLPD with the factor fitted on training rows that were left out."""
    begun = time.perf_counter()
    near = posterior(found, split)
    local = near.predict(split.X_test)
    seconds = time.perf_counter() - begun
    calibrated = near.calibrated(CALIBRATION_ROWS, trial)
    std = np.sqrt(local.variance + near.noise_variance)
    wider = calibrated.scale**0.5 * std
    return {
        **_scores(split, local.mean, std),
        "nlpd_calibrated": metrics.nlpd(split.y_test, local.mean, wider),
        "scale": calibrated.scale,
        "predict_seconds": seconds,
        "predict_rows": len(split.y_test),
        "rmse_exact": _exact_rmse(found, split) if split.train.size <= EXACT_ROWS else np.nan,
    }


def sparse(split: Split, seed: int) -> dict:
    """Scores of a sparse GP as it comes."""
    model = SparseGPRegressor("rbf", likelihood="gaussian", n_inducing_mean=0, random_state=seed)
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
    """Of observations, with these standard deviations."""
    rmse = metrics.rmse(split.y_test, mean)
    return {
        "rmse": rmse,
        "ratio": rmse / split.floor,
        "nlpd": metrics.nlpd(split.y_test, mean, std),
        "coverage95": metrics.coverage(split.y_test, mean, std),
    }


def _exact_rmse(found: FitResult, split: Split) -> float:
    """Of the posterior mean given all training rows, by Cholesky in float64."""
    with jax.enable_x64(True):
        X, y, Z = (jnp.asarray(part, jnp.float64) for part in (*training_rows(split), split.X_test))
        A = np.array(found.gp.kernel.matrix(X, X))
        A[np.diag_indices(len(A))] += float(found.gp.noise_variance)
        weights = scipy.linalg.solve(A, np.asarray(y), assume_a="pos", overwrite_a=True)
        mean = np.asarray(found.gp.kernel.matrix(Z, X)) @ weights
    return metrics.rmse(split.y_test, mean)
