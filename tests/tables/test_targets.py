"""Targets as they are given: codes for missing values, durations, dates, masked values."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stochgp import FeatureGPRegressor, GPRegressor, KernelGPRegressor, SparseGPClassifier, learners
from stochgp.kernels import RBF, Tanimoto
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.tables.targets import read_targets

N = 60
RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (N, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=N)


def model(**settings):
    """A fit that learns nothing."""
    return KernelGPRegressor(
        RBF(1.0), learner=None, likelihood=Gaussian(known_noise(0.01)), time_order="interpolate", **settings
    )


def with_value(value, row=7):
    return np.where(np.arange(N) == row, value, Y)


def fitted_with_warning(match, *data, **settings):
    with pytest.warns(UserWarning, match=match) as warned:
        found = model(**settings).fit(*data)
    assert len(warned) == 1
    return found


def test_a_code_for_a_missing_target_is_missing():
    found = fitted_with_warning("the target -9999, probably a code .*: data row 8", X, with_value(-9999.0))
    same = fitted_with_warning("without a target .*: data row 8", X, with_value(np.nan))
    np.testing.assert_array_equal(found.predict(X), same.predict(X))
    assert found.n_rows_ == N - 1 and "the target -9999" in found.summary()


def test_a_far_target_that_is_no_code_is_learned_from_with_a_warning():
    found = fitted_with_warning("1 target.* 50.5 at data row 8; the model", X, with_value(50.5))
    assert found.n_rows_ == N and "50.5 at data row 8" in " ".join(found.summary().split())


@pytest.mark.parametrize("value", [-9999.0, 50.5])
def test_far_targets_may_be_kept(value):
    """With gaps in the inputs filled."""
    assert model(missing="keep").fit(np.where(X > 2, np.nan, X), with_value(value)).n_rows_ == N
    with pytest.raises(ValueError, match="missing"):
        model(missing="drop").fit(X, Y)


def test_codes_are_errors_where_missing_values_are():
    with pytest.raises(ValueError, match="-9999 at data row 8; set missing='keep'"):
        model(missing="refuse").fit(X, with_value(-9999.0))


def test_targets_of_rows_of_weight_0_are_not_looked_at():
    assert model().fit(X, with_value(-9999.0), 1.0 * (np.arange(N) != 7)).n_rows_ == N - 1


def test_a_code_among_targets_of_fingerprints_is_left_out():
    bits = RNG.integers(0, 2, (N, 16)).astype(np.float64)
    gp = KernelGPRegressor(Tanimoto(), learner=None)
    with pytest.warns(UserWarning, match="1 rows of 60 are ignored: 1 with the target -9999"):
        found = gp.fit(bits, with_value(-9999.0))
    keep = np.arange(N) != 7
    np.testing.assert_allclose(found.predict(bits), gp.fit(bits[keep], Y[keep]).predict(bits), rtol=1e-6)


def test_a_code_in_files_is_named(tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": with_value(-9999.0)}).to_csv(path, index=False)
    with pytest.warns(UserWarning, match="of 60 rows of the files, 1 target.*: -9999$"):
        FeatureGPRegressor("linear", random_state=0).fit(path, "y")
    with pytest.raises(ValueError, match="-9999; set missing='keep'"):
        FeatureGPRegressor("linear", missing="refuse").fit(path, "y")


def test_a_pool_looks_at_targets_once_and_its_members_do_not():
    pool = GPRegressor(members=["linear"], random_state=0)
    with pytest.warns(UserWarning, match="-9999|50.5") as warned:
        pool.fit(X, np.where(np.arange(N) == 9, 50.5, with_value(-9999.0)))
    assert len(warned) == 2
    assert "-9999" in pool.summary() and "50.5" in pool.summary()


SECONDS = np.round(60 + 10 * Y, 3)
DELTAS = [datetime.timedelta(seconds=value) for value in SECONDS]
DURATIONS = {
    "list": DELTAS,
    "objects": np.array(DELTAS, object),
    "ns": pd.Series(DELTAS).astype("m8[ns]"),
    "us": pd.Series(DELTAS).astype("m8[us]"),
    "ms": np.array(DELTAS, "m8[ms]"),
    "column": np.array(DELTAS, "m8[ms]")[:, None],
    "Arrow": pa.array(DELTAS),
    "Arrow in pandas": pd.Series(DELTAS).astype("duration[us][pyarrow]"),
}


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("container", DURATIONS)
def test_durations_are_seconds_whatever_holds_them(container):
    with pytest.warns(UserWarning, match="targets and predictions are durations, in seconds"):
        np.testing.assert_allclose(read_targets(DURATIONS[container]), SECONDS, rtol=1e-12)


def test_durations_say_their_unit_and_may_be_missing():
    y = pd.Series(DELTAS).where(np.arange(N) != 7)
    with pytest.warns(UserWarning, match="in seconds|1 without a target") as warned:
        found = model().fit(X, y)
    assert len(warned) == 2
    assert "durations, in seconds" in found.summary()
    assert 40 < found.predict(X).mean() < 80


MOMENTS = pd.Timestamp("2024-01-01") + pd.Series(DELTAS)
DATES = {
    "list": MOMENTS.dt.to_pydatetime().tolist(),
    "series": MOMENTS,
    "missing": MOMENTS.where(np.arange(N) != 7),
    "zone": MOMENTS.dt.tz_localize("UTC"),
    "array": MOMENTS.to_numpy(),
    "periods": pd.Series(pd.period_range("2020", periods=N, freq="D")),
}


@pytest.mark.parametrize("container", DATES)
def test_dates_are_refused_as_targets_in_one_line(container):
    with pytest.raises(ValueError, match="contains dates or times; the target must be numbers") as error:
        model().fit(X, DATES[container])
    assert "\n" not in str(error.value)


MASK = np.arange(N) % 20 == 3


def test_masked_targets_are_missing():
    filled = np.where(MASK, 1e20, Y)
    found = fitted_with_warning("3 without a target", X, np.ma.masked_array(filled, MASK))
    same = fitted_with_warning("3 without a target", X, np.where(MASK, np.nan, Y))
    np.testing.assert_array_equal(found.predict(X), same.predict(X))
    np.testing.assert_array_equal(
        read_targets(np.ma.masked_array(np.arange(3), [0, 1, 0]), True), [0, np.nan, 2]
    )


def test_masked_inputs_are_missing_at_fit_and_at_predict():
    mask = np.stack([MASK, np.roll(MASK, 5)], axis=1)
    masked, gaps = np.ma.masked_array(np.where(mask, 1e20, X), mask), np.where(mask, np.nan, X)
    found, same = model().fit(masked, Y), model().fit(gaps, Y)
    np.testing.assert_array_equal(found.predict(masked), same.predict(gaps))
    whole = np.ma.masked_array(np.round(100 * X).astype(int), mask)
    np.testing.assert_array_equal(
        model().fit(whole, Y).predict(whole),
        model().fit(np.where(mask, np.nan, whole.data), Y).predict(whole),
    )


def test_masked_weights_and_groups_are_refused():
    with pytest.raises(ValueError, match="sample_weight is nan"):
        model().fit(X, Y, np.ma.masked_array(np.ones(N), MASK))
    with pytest.raises(ValueError, match="the group of row 4 is missing .*; 3 of 60 values are"):
        model().fit(X, Y, groups=np.ma.masked_array(np.arange(N) % 5, MASK))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("labels", [np.arange(N) % 2, np.array(["no", "yes"])[np.arange(N) % 2]])
def test_masked_labels_are_missing(labels):
    gp = SparseGPClassifier(n_inducing=4, learner=learners.SVGP(epochs=1), random_state=0)
    with pytest.warns(UserWarning, match="3 rows of 60 are ignored: 3 without a target"):
        gp.fit(X, np.ma.masked_array(labels, MASK))
    assert gp.classes_.tolist() == np.unique(labels).tolist() and gp.n_rows_ == N - 3


def test_inputs_without_any_value_are_blamed():
    with pytest.raises(ValueError, match="no useful column; 'x0' is .* it has no values"):
        model().fit(np.full((N, 2), np.nan), Y)
    with pytest.raises(ValueError, match="Input y contains NaN in all rows"):
        model().fit(X, np.full(N, np.nan))
