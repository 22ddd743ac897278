"""What the sparse regressor and classifier share: where their models start, and their posterior."""

import math
import typing
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp import deadline, kernels
from stochgp.choosing import AS_ASKED, choice
from stochgp.deadline import TimeIsUpError
from stochgp.devices import Devices
from stochgp.learners.sgpr import EVALUATION
from stochgp.likelihoods import AbstractLikelihood, Gaussian
from stochgp.models import SparseGP
from stochgp.objectives import bound_of_all, lower_bound
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.posteriors.variational import BLOCK
from stochgp.results import Estimate
from stochgp.selection.kernel_choice import USUAL
from stochgp.training_data.fingerprinted import Inputs, inputs_with_smiles
from stochgp.training_data.run import Run
from stochgp.training_data.units import TrainingData
from stochgp.variational import InducingPoints, Naturals, choose_points

LATE = "as it was"  # q(u), where there is no time for the pass
COMPILING_PASS = 1.5  # seconds of its programs
CLOSING_JITTER = 1e-8  # of k(Z, Z), where q(u) is found in float64


def start(
    estimator: Any,
    data: TrainingData,
    likelihood: AbstractLikelihood,
    variance: float,
    *,
    key: PRNGKeyArray,
    jitter: float | None = None,
) -> tuple[SparseGP, dict[str, Any]]:
    """The model before learning, and what `plan_` says of it: a kernel of this `variance`, inducing points at centres of clusters."""
    dtype, n_rows = np.dtype(estimator.dtype), data.n_rows
    name, of_kernel = named_kernel(estimator.kernel, USUAL)
    kernel = kernels.resolve(name, data.n_inputs, variance=variance, dtype=dtype)
    n = min(int(estimator.n_inducing), n_rows)
    points = choose_points(data.X, n, "kmeans", key=key)
    approximation = InducingPoints.of(points, n_latent=likelihood.n_latent, jitter=jitter)
    few = f"there are only {n_rows} different rows" if n < estimator.n_inducing else AS_ASKED
    entries = {
        "n_inducing": choice(n, f"{few}; they start at the centres of clusters of the rows, and are learned")
    }
    return cast(SparseGP(kernel, approximation, likelihood), dtype), of_kernel | entries


def named_kernel(given: Any, usual: str) -> tuple[Any, dict[str, Any]]:
    """(The kernel given, or the name of the usual one in place of "auto"; what `plan_` says of it)."""
    if isinstance(given, str) and given == "auto":
        return usual, {"kernel": choice(usual, "the usual one of this approximation")}
    return given, {}


def inputs_of(estimator: Any) -> Inputs:
    """Numbers. Raises ValueError for the Tanimoto kernel, between whose fingerprints there are no inducing points, and for `missing="skip"`."""
    if inputs_with_smiles(estimator.kernel, None, estimator.missing) is not Inputs.NUMBERS:
        raise ValueError(
            "the Tanimoto kernel's inputs are fingerprints, which inducing points cannot be: use KernelGPRegressor or FeatureGPRegressor"
        )
    return Inputs.NUMBERS


def posterior_of(
    gp: SparseGP, data: TrainingData, run: Run
) -> tuple[VariationalPosterior, None, dict[str, Any]]:
    """q(f), and the bound of all rows. With Gaussian noise q(u) is the optimum of all rows, which mini-batches only come near.

    Where there is no time for a pass over the rows, q(u) stays as it was learned, and the bound is not known.
    """
    choices = predictions_entries()
    try:
        deadline.require(_pass_seconds(gp.approximation.n_inducing, data.n_all))
        gp, bound, how = _closed(gp, data, run.devices)
    except TimeIsUpError as late:
        choices["q"] = choice(LATE, f"there was no time for a pass over all rows: {late}")
        if data.everything is not None:
            choices["closing_rows"] = choice(
                data.n_rows, f"of {data.n_all}: q(u) is that of a uniform sample"
            )
        choices["late"] = "q(u) stays as it was learned"
        return VariationalPosterior.of(gp, data.n_inputs), None, choices
    choices["q"] = choice(*how)
    if data.everything is not None:
        of_all = isinstance(gp.likelihood, Gaussian)
        choices["closing_rows"] = choice(data.n_all if of_all else data.n_rows, learned_from(data, of_all))
    choices["elbo"] = bound_entries(bound.value, data)
    if bound.stderr > 0:
        why = "of elbo, a standard error in nats per row: of the expectations, by independent scrambles of their points"
        choices["elbo_stderr"] = choice(bound.stderr, why)
    return VariationalPosterior.of(gp, data.n_inputs), None, choices


def predictions_entries() -> dict[str, Any]:
    """What `plan_` says of predictions from a q(f)."""
    return {
        "variance": choice("variational", "q(f) has a variance at each row, which is no estimate"),
        "predict_rows": choice(
            BLOCK, "rows per block of a prediction: always the same, so that no row depends on others"
        ),
    }


def learned_from(data: TrainingData, of_all: bool) -> str:
    """Why q(f) knows so many rows of files of which a sample was learned from: the optimal q(u) is `of_all`."""
    if of_all:
        return f"all rows, in one pass; hyperparameters and inducing points were learned from a uniform sample of {data.n_rows}"
    return f"of {data.n_all}: q(f) was learned from a uniform sample; the bound is of all rows"


def bound_entries(bound: float, data: TrainingData) -> dict[str, Any]:
    """What `plan_` says of the bound of all rows, of standardised targets."""
    why = (
        "nats per row in target units, a lower bound of the log marginal likelihood: of all rows, in float64"
    )
    return choice(bound - float(np.log(data.scale)) + data.log_slope, why)


def likelihood_of(gp: SparseGP) -> AbstractLikelihood:
    """With its parameters in float64, as q(f) has them."""
    with jax.enable_x64(True):
        return cast(gp.likelihood, np.float64)


def closing_seconds(n_inducing: int, n_rows: int, share: float) -> float:
    """What `posterior_of` takes of the time that is left, by typical costs; 0 where that is more than a share, and learning is worth more."""
    return kept(_pass_seconds(n_inducing, n_rows), share)


def kept(seconds: float, share: float) -> float:
    """What is kept of the time that is left for something that takes so many seconds: 0 where that is more than a share of it."""
    return seconds if seconds <= share * deadline.left() < math.inf else 0.0


def kernel_of(estimator: Any) -> kernels.AbstractKernel:
    """`kernel_`, in the estimator's dtype. Raises AttributeError before a fit."""
    if "_fitted" not in vars(estimator):
        raise AttributeError("kernel_ is there after fit")
    return cast(estimator._fitted.posterior.kernel, estimator.dtype)


def bound_of(estimator: Any) -> float:
    """`elbo_`. Raises AttributeError before a fit, and after one that a limit ended before the bound was known."""
    found = vars(estimator).get("plan_", {}).get("elbo")
    if found is None:
        raise AttributeError("elbo_ is there after a fit that no limit ended early")
    return found["choice"]


def _pass_seconds(n_inducing: int, n_rows: int) -> float:
    return COMPILING_PASS + EVALUATION * n_rows * n_inducing**2


def _closed(gp: SparseGP, data: TrainingData, devices: Devices) -> tuple[SparseGP, Estimate, tuple[str, str]]:
    """(The model with the best q(u) that a pass finds, its bound per row, how)."""
    source = data.passes
    if not isinstance(gp.likelihood, Gaussian):
        return (
            gp,
            devices.broadcast(bound_of_all(gp, source, devices)),
            ("learned", "only Gaussian noise has an optimum in closed form"),
        )
    wide = cast(gp, np.float64)
    points = InducingPoints.of(typing.cast(InducingPoints, wide.approximation).points, jitter=CLOSING_JITTER)
    with jax.enable_x64(True):
        found = lower_bound(SparseGP(wide.kernel, points, wide.likelihood), source, devices)
        found = devices.broadcast(found)
        best = _at(points, found.naturals)
    how = (
        "optimal",
        f"of all rows in closed form, for the {points.n_inducing} inducing points that were learned",
    )
    return SparseGP(wide.kernel, best, wide.likelihood), Estimate(found.bound / source.count), how


@eqx.filter_jit
def _at(points: InducingPoints, naturals: Naturals) -> InducingPoints:
    return points.at(naturals)
