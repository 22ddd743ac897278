"""Members of pools of regressors that take next to no time."""

from functools import partial

from stochgp import FeatureGPRegressor, KernelGPRegressor

WITHOUT_KERNEL = {
    "feature": partial(FeatureGPRegressor, "rff", n_features=60, epochs=2, likelihood="gaussian"),
    "linear": partial(FeatureGPRegressor, "linear", epochs=5, likelihood="gaussian"),
    "trees": partial(FeatureGPRegressor, "linear", mean="trees", epochs=5, likelihood="gaussian"),
    "sparse": partial(FeatureGPRegressor, "orf", n_features=60, epochs=2, likelihood="gaussian"),
}
KERNEL = partial(KernelGPRegressor, likelihood="gaussian", epochs=5, n_samples=8)
QUICK = {"kernel": KERNEL} | WITHOUT_KERNEL | {"kernel_and_line": partial(KERNEL, mean="linear")}
