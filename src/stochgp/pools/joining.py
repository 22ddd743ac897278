"""How rows that were held out, and the table's columns, join the members of a pool."""

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np
from sklearn.base import clone

from stochgp import deadline
from stochgp.budget import Budget, MemoryLimitError
from stochgp.data.rows import Rows
from stochgp.deadline import TimeIsUpError
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.integrating import Curvature
from stochgp.families.kernel import KernelGPRegressor
from stochgp.families.updating import with_posterior
from stochgp.features import is_network
from stochgp.posteriors import ExactKernelPosterior, MixturePosterior
from stochgp.results import RESULTS
from stochgp.training_data.fingerprinted import name_inputs
from stochgp.training_data.units import TREES
from stochgp.warning import silent

ANEW = "made anew of all rows, standardised by them: kernels as they were, networks and trees learned again"
FITTED = ("_fitted", "_stream", "n_rows_", "nlml_", "noise_variance_")  # what a member has of its rows


def raise_interrupt_of(member: Any) -> None:
    """Raise KeyboardInterrupt if Ctrl-C ended the fit of this member, which reports it in `plan_` alone."""
    if member.plan_["ended"]["choice"] == RESULTS.interrupted.name:
        raise KeyboardInterrupt


def has_trees(member: Any) -> bool:
    """Whether its prior mean is a sum of trees."""
    return getattr(member, "mean", None) == TREES


def made_anew(member: Any, rows: Rows, groups: np.ndarray | None, width: float) -> bool:
    """Whether this member is now one of all these rows, standardised by them, its variances `width` times as large: a kernel GP at its hyperparameters, a network or trees learned again.

    Later rows have another mean and spread, and a network knows nothing of inputs beyond those that it learned from. Of the last fifth in time kernel
    GPs gained 0.28 nats on CO2, 0.2 on steel, 0.03 on Seattle, 0.01 to 0.02 on NOx, flights and PM2.5, for rows that only join; networks 2.5 nats on
    Tetouan, 4 on CO2 and San Francisco, 0.3 on PM2.5, and lost 0.06 on NOx. Kernels learned again lost 15 nats on CO2, for all that the pool chose
    them by how they predict later rows.
    """
    is_learned = is_network(getattr(member, "features", None)) or has_trees(member)
    if not (is_learned or isinstance(member, KernelGPRegressor)):
        return False
    if member._fitted.observation.transform is not None:
        return False
    with contextlib.suppress(TimeIsUpError, MemoryLimitError):
        again = at_its_parameters(member, rows, groups)
        for attribute in FITTED:
            if hasattr(again, attribute):
                setattr(member, attribute, getattr(again, attribute))
        if width > 1:
            member._fitted = member._fitted.widened(width)
        return True
    return False


def curvature_of(member: Any, budget: Budget) -> Curvature | None:
    """Of a kernel GP that has learned from all rows, for `at_its_parameters` of fewer; None for others."""
    if not isinstance(member, KernelGPRegressor) or member.learner is None:
        return None
    with jax.enable_x64(True):
        return Curvature.of(member._fitted.posterior, member.noise_variance is not None, budget)


def at_its_parameters(
    member: Any, rows: Rows, groups: np.ndarray | None, of_all: Curvature | None = None
) -> Any:
    """Another of these rows, standardised by them: a kernel GP of the same hyperparameters, one of another family that learns again.

    With the curvature `of_all` rows, the kernel GP has the hyperparameters that these rows alone would have given, to first order.
    """
    settings: dict[str, Any] = {"time_limit": None}
    if isinstance(member, KernelGPRegressor):
        noise, found = member.noise_variance_ / member._fitted.target_scale**2, member._fitted.posterior
        if isinstance(found, MixturePosterior):
            noise = float(found.base.noise.level)
        settings |= {"kernel": member.kernel_, "learner": None, "noise_variance": noise}
        settings |= {"batch_size": None, "epochs": None, "learning_rate": None}
        settings |= {"prediction": member.plan_["prediction"]["choice"]}
    again: Any = clone(member)
    again.set_params(**settings)
    vars(again)["_chosen_likelihood"] = member.plan_.get("likelihood", {"choice": None})["choice"]
    if of_all is not None:
        vars(again)["_of_all"] = of_all
    with silent():
        again.fit(rows.X, rows.y, rows.weight, groups=groups)
    raise_interrupt_of(again)
    mixture, exact = member._fitted.posterior, again._fitted.posterior
    if of_all is None and isinstance(mixture, MixturePosterior) and isinstance(exact, ExactKernelPosterior):
        with jax.enable_x64(True):
            again._fitted = with_posterior(again._fitted, mixture.at(exact))
        again.noise_variance_ = again._fitted.observation.noise_variance * again._fitted.target_scale**2
    return again


def takes_in(member: Any, rows: Rows) -> bool:
    """The held-out rows into the posterior, where family, time and memory allow it, and whether they did: hyperparameters and features stay."""
    with silent(), contextlib.suppress(TimeIsUpError, MemoryLimitError):
        deadline.require()
        if isinstance(member, KernelGPRegressor):
            member.update(rows.X, rows.y, rows.weight)
            return True
        if isinstance(member, FeatureGPRegressor):
            member.partial_fit(rows.X, rows.y, rows.weight)
            return True
    return False


def with_encoder(member: Any, encoder: Any, pool: Any) -> None:
    """So that the member, and each of its own, takes the tables that the pool takes."""
    own = getattr(member, "estimators_", {})
    for part in own.values():
        with_encoder(part, encoder, pool)
    if not own:
        member._fitted = dataclasses.replace(member._fitted, encoder=encoder)
    name_inputs(member, pool.n_features_in_, getattr(pool, "feature_names_in_", None))
