"""Leave-one-out and Vecchia as learners: against a plain loop, the exact optimum, known parameters; groups, counts, steps, refusals, bytes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import left_out, nlml
from sweeps import some_of
from toy import KEY

import stochgp.learners.conditionals as conditionals
from stochgp.budget import resident
from stochgp.data.memory import MemorySource
from stochgp.kernels import RBF, Matern12, Matern32
from stochgp.learners import (
    ByLoss,
    FullBatch,
    LeaveOneOut,
    Problem,
    Vecchia,
)
from stochgp.learning import fit
from stochgp.learning.fit import COMPILER_BYTES
from stochgp.models import KernelGP
from stochgp.neighbours import Neighbours
from stochgp.numerics.arrays import packed
from stochgp.objectives.conditionals import curvature
from stochgp.parameters import partition, positive

N_SE = 4.0
SEED = (3, 4)
KINDS = [LeaveOneOut, Vecchia]
sweep = pytest.mark.parametrize("kind", KINDS)

pytestmark = pytest.mark.usefixtures("double")


def model(ell=1.5, variance=1.0, noise=0.5, dtype=jnp.float64, kernel=RBF, d=1):
    kernel = kernel(positive(np.full(d, ell), dtype=dtype), positive(variance, dtype=dtype))
    return KernelGP(kernel, positive(noise, dtype=dtype))


def theta_of(gp):
    return packed(partition(gp)[0])


_covariance = conditionals.eqx.filter_jit(lambda gp, X, count: gp.covariance(X, count))


def covariance(gp, X, count=None):
    count = np.ones(len(X)) if count is None else np.asarray(count)
    with jax.enable_x64(True):
        return np.asarray(_covariance(gp, jnp.asarray(X), count))


@functools.cache
def draw(n=60, seed=0, width=6.0, d=1):
    """Rows, and targets of the model with lengthscale 0.7, variance 2, noise variance 0.1."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(0, width, size=(n, d))
    with jax.enable_x64(True):
        R = np.linalg.cholesky(covariance(model(0.7, 2.0, 0.1, d=d), X))
    return X, R @ generator.normal(size=n), R


def begun(learner, gp, source):
    plan = learner.plan(source.size, source.n_inputs, ByLoss())
    problem = Problem(source, plan, learner.prepare(gp, source, plan, SEED))
    state = learner.init(gp, problem, key=KEY)
    return dataclasses.replace(state, gp=gp), problem


def searched(learner, gp, source):
    """With neighbours in the metric of `gp`, all of them scored."""
    state, problem = begun(learner, gp, source)
    state = learner._search(state, problem)
    return dataclasses.replace(state, n_searches=np.int64(learner.searches)), problem


# Steps


@sweep
def test_scoring_steps_never_raise_the_loss_and_end_at_a_stationary_point(kind):
    """From far away, with a prior that counts; numbers are those of the formulas."""
    X, y, _ = draw()
    learner = kind(n_neighbours=8, spread=2.0)
    state, problem = searched(learner, model(8.0, 0.05, 3.0), MemorySource(X, y, dtype=jnp.float64))
    losses = []
    for _ in range(60):
        state, numbers = learner.score(state, problem)
        losses.append(numbers["loss"])
        g = state.at.gradient
        np.testing.assert_allclose(numbers["gain"], g @ np.linalg.solve(state.at.hessian, g) / 2, rtol=1e-8)
    assert np.all(np.diff(losses) <= 0)
    assert np.abs(state.at.gradient).max() < 1e-6
    pull = (theta_of(state.gp) - problem.prepared.start) / (4 * 60)
    source, near = problem.source, state.near
    at = curvature(state.gp, source, near, True, learner.joint, n_scored=problem.prepared.n_scored)
    np.testing.assert_allclose(at.gradient, -pull, atol=2e-6)
    assert learner.finished(numbers | {"searches": 2})
    assert not learner.finished(numbers | {"searches": 1})


@sweep
def test_a_step_that_does_not_lower_the_loss_is_not_taken(kind):
    """Sent uphill by a gradient of the wrong sign: θ stays, the next steps are damped by 4, 8, … times more, until one is taken."""
    X, y, _ = draw()
    learner = kind(n_neighbours=8)
    state, problem = searched(learner, model(), MemorySource(X, y, dtype=jnp.float64))
    at = learner._curvature(state.gp, problem, state.near)
    state = conditionals.eqx.tree_at(lambda s: s.at, state, at._replace(gradient=-at.gradient))
    for doubled in (4, 8, 16):
        before, (state, numbers) = state, learner.score(state, problem)
        assert numbers["accepted"] == 0 and numbers["loss"] == at.loss
        np.testing.assert_array_equal(theta_of(state.gp), theta_of(model()))
        assert state.damping == doubled * before.damping and state.harder == 2 * doubled
    state = conditionals.eqx.tree_at(lambda s: s.at, state, at)
    state, numbers = learner.score(state, problem)
    assert numbers["accepted"] == 1 and numbers["loss"] < at.loss and state.harder == 2


@sweep
def test_a_run_ends_where_the_last_curvature_has_its_minimum(kind):
    """The model has a third of the last step's gradient at most, and the loss that was promised; after a step that fell short it is that of the step."""
    X, y, _ = draw(400)
    learner = kind(n_neighbours=8, spread=2.0)
    state, problem = searched(learner, model(1.0, 1.5, 0.15), MemorySource(X, y, dtype=jnp.float64))
    assert learner.model(state) is state.gp
    for _ in range(20):
        state, numbers = learner.score(state, problem)
        if numbers["gain"] < conditionals.NEAR and abs(state.kept - 1) < conditionals.MOST_MISSED:
            break
        assert learner.model(state) is state.gp
    left = state.at.gradient
    at = learner._curvature(learner.model(state), problem, state.near)
    assert at.loss < state.at.loss
    assert at.gradient @ at.gradient < 0.1 * left @ left
    promised = left @ np.linalg.solve(state.at.hessian, left) / 2
    np.testing.assert_allclose(state.at.loss - at.loss, promised, rtol=0.5)
    refused = conditionals.eqx.tree_at(lambda s: s.kept, state, np.float64(0.2))
    assert learner.model(refused) is refused.gp


@sweep
def test_histories_tell_the_searches_and_the_steps(kind):
    X, y, _ = draw(200)
    found = fit(kind(n_neighbours=6), model(dtype=jnp.float32), MemorySource(X, y), key=KEY)
    evaluations = found.history[1:]
    assert [entry["step"] for entry in evaluations] == list(range(1, len(evaluations) + 1))
    assert found.converged and evaluations[-1]["gain"] < conditionals.NEGLIGIBLE
    assert [entry["searches"] for entry in evaluations] == sorted(entry["searches"] for entry in evaluations)
    assert evaluations[0]["searches"] == 1 and evaluations[-1]["searches"] == 2


def test_neighbours_are_searched_again_when_a_step_promises_little():
    """Before the last search a quarter of the neighbourhoods is scored, then all of them."""
    X, y, _ = draw(200)
    learner = LeaveOneOut(n_neighbours=6, n_scored=1)
    state, problem = begun(learner, model(), MemorySource(X, y))
    state, _ = learner.advance(state, problem, 0, 1, SEED)
    some = curvature(state.gp, problem.source, state.near[:50], True)
    pull = theta_of(state.gp) - problem.prepared.start
    np.testing.assert_allclose(state.at.loss, some.loss + 0.5 * pull @ pull / 200, rtol=1e-5)
    promised = state.at._replace(gradient=np.full(3, 1e-6))
    state = dataclasses.replace(state, at=promised)
    state, _ = learner.advance(state, problem, 1, 1, SEED)
    assert state.n_searches == 2
    whole = curvature(state.gp, problem.source, state.near, True)
    pull = theta_of(state.gp) - problem.prepared.start
    np.testing.assert_allclose(state.at.loss, whole.loss + 0.5 * pull @ pull / 200, rtol=1e-5)


def test_brief_scoring_comes_nearer_to_the_optimum():
    """Two accepted steps, with the curvature of the neighbourhoods after them."""
    X, y, _ = draw(200)
    learner, source = LeaveOneOut(n_neighbours=12, spread=None), MemorySource(X, y, dtype=jnp.float64)
    scored, hessian = learner.scored_briefly(model(), source, SEED)
    every = np.arange(200)
    before, after = (left_out(gp, source.on_host(every)).loss.mean() for gp in (model(), scored))
    assert after < before - 0.01
    assert hessian.shape == (len(theta_of(scored)),) * 2 and np.linalg.eigvalsh(hessian).min() > 0


def test_learning_ends_after_steps_without_progress(monkeypatch):
    """Two steps that do not lower the loss lead to another search, three after the last search to the end."""
    X, y, _ = draw(60)
    first, calls = conditionals.densities.curvature, []

    def same(*args):
        if not calls:
            calls.append(first(*args))
        return calls[0]

    monkeypatch.setattr(conditionals.densities, "curvature", same)
    found = fit(LeaveOneOut(n_neighbours=12), model(), MemorySource(X, y, dtype=jnp.float64), key=KEY)
    assert found.converged and [entry["stalled"] for entry in found.history[1:]] == [1, 2, 1, 2, 3]


# Optima


def repeated(X, y, count):
    which = np.repeat(np.arange(len(y)), count.astype(int))
    return X[which], y[which]


@pytest.mark.parametrize("weighted", [False, True])
def test_vecchia_of_all_earlier_rows_has_the_optimum_of_the_exact_likelihood(weighted):
    """Within what `converged` leaves: 0.01 P/(2n) nats per datum."""
    X, y, _ = draw(40)
    count = np.random.default_rng(1).integers(1, 4, 40).astype(float) if weighted else np.ones(40)
    source = MemorySource(X, y, count, dtype=jnp.float64)
    found = fit(Vecchia(n_neighbours=39, spread=None), model(), source, key=KEY)
    best = fit(FullBatch(), model(), source, key=KEY)
    rows = source.take(np.arange(40))
    excess = float(nlml(found.gp, rows)) - float(nlml(best.gp, rows))
    assert found.converged
    assert -1e-9 < found.loss - float(nlml(found.gp, rows)) < 1e-3  # the last step is not evaluated
    assert excess < 2 * conditionals.NEGLIGIBLE


def test_a_prior_counts_as_one_of_as_many_data_as_unequal_weights_are_worth():
    """n = (Σρ)²/Σρ² of leave-one-out, whatever all weights are multiplied by: 30 equal ones are 30 data, a single one of 10⁶ among them is one."""
    X, y, _ = draw(30)
    pulls = []
    for weight in (np.ones(30), np.full(30, 10.0), np.append(np.ones(29), 1e6)):
        state, problem = searched(LeaveOneOut(), model(), MemorySource(X, y, weight, dtype=jnp.float64))
        gp = conditionals._moved(state.gp, theta_of(state.gp) + 1)
        with_prior = LeaveOneOut()._curvature(gp, problem, state.near)
        alone = curvature(gp, problem.source, state.near, True, n_scored=problem.prepared.n_scored)
        pulls.append(with_prior.gradient - alone.gradient)
    np.testing.assert_allclose(pulls, np.outer([1 / 30, 1 / 30, 1], np.ones(3)), rtol=1e-4)


def test_counts_of_vecchia_are_repeated_rows():
    """With the prior: loss, gradient and optimum, within what `converged` leaves."""
    X, y, _ = draw(18)
    count = np.random.default_rng(1).integers(1, 4, 18).astype(float)
    n = int(count.sum())
    counted = MemorySource(X, y, count, dtype=jnp.float64)
    rows = MemorySource(*repeated(X, y, count), dtype=jnp.float64)
    learner = Vecchia(n_neighbours=n, searches=1, epochs=100)
    found = [fit(learner, model(), source, key=KEY) for source in (counted, rows)]
    assert found[0].converged and found[1].converged
    np.testing.assert_allclose(found[0].loss, found[1].loss, atol=0.01 * 3 / n)
    at = []
    for source in (counted, rows):
        learner = Vecchia(n_neighbours=n)
        state, problem = searched(learner, model(), source)
        at.append(learner._curvature(model(0.9), problem, state.near))
    np.testing.assert_allclose(at[0].loss, at[1].loss, rtol=1e-10)
    np.testing.assert_allclose(at[0].gradient, at[1].gradient, rtol=1e-8, atol=1e-12)


@sweep
def test_known_parameters_come_back(kind):
    """Within 4 standard errors, H⁻¹ Cov(∇L) H⁻¹ with the covariance over 80 draws of the targets at the true θ."""
    N, m, truth = 500, 10, model(0.7, 2.0, 0.1, kernel=Matern32)
    X = np.random.default_rng(5).uniform(0, 60, size=(N, 1))
    R = np.linalg.cholesky(covariance(truth, X))
    learner = kind(n_neighbours=m, spread=None)
    targets = np.random.default_rng(6).normal(size=(81, N)) @ R.T
    sources = [MemorySource(X, y, dtype=jnp.float64) for y in targets]
    state, _ = searched(learner, truth, sources[0])
    at = [curvature(truth, source, state.near, False, learner.joint) for source in sources[1:]]
    gradients, H = np.array([a.gradient for a in at]), np.mean([a.hessian for a in at], axis=0)
    Hinv = np.linalg.inv(H)
    error = np.sqrt(np.diag(Hinv @ np.cov(gradients.T) @ Hinv))
    found = fit(learner, model(1.5, 1.0, 0.5, kernel=Matern32), sources[0], key=KEY)
    assert found.converged
    assert np.all(np.abs(theta_of(found.gp) - theta_of(truth)) < N_SE * error)
    assert error.max() < 0.6  # the data do say something
    bias = np.abs(gradients.mean(axis=0)) / (gradients.std(axis=0, ddof=1) / np.sqrt(80))
    assert bias.max() < N_SE  # the estimating equation is unbiased


def test_the_inverse_curvature_is_the_error_of_vecchia_with_all_rows():
    """Cov(∇L) = H/N for the exact likelihood: the sample covariance over 200 draws, by its trace H⁻¹ Cov, within 4 of its errors."""
    N, truth = 24, model(0.7, 2.0, 0.1)
    X, _, R = draw(N)
    learner = Vecchia(n_neighbours=N - 1, spread=None)
    targets = np.random.default_rng(6).normal(size=(200, N)) @ R.T
    state, _ = searched(learner, truth, MemorySource(X, targets[0], dtype=jnp.float64))
    at = [curvature(truth, MemorySource(X, y, dtype=jnp.float64), state.near, False, True) for y in targets]
    H = np.mean([a.hessian for a in at], axis=0)
    squares = np.array([N * a.gradient @ np.linalg.solve(H, a.gradient) for a in at])
    assert abs(squares.mean() - 3) < N_SE * squares.std(ddof=1) / np.sqrt(200)


def test_rows_that_float32_can_hardly_tell_apart_do_no_harm():
    """Distances near the rounding error, at the kink of Matérn 1/2: k is right there too, to the root of 4 roundings of its argument.

    Of these rows one pair was once given exp(−1) of the variance.
    """
    X = np.sort(np.random.default_rng(6).normal(size=(1024, 1)), axis=0).astype(np.float32)
    X = X - X.mean()
    gp, source = KernelGP(Matern12([0.27], 3.7), 0.0476), MemorySource(X, np.sin(X[:, 0]))
    others = Neighbours(X, gp.kernel).others(np.arange(1024), 15)
    near = np.concatenate([others, np.arange(1024)[:, None]], axis=1)
    single, double = (curvature(gp, source, near, wide) for wide in (False, True))
    assert abs(single.loss - double.loss) < np.sqrt(4 * np.finfo(np.float32).eps)


# Neighbours and groups


def test_who_the_neighbours_are():
    X, y, _ = draw(100)
    group = np.random.default_rng(2).integers(0, 20, 100)
    source = MemorySource(X, y, group=group, dtype=jnp.float64)
    state, problem = searched(LeaveOneOut(n_neighbours=7, n_scored=3), model(), source)
    assert (group[state.near[:, :-1]] != group[state.near[:, -1:]]).all()
    assert problem.prepared.n_scored == 1
    state, problem = searched(
        LeaveOneOut(n_neighbours=7, n_centres=60, n_scored=3), model(), MemorySource(X, y, dtype=jnp.float64)
    )
    assert problem.prepared.n_scored == 3
    away = np.abs(X[state.near, 0] - X[state.near[:, -1:], 0])
    assert len(state.near) == 20
    assert (np.diff(away, axis=1) <= 0).all()  # the nearest last
    assert (np.sum(np.abs(X[None, :, 0] - X[state.near[:, -1], 0][:, None]) < away[:, :1], axis=1) == 9).all()
    state, problem = searched(Vecchia(n_neighbours=7, n_centres=60), model(), source)
    place = np.argsort(problem.prepared.order)
    near, centre = state.near[:, :-1], state.near[:, -1]
    assert len(set(centre.tolist())) == 60
    np.testing.assert_array_equal((near >= 0).sum(axis=1), np.minimum(place[centre], 7))
    assert (np.where(near >= 0, place[near], -1) < place[centre][:, None]).all()


def test_groups_keep_repeated_measurements_from_passing_for_small_noise():
    """Pairs at the same place whose errors are shared: left out one by one their noise is that within the pair, together that of the pair."""
    generator = np.random.default_rng(0)
    n, within, shared = 150, 1e-4, 0.09
    X = np.sort(generator.uniform(0, 10, n))[:, None]
    pairs = np.sin(X[:, 0]) + np.sqrt(shared) * generator.normal(size=n)
    y = np.repeat(pairs, 2) + np.sqrt(within) * generator.normal(size=2 * n)
    X, group = np.repeat(X, 2, axis=0), np.repeat(np.arange(n), 2)
    learner, noise = LeaveOneOut(n_neighbours=12, n_scored=1), {}
    for name, given in (("rows", None), ("pairs", group)):
        source = MemorySource(X, y, group=given, dtype=jnp.float64)
        noise[name] = float(fit(learner, model(), source, key=KEY).gp.noise_variance)
    assert noise["rows"] < 10 * within
    error = shared * np.sqrt(2 / n)
    # Two rows of a neighbouring pair count as two errors and are one, so the learned variance is up to twice that of a pair.
    assert shared - N_SE * error < noise["pairs"] < 2 * (shared + N_SE * error)


def test_a_checkpoint_of_other_groups_is_refused(tmp_path):
    X, y, _ = draw(30)
    learner = LeaveOneOut(epochs=4, n_neighbours=3)
    sources = [MemorySource(X, y, group=np.arange(30) // k, dtype=jnp.float64) for k in (1, 2)]
    fit(learner, model(), sources[0], key=KEY, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="another run"):
        fit(learner, model(), sources[1], key=KEY, checkpoint=tmp_path / "run")


# Refusals and bytes


@sweep
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("n_neighbours", 0),
        ("n_neighbours", 2.5),
        ("n_neighbours", True),
        ("n_centres", 0),
        ("spread", 0.0),
        ("spread", float("inf")),
        ("epochs", 0),
        ("searches", 0),
    ],
)
def test_impossible_settings_are_refused_by_name(kind, setting, value):
    # Or the type checker, where it runs.
    with pytest.raises(
        (ValueError, TypeError), match=f"{setting} is {value}|parameters of stochgp.*{kind.__name__}"
    ):
        kind(**{setting: value})


@sweep
@pytest.mark.parametrize("terms", some_of([1, 2], [2]))
def test_memory_stays_below_what_is_announced(kind, terms):
    """After two scoring steps of 100,000 rows."""
    X = np.random.default_rng(0).normal(size=(100_000, 4)).astype(np.float32)
    kernel = RBF(np.ones(4)) if terms == 1 else RBF(np.ones(4)) + Matern32(3 * np.ones(4))
    gp, learner, source = KernelGP(kernel), kind(n_neighbours=20, n_centres=512), MemorySource(X, X[:, 0])
    before = resident()
    state, problem = searched(learner, gp, source)
    for _ in range(2):
        state, _ = learner.score(state, problem)
    assert resident() - before <= learner.peak_bytes(gp, 100_000, 4) + COMPILER_BYTES


@sweep
def test_bytes_grow_with_rows_terms_and_neighbours(kind):
    one, two = KernelGP(RBF()), KernelGP(RBF() + RBF(3.0))
    need = kind().peak_bytes(one, 10**6, 10)
    assert kind().peak_bytes(one, 2 * 10**6, 10) > need + 8 * 10 * 10**6
    assert kind().peak_bytes(two, 10**6, 10) > need + 8 * 10 * 10**6
    assert kind(n_neighbours=96).peak_bytes(one, 10**6, 10) > need
