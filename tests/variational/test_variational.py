"""q(f) of inducing points, its bound and its natural gradient, against dense algebra."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from sweeps import some_of
from toy import KEY, all_batches

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.kernels import RBF, Matern32
from stochgp.learners import SVGP, Problem, constant
from stochgp.learners.evaluators import StepPlan
from stochgp.learning import fit
from stochgp.likelihoods import Softmax
from stochgp.models import SparseGP
from stochgp.objectives.elbo import bound_of_all, sites
from stochgp.objectives.elbo import elbo as bound_of_rows
from stochgp.parameters import cast
from stochgp.posteriors import VariationalPosterior
from stochgp.variational import InducingPoints, Naturals, optimum

N, D, M, NOISE = 6, 2, 3, 0.3
_generator = np.random.default_rng(0)
X, Z, NEW = (_generator.normal(size=(n, D)) for n in (N, M, 4))
y = np.sin(2 * X[:, 0]) + 0.2 * _generator.normal(size=N)
ONES = np.ones(N)
JITTER = 1e-13

pytestmark = pytest.mark.usefixtures("double")


elbo = eqx.filter_jit(bound_of_rows)  # one program is compiled sooner than one for each operation
moments = eqx.filter_jit(lambda gp, Z: gp.process().moments(Z))


def kernel():
    return Matern32(jnp.asarray([0.7, 1.5]), jnp.asarray(1.3))


def model(points=Z, jitter=JITTER):
    return SparseGP(kernel(), InducingPoints.of(jnp.asarray(points), jitter=jitter), jnp.asarray(NOISE))


def drawn(gp, seed=1):
    """The model with some q(v)."""
    q, generator = gp.approximation, np.random.default_rng(seed)
    mean = jnp.asarray(generator.normal(size=q.mean.shape))
    root = jnp.asarray(np.tril(generator.normal(size=(1, q.n_inducing, q.n_inducing))))
    q = InducingPoints(q.points, mean, root, q.jitter)
    return eqx.tree_at(lambda g: g.approximation, gp, q)


def rows(S=None, count=ONES):
    S = np.arange(N) if S is None else S
    return Data(jnp.asarray(X[S]), jnp.asarray(y[S]), jnp.asarray(count[S]))


_matrix = eqx.filter_jit(lambda a, b: kernel().matrix(a, b))


def k(a, b):
    return np.asarray(_matrix(jnp.asarray(a), jnp.asarray(b)))


def optimal(gp, batch=None):
    """The model with the q(v) that a natural-gradient step of size 1 over all rows leads to."""
    return _optimal(gp, rows() if batch is None else batch)


@eqx.filter_jit
def _optimal(gp, batch):
    process = gp.process()
    best = optimum(process.whitened(batch.X), *sites(gp, batch, *process.moments(batch.X)))
    return eqx.tree_at(lambda g: g.approximation, gp, gp.approximation.at(*best.gaussian()))


def log_likelihood(covariance):
    A = covariance + NOISE * np.eye(N)
    return -0.5 * (y @ np.linalg.solve(A, y) + np.linalg.slogdet(2 * np.pi * A)[1])


def dense_q(gp):
    """(mean, covariance) of u under q, and k(Z, Z)."""
    q, Kzz = gp.approximation, k(Z, Z)
    L = np.linalg.cholesky(Kzz + JITTER * 1.3 * np.eye(M))
    R = np.asarray(q.root[0])
    return L @ np.asarray(q.mean[0]), L @ R @ R.T @ L.T, Kzz


def test_moments_are_those_of_the_joint_gaussian():
    gp = drawn(model())
    m, S, Kzz = dense_q(gp)
    P = np.linalg.solve(Kzz, k(Z, NEW))
    mean, variance = moments(gp, jnp.asarray(NEW))
    covariance = k(NEW, NEW) - P.T @ (Kzz - S) @ P
    assert_allclose(mean[:, 0], P.T @ m, rtol=1e-9)
    assert_allclose(variance[:, 0], np.diag(covariance), rtol=1e-9)
    assert_allclose(VariationalPosterior.of(gp, D).covariance(NEW), covariance, rtol=1e-9, atol=1e-12)


def test_the_divergence_is_that_of_the_two_gaussians():
    gp = drawn(model())
    m, S, Kzz = dense_q(gp)
    exact = np.trace(np.linalg.solve(Kzz, S)) + m @ np.linalg.solve(Kzz, m) - M
    exact = 0.5 * (exact + np.linalg.slogdet(Kzz)[1] - np.linalg.slogdet(S)[1])
    divergence = eqx.filter_jit(lambda gp: gp.process().divergence())
    assert_allclose(divergence(gp), exact, rtol=1e-9)
    assert_allclose(divergence(model()), 0.0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_below_the_log_likelihood_for_any_q(seed):
    assert elbo(drawn(model(), seed), rows(), N) < log_likelihood(k(X, X))


def test_points_at_the_rows_give_the_exact_posterior():
    gp = optimal(model(X))
    assert_allclose(elbo(gp, rows(), N), log_likelihood(k(X, X)), rtol=1e-8)
    A, across = k(X, X) + NOISE * np.eye(N), k(NEW, X)
    posterior = VariationalPosterior.of(gp, D)
    assert_allclose(posterior.mean(np.resize(NEW, (256, D)))[:4], across @ np.linalg.solve(A, y), rtol=1e-7)
    assert_allclose(
        posterior.covariance(NEW), k(NEW, NEW) - across @ np.linalg.solve(A, across.T), rtol=1e-7, atol=1e-9
    )


def test_one_natural_step_over_all_rows_reaches_the_collapsed_bound():
    """log N(y | 0, Q + σ²I) − tr(K − Q)/(2σ²) (Titsias 2009), by a step of the learner."""
    Q = k(X, Z) @ np.linalg.solve(k(Z, Z), k(Z, X))
    collapsed = log_likelihood(Q) - np.trace(k(X, X) - Q) / (2 * NOISE)
    gp = drawn(model())
    assert_allclose(elbo(optimal(gp), rows(), N), collapsed, rtol=1e-9)
    learner = SVGP(batch_size=N, natural_rate=1.0, learning_rate=1e-30)
    state, _ = eqx.filter_jit(learner.step)(_begun(learner, gp), rows(), key=KEY)
    assert_allclose(elbo(state.gp, rows(), N), collapsed, rtol=1e-7)


def _begun(learner, gp, count=ONES):
    source = MemorySource(X, y, count, dtype=jnp.float64)
    return learner.init(gp, Problem(source, StepPlan(N, 1, 10, 10), None), key=KEY)


def test_a_row_left_out_in_closed_form_is_a_row_that_was_never_there():
    count = np.array([1, 3, 0.5, 1, 2, 1])

    @eqx.filter_jit
    def best(gp, rows, *parts):
        found = optimum(gp.process().whitened(rows), *parts)
        return eqx.tree_at(lambda g: g.approximation, gp, gp.approximation.at(*found.gaussian()))

    def optimal(kept):
        beta = count[kept] / NOISE
        parts = (jnp.asarray(part)[:, None] for part in (beta, beta * y[kept]))
        return VariationalPosterior.of(best(model(), jnp.asarray(X[kept]), *parts), D)

    z = optimal(np.arange(N)).errors_of_left_out(np.arange(N), Data(X, y, count), NOISE)
    for i in range(N):
        mean, variance = optimal(np.delete(np.arange(N), i)).mean_and_variance(X[i : i + 1])
        assert_allclose(z[i], (y[i] - mean[0]) / np.sqrt(variance[0] + NOISE), rtol=1e-9)


def test_bounds_of_batches_are_unbiased():
    gp = drawn(model())
    count = _generator.uniform(0.5, 2, N)
    found = [elbo(gp, rows(S, count), N) for S in all_batches(N, 2)]
    assert_allclose(np.mean(found), elbo(gp, rows(count=count), N), rtol=1e-12)


def test_steps_are_unbiased():
    """Plain descent: the mean over all batches of the parameters after a step is the step of all rows."""
    learner = SVGP(2, learning_rate=0.1, natural_rate=0.3, optimizer=optax.sgd, decay=constant)
    gp = optimal(drawn(model()), rows([0, 1, 2]))
    begun = _begun(learner, gp)
    take = lambda S: eqx.filter_jit(learner.step)(begun, rows(S), key=KEY)[0]
    parts = [_moved(take(S)) for S in all_batches(N, 2)]
    for mean, all_rows in zip(
        jax.tree.map(lambda *a: np.mean(a, axis=0), *parts), _moved(take(np.arange(N))), strict=True
    ):
        assert_allclose(mean, all_rows, rtol=1e-9, atol=1e-11)


def test_steps_of_classes_are_by_fresh_draws_of_the_bound():
    """The mean loss of steps with 64 keys is the bound of all rows; natural gradients see the same draws."""
    labels = np.arange(N) % 3.0
    gp = SparseGP(kernel(), InducingPoints.of(jnp.asarray(Z), n_latent=3, jitter=JITTER), Softmax(3))
    root = jnp.asarray(np.tile(1.5 * np.eye(M), (3, 1, 1)))
    q = InducingPoints(gp.approximation.points, jnp.asarray(_generator.normal(size=(3, M))), root, JITTER)
    gp = eqx.tree_at(lambda g: g.approximation, gp, q)
    learner = SVGP(N, learning_rate=0.1, natural_rate=0.3, optimizer=optax.sgd, decay=constant)
    batch = Data(jnp.asarray(X), jnp.asarray(labels), jnp.asarray(ONES))
    begun, take = _begun(learner, gp), eqx.filter_jit(learner.step)
    steps = [take(begun, batch, key=key) for key in jax.random.split(KEY, 64)]
    losses = np.array([float(info["loss"]) for _, info in steps])
    found = bound_of_all(begun.gp, MemorySource(X, labels, dtype=jnp.float64))
    assert losses.std() > 0
    assert abs(-losses.mean() - found) < 4 * losses.std(ddof=1) / 8 + 1e-3
    assert np.ptp([float(state.naturals.precision[0, 0, 0]) for state, _ in steps]) > 0


def _moved(state):
    """What is linear in the gradient: unconstrained parameters and natural ones."""
    gp, naturals = state.gp, state.naturals
    kept = [gp.kernel.lengthscale.raw, gp.kernel.variance.raw, gp.noise.level.raw, gp.approximation.points]
    if naturals is None:
        return [*kept, gp.approximation.mean, gp.approximation.root]
    return [*kept, naturals.precision, naturals.linear]


def test_the_bound_of_a_source_is_that_of_its_rows():
    gp = drawn(model())
    assert_allclose(
        bound_of_all(gp, MemorySource(X, y, dtype=jnp.float64)) * N,
        float(elbo(gp, rows(), N)),
        rtol=1e-12,
    )


EDGES = {
    "one row": (np.ones((1, 2)), np.zeros(1)),
    "more points than rows": (X, y),
    "constant columns": (np.c_[X[:, :1], ONES], y),
    "equal rows": (np.tile(X[:1], (5, 1)), np.arange(5.0)),
}


SAFE = list(itertools.product(EDGES, [0.1, 1.0]))


@pytest.mark.parametrize(
    "edge",
    some_of(SAFE, [(name, rate) for name, rate in SAFE if rate == 0.1 or name == "equal rows"]),
    ids=str,
)
def test_float32_is_safe(edge):
    """No jitter but the stated one, no number that is not finite, and no variance that is not above 0."""
    name, natural_rate = edge
    (rows, targets), points = EDGES[name], np.resize(EDGES[name][0], (9, 2)).astype(np.float32)
    gp = cast(SparseGP(RBF([1.0, 1.0]), InducingPoints.of(jnp.asarray(points)), 0.1), np.float32)
    learner = SVGP(8, epochs=32, learning_rate=0.03, natural_rate=natural_rate)
    found = fit(learner, gp, MemorySource(rows, targets), key=KEY)
    assert np.isfinite(found.loss)
    variance = moments(found.gp, jnp.asarray(rows, jnp.float32))[1]
    assert np.all(np.asarray(variance) > 0)
    assert np.all(np.isfinite(VariationalPosterior.of(found.gp, 2).mean(np.zeros((256, 2)))))


def test_the_prior_of_a_kernel_is_a_penalty_about_its_start_and_of_nothing_else():
    """Plain descent of rate 1: a step moves the kernel by −(x − x₀)/(s² Σρ) more than without the prior, and all else alike."""
    far = SVGP(2, learning_rate=1.0, natural_rate=0.3, optimizer=optax.sgd, decay=constant, spread=0.5)
    gp, batch = drawn(model()), rows([0, 1])
    away = jax.tree.map(lambda leaf: leaf + 0.2, gp.kernel)
    begun = eqx.tree_at(lambda state: state.gp.kernel, _begun(far, gp), away)
    free = dataclasses.replace(far, spread=None)
    (state, info), (other, without) = (
        eqx.filter_jit(learner.step)(begun, batch, key=KEY) for learner in (far, free)
    )
    squares = sum(np.sum(0.2**2 * np.ones_like(leaf)) for leaf in jax.tree.leaves(gp.kernel))
    assert_allclose(info["loss"] - without["loss"], squares / (2 * 0.5**2 * N), rtol=1e-9)
    for moved, plain in zip(jax.tree.leaves(state.gp.kernel), jax.tree.leaves(other.gp.kernel), strict=True):
        assert_allclose(moved - plain, -0.2 / (0.5**2 * N) * np.ones_like(moved), rtol=1e-9)
    assert_allclose(state.gp.approximation.points, other.gp.approximation.points, rtol=1e-12)
    assert_allclose(state.gp.noise.level.raw, other.gp.noise.level.raw, rtol=1e-12)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="spread is 0"):
        SVGP(spread=0.0)
    with pytest.raises(ValueError, match="natural_rate is 1.5"):
        SVGP(natural_rate=1.5)
    with pytest.raises(ValueError, match=r"\[M, D\] with M ≥ 1"):
        InducingPoints.of(jnp.zeros((0, 2)))


def test_factorisations_of_several_latent_functions_are_single_ones():
    """A batch of them waits on a thread of the pool that its parts need: two batches at once wait for ever on two threads."""
    M, L = 200, 3
    q = Naturals(jnp.broadcast_to(jnp.eye(M), (L, M, M)), jnp.zeros((L, M)))
    program = jax.make_jaxpr(lambda a, b: Naturals(a, b).gaussian())(q.precision, q.linear)
    sizes = [shape for name, shape in operands(program.jaxpr) if name in ("cholesky", "triangular_solve")]
    assert sizes and all(len(shape) == 2 for shape in sizes)


def operands(jaxpr):
    """(Name, shape of the first operand) of every operation, those of inner programs too."""
    for equation in jaxpr.eqns:
        if equation.invars:
            yield equation.primitive.name, getattr(equation.invars[0].aval, "shape", ())
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from operands(inner)
