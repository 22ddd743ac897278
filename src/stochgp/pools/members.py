"""Members of pools: their defaults, fits and refits."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from sklearn.base import clone

from stochgp import deadline
from stochgp.budget import Budget, MemoryLimitError, release
from stochgp.context import PLANNED, FitContext
from stochgp.data.rows import Data
from stochgp.deadline import TimeIsUpError
from stochgp.estimators.base import GPEstimator
from stochgp.families.classifier import SparseGPClassifier
from stochgp.families.default_learners import ALL_ROWS_OF_CLASSES, CLASSIFIER, MAX_SITE_ROWS
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.kernel import KernelGPRegressor
from stochgp.families.solving import with_posterior
from stochgp.families.sparse import SparseGPRegressor
from stochgp.features import is_network
from stochgp.kernels import Constant, Linear, Sum
from stochgp.names import lookup
from stochgp.observations import TREES
from stochgp.pools.division import MAX_FEW_ROWS
from stochgp.posteriors import ExactKernelPosterior, MixturePosterior
from stochgp.results import RESULTS
from stochgp.storage.checkpoint import CheckpointError
from stochgp.warning import silent

BY_BLOCKS = "_by_blocks"  # suffix of names of members that are scored on blocks of time
Member = Callable[[Data, Any], Any]  # (rows, memory limit) → estimator

# With more rows, the kernel GP of a pool predicts from nearby rows, which is faster.
MAX_GLOBAL_ROWS = 20_000
N_FACTORS = 2  # Cholesky factors in memory: before and after the update with held-out rows

N_INDUCING = 256
# Inducing points and learner of a classifier with few rows, for speed.
FEW = {1_000: (64, replace(CLASSIFIER, steps=512)), MAX_FEW_ROWS: (128, replace(CLASSIFIER, steps=1_024))}
SHARE_AFTER_FITS = 0.35  # share of a time limit to compare members and to update them
SECONDS = 1.0  # minimum per member; with less time, no further member is fitted
N_PARTS_AFTER = 2  # parts of a fit after the members: weights, and refits
FITTED = ("_fitted", "n_rows_", "nlml_", "noise_variance_")  # attributes that depend on the rows


def kernel(rows: Data, memory_limit: Any) -> KernelGPRegressor:
    """Return a kernel GP; with groups or times, the kernel GP does not rotate its inputs."""
    few_bytes = memory_limit is not None and (
        N_FACTORS * 8 * len(rows) ** 2 > Budget.of(memory_limit).free() / 2
    )
    found = KernelGPRegressor(solver="local" if few_bytes or len(rows) > MAX_GLOBAL_ROWS else "auto")
    vars(found)["_rotates"] = rows.group is None
    return found


def classifier(kernel: str | Callable[[], Any], n_inducing: int = N_INDUCING) -> Member:
    """Return a function that makes a classifier with this kernel; for few rows, a small one."""

    def member(rows: Data, memory_limit: Any) -> SparseGPClassifier:
        found = SparseGPClassifier(kernel if isinstance(kernel, str) else kernel(), n_inducing)
        if len(np.unique(rows.y)) == 2 and len(rows) <= MAX_SITE_ROWS:
            return found.set_params(n_inducing=len(rows), learner=ALL_ROWS_OF_CLASSES)
        few = next((FEW[most] for most in FEW if len(rows) <= most), None)
        if few is not None:
            found.set_params(n_inducing=min(n_inducing, few[0]), learner=few[1])
        return found

    return member


REGRESSORS: Mapping[str, Member] = {
    "kernel": kernel,
    "feature": lambda rows, memory_limit: FeatureGPRegressor(),
    "linear": lambda rows, memory_limit: FeatureGPRegressor("linear"),
    "trees": lambda rows, memory_limit: FeatureGPRegressor("linear", mean=TREES),
    "sparse": lambda rows, memory_limit: SparseGPRegressor(),
}
CLASSIFIERS: Mapping[str, Member] = {
    "smooth": classifier("rbf"),
    "rough": classifier("matern12"),
    # With few standardised inputs, the prior variance is similar to the prior variance of other members.
    "linear": classifier(lambda: Sum(Constant(4.0), Linear(0.3)), N_INDUCING // 4),
}


def named_members(
    members: Any,
    names: Sequence[str],
    known: Mapping[str, Member],
    rows: Data,
    memory_limit: Any,
    kind: type,
) -> dict[str, Any]:
    """Return the new estimators that the setting `members` describes."""
    if isinstance(members, Mapping):
        for name, member in members.items():
            if not isinstance(member, kind):
                what = f"members[{name!r}] is a {type(member).__name__}"
                raise TypeError(f"{what}, not a {kind.__name__.removesuffix('Mixin').lower()}")
        return {name: clone(member) for name, member in members.items()}
    if isinstance(members, str):
        lookup(members, {"auto": None}, "members")
    else:
        names = list(members)
    return {name: lookup(name, known, "members")(rows, memory_limit) for name in names}


def seconds_for_members(pool: Any) -> float:
    """Return the seconds of the time limit that remain for fits of members."""
    return deadline.left() - SHARE_AFTER_FITS * (pool.time_limit or 0.0)


def set_member(
    pool: Any, name: str, member: Any, n_left: int, settings: Mapping[str, Any], context: FitContext
) -> None:
    """Set the settings of the pool and a share of the time, unless the user has set them."""
    left = None if pool.time_limit is None else max(seconds_for_members(pool), 0.1) / n_left
    shared = {name: getattr(pool, name) for name in ("dtype", "memory_limit", "verbose", "devices")}
    shared |= {
        "time_limit": left,
        "time_order": "interpolate",
        "random_state": context.seed(name),
        "missing": "refuse",
    }
    known, default = member.get_params(deep=False), type(member)()
    own = isinstance(pool.members, Mapping)
    stays = lambda key: key not in known or (own and getattr(member, key) != getattr(default, key))
    member.set_params(**{key: value for key, value in (shared | dict(settings)).items() if not stays(key)})


def fit_members(
    pool: Any,
    candidates: dict[str, Any],
    rows: Data,
    encoder: Any,
    context: FitContext,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the fitted members. Raises the last error if no member could be fitted."""
    fitted, seconds, error = {}, [], ValueError("members contains no estimator")
    is_quick = {name: getattr(member, "features", None) == "linear" for name, member in candidates.items()}
    first = next(iter(candidates))
    # Linear regression comes first, so that a result exists after a short time limit.
    order = sorted(candidates, key=lambda name: (not is_quick[name], name != first + BY_BLOCKS))
    for k, name in enumerate(order):
        n_left = len(order) - k
        member: Any = candidates[name]
        is_late = seconds_for_members(pool) < max([*seconds, SECONDS * n_left])
        if is_late and not all(is_quick[other] for other in fitted):
            context.end(RESULTS.time_limit, f"there was no time to fit {', '.join(order[k:])}")
            break
        context.bar.part(f"member {name!r} ({k + 1} of {len(order)})", k, len(order) + N_PARTS_AFTER)
        context.bar.show("begins")
        set_member(pool, name, member, n_left, settings, context)
        vars(member)["_checks_targets"] = False
        if isinstance(candidates[name], GPEstimator):
            vars(member)["_encoder_of_pool"] = encoder  # to warn, and to find dates
        groups = rows.groups if takes_groups(name, candidates) else None
        try:
            # Only the first member warns about the rows; other members would repeat these warnings.
            with (
                context.interruptible(f"the fit of {name!r}"),
                contextlib.nullcontext() if name == first else silent(),
            ):
                member.fit(rows.X, rows.y, rows.weight, groups=groups, **context.of_member(name))
                fitted[name] = member
                seconds.append(member.fit_seconds_)
                raise_interrupt_of(member)
            vars(member).pop("_encoder_of_pool", None)
            release()  # frees memory of the compiler
        except ValueError as refused:
            if len(candidates) == 1 or isinstance(refused, CheckpointError):
                raise
            error = refused
            context.leave_out(name, str(refused))
        if context.is_interrupted:
            break
    if not fitted:
        raise KeyboardInterrupt if context.is_interrupted else error
    return _with_steps({name: fitted[name] for name in candidates if name in fitted}, context)


def _with_steps(members: dict[str, Any], context: FitContext) -> dict[str, Any]:
    """Return the members without those that ended early before their first step."""
    ends = {name: member.plan_["ended"] for name, member in members.items() if member.n_iter_ == 0}
    idle = [name for name, end in ends.items() if end["choice"] != PLANNED]
    if len(idle) == len(members):
        return members
    for name in idle:
        context.leave_out(name, f"the fit ended before the first step: {ends[name]['why']}")
    return {name: member for name, member in members.items() if name not in idle}


def takes_groups(name: str, names: Any) -> bool:
    """Return False for a member that is scored on single rows while others use blocks of time."""
    return name.endswith(BY_BLOCKS) or not any(other.endswith(BY_BLOCKS) for other in names)


def raise_interrupt_of(member: Any) -> None:
    """Raise KeyboardInterrupt if Ctrl-C ended the fit of the member."""
    if member.plan_["ended"]["choice"] == RESULTS.interrupted.name:
        raise KeyboardInterrupt


def has_trees(member: Any) -> bool:
    """Return True if the prior mean of a member is a sum of trees."""
    return getattr(member, "mean", None) == TREES


def learned_again(member: Any, rows: Data, **settings: Any) -> Any:
    """Fit a copy of the member to these rows, with the same kind of error distribution."""
    again: Any = clone(member)
    vars(again).update({key: settings.pop(key) for key in list(settings) if key.startswith("_")})
    again.set_params(time_limit=None, **settings)
    vars(again)["_checks_targets"] = False
    vars(again)["_chosen_likelihood"] = member.plan_.get("likelihood", {"choice": None})["choice"]
    with silent():
        again.fit(rows.X, rows.y, rows.weight, groups=rows.groups)
    raise_interrupt_of(again)
    return again


def kernel_of_all_rows(member: KernelGPRegressor, rows: Data) -> KernelGPRegressor:
    """Return a kernel GP with the learned hyperparameters fixed, in units of these rows."""
    posterior: Any = member._fitted.posterior
    solver = "local" if member.plan_["prediction"]["choice"] == "local" else member.solver
    again = learned_again(member, rows, kernel=member.kernel_, learner=None, solver=solver, _earlier=member)
    if isinstance(posterior, MixturePosterior) and isinstance(again._fitted.posterior, ExactKernelPosterior):
        with jax.enable_x64(True):
            again._fitted = with_posterior(again._fitted, posterior.at(again._fitted.posterior))
        again.noise_variance_ = again._fitted.observation.noise_variance * again._fitted.target_scale**2
    return again


def refitted_on_all(member: Any, rows: Data, width: float) -> bool:
    """Refit a member on all rows, and return True if this was possible.

    Kernel GPs keep their hyperparameters; networks and trees learn again.
    """
    is_kernel = isinstance(member, KernelGPRegressor)
    if not (is_kernel or is_network(getattr(member, "features", None)) or has_trees(member)):
        return False
    with contextlib.suppress(TimeIsUpError, MemoryLimitError):
        again = kernel_of_all_rows(member, rows) if is_kernel else learned_again(member, rows)
        for attribute in FITTED:
            if hasattr(again, attribute):
                setattr(member, attribute, getattr(again, attribute))
        if width > 1:
            member._fitted = member._fitted.widened(width)
        return True
    return False
