"""SVGP on the kernel of a feature map: the papers' deep kernels from inducing points instead of features (Hensman et al. 2013).

k(x, z) = variance · φ(x)·φ(z), the same kernel and starts as those of the other methods; as many inducing points as rows in a batch, as in the SCGD
paper. They lie in the inputs, so that they pass through the network too. q(u) follows natural gradients, all else the optimiser.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.problems import Problem, outcome
from stochgp.features import AbstractFeatureMap
from stochgp.kernels import Linear, Warped
from stochgp.learners import AbstractLearner
from stochgp.learning import fit
from stochgp.models import FeatureGP, SparseGP
from stochgp.objectives import bound_of_all, nlml_of_spectrum, spectrum
from stochgp.objectives.moments import add_up
from stochgp.posteriors import VariationalPosterior
from stochgp.results import FitResult
from stochgp.variational import InducingPoints, choose_points

CHUNK = 2048  # rows


class OfRow(eqx.Module):
    """x ↦ φ(x)."""

    features: AbstractFeatureMap

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " M"]:
        return self.features(x[None, :])[0]


def sparse_gp(gp: FeatureGP, problem: Problem, n_inducing: int, seed: int) -> SparseGP:
    """The kernel of `gp` with inducing points at centres of clusters of the rows."""
    points = choose_points(problem.X, n_inducing, "kmeans", key=jax.random.key(seed))
    kernel = Warped(Linear(float(gp.variance)), OfRow(gp.features))
    return SparseGP(kernel, InducingPoints.of(points), float(gp.noise_variance))


def run(gp: FeatureGP, problem: Problem, learner: AbstractLearner, seed: int) -> dict:
    """One fit from the start `gp` and its scores: `nlml` is exact at its hyperparameters, predictions are of q(f)."""
    start = sparse_gp(gp, problem, learner.batch_size or CHUNK, seed)
    result = fit(learner, start, problem.source, key=jax.random.key(seed))
    s, noise, variance = (
        problem.scale,
        float(result.gp.noise_variance),
        float(result.gp.kernel.kernel.variance),
    )
    features = FeatureGP(result.gp.kernel.network.features, noise=noise, variance=variance)
    with jax.enable_x64(True):
        exact = nlml_of_spectrum(spectrum(add_up(features, problem.source.chunks(CHUNK))), variance, noise)[0]
    mean, std = _predicted(result, problem)
    return {
        "nlml": exact + math.log(s),
        "elbo": bound_of_all(result.gp, problem.source).value - math.log(s),
        **outcome(result, problem, mean, std),
        "variance": variance,
        "noise_variance": noise,
        "curve": curve(result, problem),
    }


def curve(result: FitResult, problem: Problem) -> dict[str, list[float]]:
    """Epoch, seconds and −ELBO (raw units, by the batches since the evaluation before) at the evaluations: a bound of the NLML from above."""
    evaluations = [entry for entry in result.history if "loss" in entry and "step" in entry]
    return {
        "epoch": [round(entry["epoch"], 2) for entry in evaluations],
        "seconds": [round(entry["seconds"], 2) for entry in evaluations],
        "nlml": [round(entry["loss"] + math.log(problem.scale), 5) for entry in evaluations],
    }


def _predicted(result: FitResult, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of observations at the test rows."""
    with jax.enable_x64(True):
        posterior = VariationalPosterior.of(result.gp, problem.X.shape[1])
        parts = [
            posterior.mean_and_variance(jnp.asarray(problem.X_test[first : first + CHUNK]))
            for first in range(0, len(problem.X_test), CHUNK)
        ]
    mean, variance = (
        np.concatenate([np.asarray(part) for part in both]) for both in zip(*parts, strict=True)
    )
    return mean, np.sqrt(variance + float(result.gp.noise_variance))
