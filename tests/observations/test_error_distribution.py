"""The law of errors of left-out rows: trees, densities, evidence, and posteriors of that law."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats
from toy import KEY

from stochgp.data import Standardiser
from stochgp.data.rows import Data
from stochgp.estimators.fitted import Fitted
from stochgp.kernels import RBF
from stochgp.likelihoods import AbstractNoise, Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.numerics.clustered import cells, clusters, folds, median, paired
from stochgp.numerics.trees import Trees
from stochgp.observations import Dispersion, Observation, error_distribution
from stochgp.observations.boosting import Boosting, binned, edges_of
from stochgp.observations.error_distribution import (
    SCALED,
    STUDENT,
    _trees,
    choose,
    fit,
    gaussian_dispersion,
    slopes,
    student_dispersion,
)
from stochgp.parameters import AbstractParameter
from stochgp.posteriors import ExactKernelPosterior, KernelSystem

QUICK = Boosting(n_trees=40, depth=3, n_bins=16)
SHAPES = [Dispersion(0.7, None), Dispersion(1.3, 2.5), Dispersion(0.4, 30.0)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(error_distribution, "BOOSTING", QUICK)


@pytest.fixture
def whole(monkeypatch):
    """Trees of all rows, which do not depend on draws."""
    monkeypatch.setattr(error_distribution, "BOOSTING", dataclasses.replace(QUICK, share=1.0))


def draws(n, seed, df=None, slope=0.0, d=3):
    """Rows of x ~ U(−1, 1)^d and z² of the law √exp(slope · sign(x₁)) T."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(-1, 1, size=(n, d))
    T = generator.normal(size=n) if df is None else generator.standard_t(df, size=n)
    return Data(X, T * np.exp(slope * np.sign(X[:, 0]) / 2))


def some_trees():
    with jax.enable_x64(True):
        inputs = jnp.asarray([[0, 1], [2, 0], [1, 1]], jnp.int32)
        thresholds = jnp.asarray([[0.1, -0.2], [0.0, 0.5], [0.3, np.inf]])
        return Trees(inputs, thresholds, jnp.asarray(np.arange(12.0).reshape(3, 4) ** 1.3))


@pytest.mark.parametrize("df", [None, 2.5, 5.0, 40.0])
def test_the_dispersion_of_observations_has_their_standard_deviation(df):
    mean, std = np.zeros(3), np.array([0.1, 1.0, 7.0])
    law = Dispersion(0.5, df).observed(mean, std)
    assert_allclose(law.std, std, rtol=1e-12)
    quartile = stats.norm.ppf(0.75) if df is None else stats.t.ppf(0.75, df) * np.sqrt((df - 2) / df)
    assert_allclose(law.quantile(0.75), quartile * std, rtol=1e-5)


def test_a_bin_is_above_a_cut_exactly_where_the_value_is_above_its_threshold():
    X = np.round(draws(200, 1).X, 1)  # with ties
    edges = edges_of(X, 16)
    assert all(1 <= len(edge) <= 15 for edge in edges)
    bins = binned(X, edges)
    for j, edge in enumerate(edges):
        assert not np.isin(edge, X[:, j]).any()
        for c, threshold in enumerate(edge):
            assert_array_equal(bins[:, j] > c, X[:, j] > threshold)


def test_bins_at_the_ends_are_halved_down_to_as_many_rows_as_are_asked_for():
    X = np.random.default_rng(0).standard_cauchy((4_096, 1))
    edges, more = edges_of(X, 16)[0], edges_of(X, 16, fewest=4)[0]
    assert np.isin(edges, more).all()
    counts = np.bincount(binned(X, [more])[:, 0])
    ends = np.array([4, 4, 8, 16, 32, 64, 128])  # of 256
    of_first = np.arange(len(ends)) == 0  # a cut at a quantile lies above it
    assert_array_equal(counts[: len(ends)], ends + of_first)
    assert_array_equal(counts[::-1][: len(ends)], ends - of_first)
    assert_array_equal(counts[len(ends) : -len(ends)], np.full(14, 256))
    weights = np.full(4_096, 2.0)
    assert len(edges_of(X, 16, weights, 4)[0]) == len(more) + 2
    assert_array_equal(edges_of(X[:60], 16, fewest=4)[0], edges_of(X[:60], 16)[0])


def test_the_first_split_is_the_best_of_all_and_its_leaves_are_newtons_steps():
    rows = draws(40, 2)
    generator = np.random.default_rng(0)
    g, h = generator.normal(size=40), generator.uniform(0.5, 1, size=40)
    boosting = Boosting(n_trees=1, depth=1, rate=0.3, ridge=2.0, n_bins=100, share=1.0)
    found = boosting.fit(
        rows.X, lambda values: (g, h), rows.X, lambda values: -float(np.abs(values).sum()), 0
    )
    worth = lambda side: g[side].sum() ** 2 / (h[side].sum() + 2)
    best = max(worth(rows.X[:, j] > c) + worth(rows.X[:, j] <= c) for j in range(3) for c in rows.X[:, j])
    upper = rows.X[:, int(found.inputs[0, 0])] > float(found.thresholds[0, 0])
    assert_allclose(worth(upper) + worth(~upper), best, rtol=1e-12)
    steps = [-0.3 * g[side].sum() / (h[side].sum() + 2) for side in (~upper, upper)]
    assert_allclose(found.leaves[0], steps, rtol=1e-12)


def test_trees_are_as_many_as_make_the_loss_of_the_other_rows_smallest():
    rows, others, seen = draws(400, 3, slope=1.0), draws(200, 4, slope=1.0), []
    shape = Dispersion(1.0, None)

    def loss(eta):
        seen.append(-float(np.mean(shape.log_density(others.y**2, eta))))
        return seen[-1]

    found = QUICK.fit(rows.X, lambda eta: slopes(rows.y**2, eta, shape), others.X, loss, 0)
    at_end = -np.mean(shape.log_density(others.y**2, found.on_host(others.X)))
    assert_allclose(at_end, min(seen), rtol=1e-12)
    assert len(found.leaves) == int(np.argmin(seen))


@pytest.mark.parametrize("shape", SHAPES)
def test_densities_integrate_to_one_and_have_the_variance_of_their_shape(shape):
    eta = 0.6
    density = lambda e: float(np.exp(shape.log_density(np.array([e**2]), np.array([eta]))[0]))
    assert_allclose(2 * integrate.quad(density, 0, np.inf, limit=200)[0], 1, rtol=1e-7)
    if shape.df is None or shape.df > 4:
        found = 2 * integrate.quad(lambda e: e**2 * density(e), 0, np.inf, limit=200)[0]
        assert_allclose(found, shape.variance * np.exp(eta), rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_slopes_are_those_of_the_loss_and_of_its_expectation(shape):
    squares, eta = draws(20, 5).y ** 2, np.linspace(-1, 1, 20)
    up, down = (shape.log_density(squares, eta + step) for step in (1e-6, -1e-6))
    assert_allclose(slopes(squares, eta, shape)[0], -(up - down) / 2e-6, rtol=1e-7, atol=1e-9)
    law = stats.norm() if shape.df is None else stats.t(shape.df)
    square = lambda T: float(slopes(np.array([T**2 * shape.factor]), np.zeros(1), shape)[0][0] ** 2)
    expected = integrate.quad(lambda T: square(T) * law.pdf(T), -np.inf, np.inf, limit=200)[0]
    assert_allclose(slopes(squares, eta, shape)[1], expected, rtol=1e-6)  # E g² is the information


@pytest.mark.parametrize("df", [3.0, 8.0])
def test_the_shape_is_found(df):
    """log κ within 4 standard errors, by the inverse information of (log κ, log ν) at the truth."""
    n = 4000
    found = student_dispersion(0.5 * draws(n, 7, df=df).y ** 2)
    value = lambda u: Dispersion(0.5 * np.exp(u[0]), df * np.exp(u[1])).log_density(0.5 * sample, np.zeros(1))
    sample = draws(200_000, 8, df=df).y ** 2
    steps = np.eye(2) * 1e-4
    J = np.stack([(value(step) - value(-step)) / 2e-4 for step in steps])
    errors = np.sqrt(np.diag(np.linalg.inv(J @ J.T / 200_000)) / n)
    assert abs(np.log(found.factor / 0.5)) < 4 * errors[0]
    assert abs(np.log(found.df / df)) < 4 * errors[1]
    assert student_dispersion(draws(n, 7, df=df).y ** 2, 6.0).df == 6
    squares = draws(n, 9).y ** 2
    assert_allclose(gaussian_dispersion(squares).factor, (1 + squares.sum()) / (1 + n), rtol=1e-12)


def test_errors_of_gains_are_those_of_the_sums_of_cells():
    difference = np.random.default_rng(0).normal(size=60)
    mean, error = paired(difference, np.arange(60))
    assert_allclose((mean, error), (difference.mean(), difference.std(ddof=1) / 60**0.5), rtol=1e-12)
    alike = paired(np.repeat(difference, 5), np.repeat(np.arange(60), 5))
    assert_allclose(alike, (mean, error), rtol=1e-12)  # rows of one cell count once
    assert paired(difference, np.zeros(60, int))[1] == np.inf


def test_a_row_that_counts_is_as_many_rows_of_one_cell():
    generator = np.random.default_rng(1)
    difference, count, cell = (
        generator.normal(size=60),
        generator.integers(1, 5, 60),
        generator.integers(9, size=60),
    )
    for part in (cell, np.arange(60)):
        many = paired(np.repeat(difference, count), np.repeat(part, count))
        assert_allclose(paired(difference, part, count.astype(float)), many, rtol=1e-12)
        assert_allclose(paired(difference, part, 0.1 * count), many, rtol=1e-12)
    share = count / count.sum()
    mean = share @ difference
    alone = np.sqrt(60 / 59 * share**2 @ (difference - mean) ** 2)
    assert_allclose(paired(difference, np.arange(60), share), (mean, alone), rtol=1e-12)


def test_parts_are_the_groups_or_cells():
    X, group = np.random.default_rng(1).uniform(size=(1000, 2)), np.arange(1000) // 7 + 5
    assert_array_equal(clusters(X, group), group - 5)
    assert_array_equal(clusters(X, None), cells(X, 64))


@pytest.mark.parametrize("n", [120, 600])
def test_the_gaussian_is_kept_in_19_of_20_draws(n):
    assert sum(choose(draws(n, seed), 0)[0].name is None for seed in range(20)) >= 19


@pytest.mark.parametrize(("df", "slope"), [(3.0, 0.0), (None, 1.5), (3.0, 1.5)])
def test_heavy_tails_or_a_scale_of_the_inputs_are_found(df, slope):
    rows = draws(2400, 11, df, slope)
    assert choose(rows, 0)[0].name == STUDENT
    found = fit(rows, 0)
    assert (found.df > 10) == (df is None)
    side = found.log_scale(np.diag([0.5, 0, 0])[:1]) - found.log_scale(np.diag([-0.5, 0, 0])[:1])
    assert abs(side[0] - 2 * slope) < 0.8


def test_one_comparison_of_many_rows_also_gives_the_distribution(monkeypatch):
    """Trees of three quarters of the rows; κ and ν maximise the density of all other rows."""
    monkeypatch.setattr(error_distribution, "MANY", 2_000)
    rows = draws(2_400, 11, 3.0, 1.5)
    preference, found = choose(rows, 0)
    part = folds(2_400, None, 8, 0)
    first, others, both = (rows.take(where) for where in (part > 1, part == 1, part < 2))
    trees = _trees(first, others, 0)
    assert preference.name == STUDENT
    assert_array_equal(found.trees.leaves, trees.leaves)
    wanted = student_dispersion(both.y**2 * np.exp(-trees.on_host(both.X)))
    assert_allclose((found.factor, found.df), (wanted.factor, wanted.df), rtol=1e-6)
    assert choose(draws(2_400, 1), 0)[1] is None
    assert choose(dataclasses.replace(rows, group=np.arange(2_400) % 20), 0)[1] is None  # two rounds


@pytest.mark.parametrize(("n", "wanted"), [(400, None), (2400, SCALED)])
def test_without_heavy_tails_no_student_t_is_chosen(n, wanted):
    rows = draws(n, 11, 3.0, 2.0)
    found = choose(rows, 0, heavy_tails=False)[0]
    assert found.name == wanted and "student" not in found.why
    assert fit(rows, 0, heavy_tails=False).df is None


def test_too_few_rows_ties_and_few_groups_choose_nothing():
    clear = draws(4000, 12, df=3.0, slope=2.0)
    assert choose(clear.take(np.arange(60)), 0)[0].name is None
    tied = dataclasses.replace(clear, y=np.where(np.arange(4000) % 5 == 0, 0, clear.y))
    assert "tied" in choose(tied, 0)[0].why
    assert "groups" in choose(dataclasses.replace(clear, group=np.arange(4000) % 9), 0)[0].why


def test_the_scale_is_constant_if_rows_are_few():
    clear = draws(4000, 12, df=3.0, slope=2.0)
    assert fit(clear.take(np.arange(500)), 0).trees is not None
    assert fit(clear, 0, scaled=False).trees is None
    few = clear.take(np.arange(499))
    found, wanted = fit(few, 0), student_dispersion(few.y**2)
    assert found.trees is None
    assert_allclose([found.factor, found.df], [wanted.factor, wanted.df], rtol=1e-5)
    assert fit(clear, 0, df=5.0).df == 5


def test_a_scale_of_the_input_is_recovered():
    """log s = ±1.5 by the sign of x₁: within 0.35 on average, log s having the mean 0."""
    rows = draws(4000, 13, slope=1.5)
    law = fit(rows, 0, heavy_tails=False)
    found, truth = law.trees.on_host(rows.X), 1.5 * np.sign(rows.X[:, 0])
    assert abs(found[folds(len(rows), rows.group, 4, 0) != 0].mean()) < 1e-9
    assert np.mean(np.abs(found - truth)) < 0.35
    assert_allclose(law.factor, 1, atol=0.25)


class Sloped(AbstractNoise):
    """s(x) = exp(slope x₁)."""

    level: AbstractParameter
    slope: float

    def multiplier(self, X):
        return jnp.exp(self.slope * X[:, 0])


def make_fitted(slope, law):
    """A posterior with noise 0.1 exp(slope x₁), and that law of observations."""
    rows = draws(30, 14)
    with jax.enable_x64(True):
        X, noise = jnp.asarray(rows.X), Sloped(known_noise(0.1).level, slope)
        system = KernelSystem(RBF(np.ones(3), np.float64(1.1)), X, np.ones(30), noise, 64)
        A = np.asarray(system.operator.dense())
        weights = jnp.asarray(np.linalg.solve(A, np.sin(3 * rows.X[:, :1])))
        base = ExactKernelPosterior(system=system, weights=weights, explained=1.0, y=np.zeros(len(weights)))
    observation = Observation(Standardiser.identity(()), Gaussian(noise), law)
    return Fitted(None, Standardiser.identity((3,)), base, "float64", observation)


@pytest.mark.parametrize(("slope", "trees"), [(0.0, True), (0.8, False), (0.8, True)])
def test_deviations_and_noise_are_those_of_the_base_times_the_scale(slope, trees):
    """c s(x), s of the trees alone: what the noise of the base has of the input is in the noise once, and not in f."""
    law = Dispersion(0.7 * 3 / 5, 5.0, some_trees().plus(-20.0) if trees else None)
    base, found = (make_fitted(slope, given) for given in (None, law))
    Z = draws(9, 15).X
    s = 0.7 * (np.exp(np.clip(some_trees().on_host(Z) - 20, -16, 16)) if trees else np.ones(9))
    (mean, std), (wanted, plain) = (of.mean_and_std(Z, include_noise=False) for of in (found, base))
    assert_allclose(mean, wanted)
    assert_allclose(std**2, s * plain**2, rtol=1e-12)
    noisy = found.mean_and_std(Z, include_noise=True)[1]
    assert_allclose(noisy**2 - std**2, 0.1 * s * np.exp(slope * Z[:, 0]), rtol=1e-9)
    (ours, theirs) = (of.covariance(Z, include_noise=False) for of in (found, base))
    assert_allclose(ours, np.sqrt(np.outer(s, s)) * theirs, rtol=1e-9)
    drawn, without = (of.sample_functions(3, key=KEY)(Z) for of in (found, base))
    m = wanted[:, None]
    assert_allclose(drawn, m + np.sqrt(s)[:, None] * (without - m), rtol=1e-6)
    assert_allclose(found.observation.noise_variance, 0.07)


COUNTS = np.random.default_rng(0).integers(1, 5, 600).astype(float)


def counted(n, seed, **law):
    """(Rows that count as 1 to 4, the same rows repeated); the copies of a row are a group, as the row is."""
    rows = dataclasses.replace(draws(n, seed, **law), group=np.arange(n))
    return dataclasses.replace(rows, weight=COUNTS[:n]), rows.take(
        np.repeat(np.arange(n), COUNTS[:n].astype(int))
    )


@pytest.mark.parametrize("df", [None, 4.0])
def test_shapes_of_rows_that_count_are_those_of_repeated_rows(df):
    one, many = counted(300, 20, df=4.0)
    assert_allclose(median(one.y**2, one.weight), np.median(many.y**2), rtol=1e-12)
    assert_allclose(median(one.y[:7] ** 2), np.median(one.y[:7] ** 2), rtol=1e-12)
    found, wanted = (gaussian_dispersion(rows.y**2, rows.weight) for rows in (one, many))
    assert_allclose(found.factor, wanted.factor, rtol=1e-12)
    found, wanted = (student_dispersion(rows.y**2, df, rows.weight) for rows in (one, many))
    assert found.trees is None
    assert_allclose([found.factor, found.df], [wanted.factor, wanted.df], rtol=1e-4)


def test_trees_of_rows_that_count_are_those_of_repeated_rows(whole):
    (one, many), (others, more) = counted(400, 21, slope=1.5), counted(200, 22, slope=1.5)
    for found, wanted in zip(edges_of(one.X, 16, one.weight), edges_of(many.X, 16), strict=True):
        assert_array_equal(found, wanted)
    found, wanted = (_trees(*rows, 0) for rows in ((one, others), (many, more)))
    assert_array_equal(found.inputs, wanted.inputs)
    assert_allclose(found.thresholds, wanted.thresholds)
    assert_allclose(found.leaves, wanted.leaves, atol=1e-5)  # κ is found to about as much


def test_rows_that_count_choose_what_repeated_rows_choose(whole):
    """To the printed digits of every gain and every error."""
    one, many = counted(600, 23, df=4.0, slope=0.6)
    found, wanted = (choose(rows, 0)[0] for rows in (one, many))
    numbers = lambda preference: re.findall(r"gains (\S+ ± \S+) nats", preference.why)
    assert (found.name, numbers(found)) == (wanted.name, numbers(wanted))
    assert numbers(found) != numbers(choose(dataclasses.replace(one, weight=None), 0)[0])


def test_inputs_of_two_values_split_as_others_do():
    """0, 1 of one column and 0, 1, 2 of another, of the same rows: the tree of the first is that of the second, wherever their splits are the same."""
    generator = np.random.default_rng(5)
    two, n = generator.integers(0, 2, (300, 6)).astype(float), 300
    g, h = generator.normal(size=n) + two[:, 1] * two[:, 4], generator.uniform(0.5, 1, n)
    boosting = Boosting(n_trees=1, depth=3, rate=0.3, ridge=2.0, share=1.0)
    grown = lambda Z: boosting.fit(Z, lambda v: (g, h), Z, lambda v: -float(np.abs(v).sum()), 0)
    found, others = grown(two), two.copy()
    others[0] = 2.0  # so that each has three values, the third of one row
    assert all(len(edge) == 2 for edge in edges_of(others, 32))
    worth = lambda part: g[part].sum() ** 2 / (h[part].sum() + 2)
    leaf = np.zeros(n, int)
    for level in range(3):
        total = [
            sum(worth((leaf == c) & (two[:, j] == side)) for c in range(1 << level) for side in (0, 1))
            for j in range(6)
        ]
        assert int(found.inputs[0, level]) == int(np.argmax(total))
        leaf = 2 * leaf + (two[:, int(np.argmax(total))] > 0.5)
    first = grown(others)
    assert int(first.inputs[0, 0]) == int(found.inputs[0, 0])


def test_trees_of_many_inputs_use_random_inputs_and_the_best_of_them():
    """Half of the inputs have two values. Each first split is the best of the 64 drawn inputs."""
    generator = np.random.default_rng(7)
    X = generator.normal(size=(400, 90))
    X[:, ::2] = X[:, ::2] > 1
    g = generator.normal(size=400) + X[:, 1] - 2 * X[:, 8]
    boosting = Boosting(n_trees=3, depth=1, rate=0.3, ridge=2.0, n_bins=16, share=1.0, patience=9)
    seen = []
    found = boosting.fit(X, lambda v: (g + v, np.ones(400)), X, lambda v: -len(seen.append(v) or seen), 0)
    edges, values, draw = edges_of(X, 16), np.zeros(400), np.random.default_rng(0)
    square = lambda side, slope: slope[side].sum() ** 2 / (side.sum() + 2)
    for t in range(3):
        order = np.argsort(np.array([len(edge) == 1 for edge in edges]), kind="stable")
        some = order[np.sort(draw.permutation(90)[:64])]
        draw.permutation(400)
        worth = lambda j, c, slope=g + values: square(X[:, j] > c, slope) + square(X[:, j] <= c, slope)
        best = max(worth(j, c) for j in some for c in edges[j])
        j, c = int(found.inputs[t, 0]), float(found.thresholds[t, 0])
        assert_allclose(worth(j, c), best, rtol=1e-12)
        values = values + np.asarray(found.leaves)[t][(X[:, j] > c).astype(int)]


def test_boosting_ends_when_it_is_told_to():
    rows, asked = draws(100, 6), iter([True, True, False])
    found = Boosting(n_trees=9, patience=9).fit(
        rows.X,
        lambda v: (v - rows.y**2, np.ones(100)),
        rows.X,
        lambda v: float(np.mean((v - rows.y**2) ** 2)),
        0,
        goes_on=lambda: next(asked),
    )
    assert len(found.leaves) == 2
