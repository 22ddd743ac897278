"""Members of pools: functions of the rows that return an estimator with its defaults for them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stochgp.budget import Budget
from stochgp.data.rows import Data
from stochgp.families.classifier import SparseGPClassifier
from stochgp.families.default_learners import CLASSIFIER
from stochgp.families.feature import FeatureGPRegressor
from stochgp.families.kernel import KernelGPRegressor
from stochgp.families.kernel_choice import near_in_time
from stochgp.families.likelihoods import FEATURE, KERNEL, SPARSE
from stochgp.families.sparse import SparseGPRegressor
from stochgp.kernels import Constant, Linear, Sum, resolve
from stochgp.observations import LINEAR_MEAN, TREES

Member = Callable[[Data, list[int], Any], Any]  # (rows, columns of times of day, memory limit) → estimator

# Beyond so many rows the kernel GP of a pool predicts from near rows: with 33,000 to 36,000 rows in a quarter of the seconds, at a loss of 0.01 to 0.08 nats.
MAX_GLOBAL_ROWS = 20_000
N_FACTORS = 2  # of the covariance matrix, before and after the held-out rows have joined

N_INDUCING = 256
# Inducing points and steps of a classifier up to so many rows. With 256 and 2,048, digits (1,438 rows) took 41 s instead of 17, at a log loss of .078 instead of .080.
MAX_FEW_ROWS = 5_000
FEW = {1_000: (64, replace(CLASSIFIER, steps=512)), MAX_FEW_ROWS: (128, replace(CLASSIFIER, steps=1_024))}


def kernel(rows: Data, days: list[int], memory_limit: Any) -> KernelGPRegressor:
    """A kernel GP, whose inputs may be rotated where rows have neither groups nor an order in time."""
    few_bytes = memory_limit is not None and (
        N_FACTORS * 8 * len(rows) ** 2 > Budget.of(memory_limit).free() / 2
    )
    found = KernelGPRegressor(
        prediction="local" if few_bytes or len(rows) > MAX_GLOBAL_ROWS else "auto",
        rotate_inputs=rows.group is None,
    )
    if days:
        start = resolve(found.kernel, rows.X.shape[1], dtype=found.dtype)
        found.set_params(kernel=near_in_time(start, days))
    return found


def kernel_and_line(rows: Data, days: list[int], memory_limit: Any) -> KernelGPRegressor:
    """A kernel GP around a linear mean."""
    found = kernel(rows, days, memory_limit)
    found.set_params(mean=LINEAR_MEAN)
    return found


def classifier(kernel: str | Callable[[], Any], n_inducing: int = N_INDUCING) -> Member:
    """A member with this kernel, by name or made when it is needed; with few rows it has fewer inducing points and steps."""

    def member(rows: Data, days: list[int], memory_limit: Any) -> SparseGPClassifier:
        found = SparseGPClassifier(kernel if isinstance(kernel, str) else kernel(), n_inducing)
        few = next((FEW[most] for most in FEW if len(rows) <= most), None)
        if few is not None:
            found.set_params(n_inducing=min(n_inducing, few[0]), learner=few[1])
        return found

    return member


REGRESSORS: Mapping[str, Member] = {
    "kernel": kernel,
    "feature": lambda rows, days, memory_limit: FeatureGPRegressor(),
    "linear": lambda rows, days, memory_limit: FeatureGPRegressor("linear"),
    "trees": lambda rows, days, memory_limit: FeatureGPRegressor("linear", mean=TREES),
    "sparse": lambda rows, days, memory_limit: SparseGPRegressor(),
    "kernel_and_line": kernel_and_line,
}
FAMILIES = {  # whose likelihoods a member takes
    "kernel": KERNEL, "feature": FEATURE, "linear": FEATURE, "trees": FEATURE, "sparse": SPARSE, "kernel_and_line": KERNEL,
}  # fmt: skip
CLASSIFIERS: Mapping[str, Member] = {
    "smooth": classifier("rbf"),
    "rough": classifier("matern12"),
    # Of the standardised inputs: the sum of a few of them has the prior variance of the other members.
    "linear": classifier(lambda: Sum(Constant(4.0), Linear(0.3)), N_INDUCING // 4),
}
