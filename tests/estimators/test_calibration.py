"""calibration=: corrections by rows that the fit does not see, in intervals, files and plans, with refusals."""

import numpy as np
import pytest
from scipy import stats

from stochgp import FeatureGPRegressor, KernelGPRegressor, load
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.distributions import ConformalScores, Normal
from stochgp.families.targets import set_aside

N = 1_200


def rows(n=N, seed=0):
    """Skewed noise: exponential, less its mean. Fits are told that it is larger."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * (generator.exponential(size=n) - 1)


def fitted(**settings):
    options = {"learner": None, "noise_variance": 0.5, "random_state": 0, "likelihood": "gaussian"}
    return KernelGPRegressor("rbf", **options | settings).fit(*rows())


@pytest.fixture(scope="module")
def pit():
    return fitted(calibration="pit")


def test_conformal_intervals_cover_as_they_promise():
    """Given n left-out rows, coverage is Beta(k, n + 1 − k): within 4 of its standard deviations, and those of the new rows."""
    model, (X, y) = fitted(calibration="conformal"), rows(3000, seed=1)
    n = N // 10
    assert len(model._fitted.observation.correction.scores) == n
    for level in (0.5, 0.8, 0.95):
        lower, upper = model.predict_interval(X, level).T
        share = np.mean((lower <= y) & (y <= upper))
        error = np.sqrt(level * (1 - level) * (1 / n + 1 / 3000))
        assert abs(share - level) < 4 * error + 1 / n
    with pytest.raises(ValueError, match="120 left-out rows are too few for intervals of 0.995"):
        model.predict_interval(X, 0.995)


def test_the_fit_sees_no_row_that_is_left_out(pit):
    X, y = rows()
    assert pit.n_rows_ == N - N // 10
    order = np.lexsort(np.column_stack([X, y]).T[::-1])  # rows are merged in lexicographic order
    kept, left = set_aside(Data(X[order], y[order]), "pit", "real", pit_seed(pit))
    alone = KernelGPRegressor(
        "rbf", learner=None, noise_variance=0.5, random_state=0, likelihood="gaussian"
    ).fit(kept.X, kept.y)
    np.testing.assert_array_equal(alone.predict(X[:20]), pit.predict(X[:20]))
    assert len(np.intersect1d(kept.y, left.y)) == 0


def pit_seed(model):
    return FitContext(model).sample_seed


def test_files_keep_the_correction(pit, tmp_path):
    X = rows(50, seed=1)[0]
    conformal = fitted(calibration="conformal")
    for model in (pit, conformal):
        model.save(tmp_path / "model")
        again = load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X))


def test_whole_groups_are_left_out_and_count_once():
    X, y = rows()
    group = np.arange(N) // 4
    kept, left = set_aside(Data(X, y, None, group), "pit", "real", 0)
    assert len(np.intersect1d(kept.group, left.group)) == 0
    assert len(np.unique(left.group)) == 100
    model = KernelGPRegressor(
        "rbf", learner=None, noise_variance=0.5, random_state=0, calibration="conformal"
    )
    assert len(model.fit(X, y, groups=group)._fitted.observation.correction.scores) == 100


def test_numbers_rounded_finely_are_no_atoms():
    X, y = rows()
    y = np.round(y, 3)
    assert len(np.unique(y)) < 0.9 * N
    kept, left = set_aside(Data(X, y), "pit", "real", 0)
    assert len(kept.y) + len(left.y) == N


def test_what_cannot_be_corrected_is_refused():
    X, y = rows()
    for calibration in ("pit", "conformal"):
        model = FeatureGPRegressor("rff", calibration=calibration)
        with pytest.raises(ValueError, match="at least 300 different rows"):
            model.fit(X[:200], y[:200])
        with pytest.raises(ValueError, match="hardly ever repeated"):
            model.fit(X, np.round(y, 1))
        with pytest.raises(ValueError, match="at least 200 groups"):
            model.fit(X, y, groups=np.arange(N) % 50)
        with pytest.raises(ValueError, match="not files"):
            model.fit("rows.csv", "y")
    with pytest.raises(ValueError, match="calibration"):
        FeatureGPRegressor(calibration="platt").fit(X, y)


def test_scores_give_the_intervals_of_every_level():
    """The k-th smallest |u − ½|, k = ⌈(n + 1) level⌉."""
    y = np.random.default_rng(0).normal(size=99)
    law = Normal(np.zeros(99), np.ones(99))
    found = ConformalScores.fit(law, y)
    smallest = np.sort(np.abs(stats.norm.cdf(y) - 0.5))
    for level, k in ((0.5, 50), (0.8, 80), (0.99, 99)):
        assert found.reach(level) == smallest[k - 1]
