"""Members of pools of regressors that take next to no time."""

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners
from stochgp.pools.members import Member


def member(make, *given, **settings) -> Member:
    """The function of rows that a pool calls for this member."""
    return lambda rows, memory_limit: make(*given, **settings)


G = {"likelihood": "gaussian"}
KERNEL = G | {"learner": learners.FullBatch(epochs=5, spread=1.0)}
WITHOUT_KERNEL = {
    "feature": member(FeatureGPRegressor, "rff", n_features=60, learner=learners.SCGD(epochs=2), **G),
    "linear": member(FeatureGPRegressor, "linear", **G),
    "trees": member(FeatureGPRegressor, "linear", mean="trees", **G),
    "sparse": member(FeatureGPRegressor, "orf", n_features=60, learner=learners.SCGD(epochs=2), **G),
}
QUICK = {"kernel": member(KernelGPRegressor, **KERNEL)} | WITHOUT_KERNEL
