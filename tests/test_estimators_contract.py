"""scikit-learn's own tests of an estimator, none excepted.

Runs are short, as scikit-learn's are for its own iterative estimators: nearly all of the time is compiling for each shape of data.
"""

import warnings

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from stochgp import FeatureGPRegressor, KernelGPRegressor


@pytest.mark.filterwarnings("default")  # some checks provoke warnings and look at them
@parametrize_with_checks([FeatureGPRegressor(epochs=100, learning_rate=0.01), KernelGPRegressor(epochs=20)])
def test_scikit_learn_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="sklearn")
        check(estimator)
