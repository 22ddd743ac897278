"""scikit-learn's own tests of an estimator, none excepted.

Runs are short, as scikit-learn's are for its own iterative estimators: nearly all of the time is compiling for each shape of data. What the
checks look at is the interface, the same for every map and learner. `make test` makes all checks of the kernel GP; of the feature GP and the pool
those of construction, fits, weights and predictions, but not those of how arguments are read, which is one function for all. `make test-all` makes all
of every estimator.
"""

import warnings

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from stochgp import (
    FeatureGPRegressor,
    GPClassifier,
    GPRegressor,
    KernelGPRegressor,
    SparseGPClassifier,
    SparseGPRegressor,
    learners,
)

QUICK = FeatureGPRegressor(
    "rff", n_features=20, learner=learners.SCGD(batch_size=8, epochs=1, learning_rate=0.01)
)
DEFAULT = FeatureGPRegressor(learner=learners.SCGD(epochs=100, learning_rate=0.01))
KERNEL = KernelGPRegressor(learner=learners.FullBatch(epochs=8, spread=1.0))
POOL = GPRegressor(members={"kernel": KERNEL}, missing="refuse")
SPARSE = SparseGPRegressor(n_inducing=20, learner=learners.SVGP(batch_size=8, epochs=1, learning_rate=0.01))
STREAMS = {
    name: SparseGPRegressor(learner=learner, n_inducing=8)
    for name, learner in (
        ("svdgp", learners.SVDGP(8, 5, 0.01, mirror_rate=learners.InverseRoot(1.0, 1.0))),
        ("ivsgpr", learners.IVSGPR(8, 1, 0.01)),
    )  # as many as a check of the fit's quality asks for
}
COLLAPSED = SparseGPRegressor(learner=learners.SGPR(epochs=5), n_inducing=20)
CLASSES = SparseGPClassifier(
    n_inducing=20, learner=learners.SVGP(batch_size=32, epochs=10, learning_rate=0.03)
)
POOLED_CLASSES = GPClassifier(members={"smooth": CLASSES}, missing="refuse")


READING = (  # of X, y and the weights, before anything of an estimator's own
    "array_api_input", "complex_data", "dtype_object", "estimator_sparse_array", "estimator_sparse_matrix", "estimators_empty_data_messages",
    "estimators_nan_inf", "f_contiguous_array_estimator", "fit1d", "fit2d_predict1d", "readonly_memmap_input", "regressor_data_not_an_array",
    "all_zero_sample_weights_error", "sample_weights_list", "sample_weights_not_an_array",
    "sample_weights_not_overwritten", "sample_weights_pandas_series", "sample_weights_shape", "supervised_y_2d", "supervised_y_no_nan",
    "requires_y_none", "positive_only_tag_during_fit", "dict_unchanged", "dont_overwrite_parameters", "estimators_overwrite_params",
    "n_features_in", "n_features_in_after_fitting", "estimators_fit_returns_self", "fit_check_is_fitted",
    "pipeline_consistency",
)  # fmt: skip
ESTIMATORS = {
    "kernel": KERNEL,
    "features": QUICK,
    "pool": POOL,
    "sparse": SPARSE,
    "sgpr": COLLAPSED,
    **STREAMS,
    "classes": CLASSES,
    "pooled classes": POOLED_CLASSES,
    "deep features": DEFAULT,
}


def is_long(name, check):
    """Whether `make test` leaves this check of the estimator out; of rows that may not be written there is a second check of the same name."""
    reads = "readonly_memmap" in check.keywords or check.func.__name__.removeprefix("check_") in READING
    return name != "kernel" and (reads or name not in ("features", "pool"))


def checks():
    found = []
    for name, estimator in ESTIMATORS.items():
        for made, check in estimator_checks_generator(estimator, legacy=True):
            marks = [pytest.mark.long] if is_long(name, check) else []
            found.append(pytest.param(made, check, marks=marks, id=f"{name}-{check.func.__name__}"))
    return found


@pytest.mark.filterwarnings("default")  # some checks provoke warnings and look at them
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="sklearn")
        check(estimator)
