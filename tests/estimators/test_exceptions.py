"""Kinds of errors and warnings, frames of predictions, and models in file objects."""

import io

import numpy as np
import pandas as pd
import pytest

import stochgp
from stochgp import KernelGPRegressor, exceptions
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise

FRAME = pd.DataFrame({"a": np.linspace(0, 1, 20), "b": np.linspace(0, 1, 20) ** 2}, index=range(5, 25))
Y = np.sin(FRAME["a"].to_numpy())


@pytest.fixture(scope="module")
def model():
    return KernelGPRegressor(learner=None, likelihood=Gaussian(known_noise(0.01)), random_state=0).fit(
        FRAME, Y
    )


def test_every_class_is_listed_and_of_its_kind():
    for name in exceptions.__all__:
        kind = getattr(exceptions, name)
        assert issubclass(kind, UserWarning if name.endswith("Warning") else ValueError)
        assert name in exceptions.__doc__ or kind.__doc__


def test_warnings_have_classes(model):
    with pytest.warns(exceptions.ExtrapolationWarning, match="a"):
        model.predict(FRAME.assign(a=100.0))
    with pytest.warns(exceptions.DataWarning, match="does not use"):
        model.predict(FRAME.assign(c=0.0))
    with pytest.raises(exceptions.MemoryLimitError, match="B"):
        KernelGPRegressor(memory_limit="1MB").fit(FRAME, Y)


def test_a_frame_holds_the_predictions_of_each_row(model):
    found = model.predict_frame(FRAME, 0.8)
    assert found.index.equals(FRAME.index) and list(found) == ["mean", "std", "median", "lower", "upper"]
    mean, std = model.predict(FRAME, return_std=True, include_noise=True)
    np.testing.assert_allclose(found[["mean", "std"]], np.stack([mean, std], axis=1), rtol=1e-6)
    np.testing.assert_array_equal(found[["lower", "upper"]], model.predict_interval(FRAME, 0.8))
    assert len(model.predict_frame(FRAME.to_numpy())) == len(FRAME)


def test_a_single_quantile_is_a_column(model):
    np.testing.assert_array_equal(
        model.predict_quantiles(FRAME, 0.3), model.predict_quantiles(FRAME, [0.3])[:, 0]
    )


def test_file_objects_hold_models(model):
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    np.testing.assert_array_equal(stochgp.load(file).predict(FRAME), model.predict(FRAME))
    with pytest.raises(ValueError, match="not a file of stochgp"):
        stochgp.load(io.BytesIO(b"x" * 100))
