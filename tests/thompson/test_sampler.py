"""ThompsonSampler: what it asks for, what it takes, that nothing is lost."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import KernelGPRegressor, kernels, solvers
from stochgp.data import Fingerprints
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.thompson import ThompsonSampler

BOUNDS = [[0.0, 1.0], [10.0, 12.0]]
QUICK = {"rounds": 2, "proposals": 64, "steps": 20}
WIDE = kernels.Matern32([0.4, 0.8], 1.0)


INSIDE = np.array([[0.5, 11.0]])
BATCH = np.array([[0.5, 11.0], [0.1, 10.2], [0.9, 11.9], [0.4, 10.8]])


def target(X):
    """Largest, 1, at (0.3, 11.2)."""
    return 1 - 4 * (X[:, 0] - 0.3) ** 2 - (X[:, 1] - 11.2) ** 2


def sampler(**settings):
    given = {"bounds": BOUNDS, "noise_variance": 1e-4, "batch_size": 4, **QUICK, "dtype": "float64"}
    return ThompsonSampler(WIDE, **given | settings)


def told(n=24, seed=0, **settings):
    generator = np.random.default_rng(seed)
    X = generator.uniform([0, 10], [1, 12], (n, 2))
    return sampler(**settings).tell(X, target(X))


SOLVERS = {"cholesky": "cholesky", "cg": solvers.CG()}


@pytest.mark.parametrize(("solver", "maximize"), [("cholesky", True), ("cg", False)])
@pytest.mark.long
def test_it_finds_the_best_point(solver, maximize):
    """Of a smooth function, from 24 random points and 5 batches of 4."""
    sign = 1 if maximize else -1
    found = sampler(solver=SOLVERS[solver], maximize=maximize)
    generator = np.random.default_rng(0)
    X = generator.uniform([0, 10], [1, 12], (24, 2))
    found.tell(X, sign * target(X))
    first = found.best_y_
    for _ in range(5):
        X = found.ask()
        assert X.shape == (4, 2) and np.all((X >= [0, 10]) & (X <= [1, 12]))
        found.tell(X, sign * target(X))
    assert sign * found.best_y_ > 0.98 and sign * found.best_y_ >= sign * first
    assert_allclose(found.best_x_, [0.3, 11.2], atol=0.12)
    assert [entry["observations"] for entry in found.history_] == [24, 28, 32, 36, 40, 44]
    assert all(
        a["best"] * sign <= b["best"] * sign for a, b in zip(found.history_, found.history_[1:], strict=False)
    )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.long
def test_the_model_is_that_of_all_observations(solver):
    found = told(solver=SOLVERS[solver])
    X = found.ask()
    found.tell(X, target(X))
    whole = KernelGPRegressor(
        WIDE,
        learner=None,
        likelihood=Gaussian(known_noise(1e-4)),
        standardize=False,
        dtype="float64",
        solver="cholesky",
    ).fit(found._X, found._y)
    Z = np.random.default_rng(1).uniform([0, 10], [1, 12], (20, 2))
    atol = 1e-7 if solver == "cholesky" else 0.02
    assert_allclose(found.model_.predict(Z), whole.predict(Z), atol=atol)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_killed_run_goes_on_to_the_same_points(solver, tmp_path):
    path = tmp_path / "run"
    found = told(solver=SOLVERS[solver], checkpoint=str(path))
    X = found.ask()
    again = ThompsonSampler.load(path)  # what a process that died after `tell` has left
    assert_array_equal(again.ask(), X)
    for one in (found, again):
        one.tell(X, target(X))
    assert_array_equal(found.ask(), again.ask())
    assert found.best_y_ == again.best_y_ and len(again.history_) == 2
    assert again.history_[-1]["observations"] == 28 and again.checkpoint == str(path)


def test_asking_again_gives_the_same_points_until_something_is_told():
    found = told()
    X = found.ask()
    assert_array_equal(found.ask(), X)
    found.ask()[:] = 0  # the caller's own copy
    assert_array_equal(found.ask(), X)
    found.tell(X, target(X))
    assert np.all(np.any(found.ask() != X, axis=1))


def test_first_points_are_a_latin_hypercube():
    X = sampler(batch_size=10).ask()
    for column, (low, high) in zip(X.T, BOUNDS, strict=True):
        assert_array_equal(np.sort(np.floor(10 * (column - low) / (high - low))), np.arange(10))


def test_every_batch_has_functions_of_its_own():
    found = told(solver=SOLVERS["cg"])
    with jax.enable_x64(True):
        before = found._functions().prior
        found.tell(BATCH, target(BATCH))
        after = found._functions().prior
    assert not np.array_equal(before.weights, after.weights)


@pytest.mark.long
def test_candidates_come_once_each_and_the_best_is_found():
    generator = np.random.default_rng(2)
    points = generator.uniform([0, 10], [1, 12], (40, 2))
    found = ThompsonSampler(WIDE, candidates=points, noise_variance=1e-4, batch_size=4, dtype="float64")
    seen = []
    for _ in range(5):
        rows = found.ask()
        seen += rows.tolist()
        found.tell(rows, target(points[rows]))
    assert len(set(seen)) == 20
    assert found.best_x_ == int(np.argmax(target(points)))
    for _ in range(5):
        found.tell(found.ask(), target(points[found.ask()]))
    with pytest.raises(ValueError, match="0 candidates remain, but a batch needs 4"):
        found.ask()


@pytest.mark.parametrize(
    "solver", ["cholesky", pytest.param(solvers.CG(), marks=pytest.mark.long)], ids=["cholesky", "cg"]
)
def test_candidates_of_the_tanimoto_kernel_have_the_exact_posterior(solver, tmp_path):
    """Packed by the counts of all candidates, those told later too."""
    generator = np.random.default_rng(5)
    counts = np.minimum(generator.poisson(0.4, (40, 12)) * np.arange(1, 13), 9)
    smaller = np.minimum(counts[:, None], counts[None]).sum(axis=2)
    larger = np.maximum(counts[:, None], counts[None]).sum(axis=2)
    K = np.where(larger == 0, 1.0, smaller / np.maximum(larger, 1))
    f = np.linalg.cholesky(K + 1e-9 * np.eye(40)) @ generator.normal(size=40)
    given = {"noise_variance": 1e-3, "batch_size": 4, "dtype": "float64", "solver": solver}
    found = ThompsonSampler(kernels.Tanimoto(), candidates=counts, **given)
    for _ in range(2):
        rows = found.ask()
        found.tell(rows, f[rows])
    found.save(tmp_path / "run")
    assert_array_equal(ThompsonSampler.load(tmp_path / "run").ask(), found.ask())
    told = found._taken
    A = K[np.ix_(told, told)] + 1e-3 * np.eye(8)
    mean = found.model_.predict(Fingerprints.pack(counts, found._packed.levels))
    tolerance = 1e-6 if solver == "cholesky" else 0.1
    assert_allclose(mean, K[:, told] @ np.linalg.solve(A, f[told]), atol=tolerance)
    assert len(set(told.tolist())) == 8


def test_hyperparameters_are_learned_anew_when_rows_have_doubled():
    found = told(12, 3, learner="full-batch", noise_variance=None)
    first, X = found.model_, found._X.copy()
    found.tell(X[:8] + 1e-3, target(X[:8]))
    assert found.model_ is first and found.model_.n_rows_ == 20
    found.tell(X[:4] + 2e-3, target(X[:4]))
    assert found.model_ is not first and found.model_.n_rows_ == 24
    assert found.ask().shape == (4, 2)


@pytest.fixture(scope="module")
def asked():
    found = told()
    return found, found.ask()


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (INSIDE[:, :1], [1.0], r"shape \[n, 2\] with n ≥ 1, but have the shape \(1, 1\)"),
        (INSIDE[0], [1.0], "points must have the shape"),
        (INSIDE, [1.0, 2.0], "one value for each of the 1 points"),
        (INSIDE, [np.nan], "y contains NaN.*row 1"),
        (INSIDE, [np.inf], "y contains infinity"),
        (INSIDE * np.nan, [1.0], "NaN at row 1"),
        (
            INSIDE + [0, 1.5],
            [1.0],
            r"point 1 is outside the box: its input 2 is 12.5, but the bounds are \[10, 12\]",
        ),
    ],
)
def test_bad_observations_are_refused_and_nothing_changes(X, y, words, asked):
    found, before = asked
    with pytest.raises(ValueError, match=words):
        found.tell(X, y)
    assert_array_equal(found.ask(), before)
    assert len(found._y) == 24 and len(found.history_) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bounds": None}, "exactly one of bounds"),
        ({"candidates": INSIDE}, "exactly one of bounds"),
        ({"bounds": [[0, 1, 2]]}, r"bounds must have the shape \[D, 2\]"),
        ({"bounds": [[0, 1], [3, 3]]}, "bounds of input 2"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"noise_variance": None}, "noise_variance is None"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        sampler(**settings)


@pytest.mark.parametrize(
    ("X", "words"),
    [([0, 24], "from 0 to 23, not 24"), ([-1], "not -1"), ([[0]], r"int64 and the shape \(1, 1\)")],
)
def test_an_index_that_is_no_candidate_is_named(X, words):
    with pytest.raises(ValueError, match=words):
        sampler(bounds=None, candidates=np.zeros((24, 2))).tell(np.asarray(X, np.int64), [0.0] * len(X))


def test_the_memory_limit_is_kept():
    found = told()
    found.memory_limit = "1MB"
    with pytest.raises(ValueError, match="maximising 4 functions needs .* memory_limit is 1 MB"):
        found.ask()
    with pytest.raises(ValueError, match="memory_limit is 1 MB"):
        sampler(memory_limit="1MB").tell(INSIDE, [1.0])
