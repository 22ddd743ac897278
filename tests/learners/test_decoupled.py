"""SVDGP and iVSGPR: steps against plain loops, SGPR's optimum, SVI's steps, growth without compiling, linear cost."""

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from sweeps import some_of
from toy import KEY

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.kernels import RBF, Linear
from stochgp.learners import IVSGPR, SVDGP, InverseRoot, Problem
from stochgp.learners.decoupled import linear_part, mirror_step, with_parts
from stochgp.learners.evaluators import StepPlan
from stochgp.learning import fit
from stochgp.models import SparseGP
from stochgp.objectives.elbo import elbo, sites
from stochgp.parameters import frozen, partition, positive
from stochgp.variational import Decoupled, functions, functions_at

pytestmark = pytest.mark.usefixtures("double")

N, D, ELL, V, NOISE = 12, 2, np.array([0.8, 1.4]), 1.7, 0.3
_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, size=(N, D))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * _generator.normal(size=N)
COUNT = _generator.integers(1, 4, N).astype(np.float64)


def gram(A, B):
    return V * np.exp(-0.5 * np.sum(((A[:, None] - B[None]) / ELL) ** 2, axis=2))


def empty(n_mean, n_covariance, spread=False, dtype=jnp.float64):
    kernel = RBF(jnp.asarray(ELL, dtype), jnp.asarray(V, dtype))
    q = Decoupled.of(n_mean, n_covariance, D, spread=spread, dtype=dtype)
    return SparseGP(kernel, q, positive(NOISE, dtype=dtype))


def rows(S):
    return Data(*(jnp.asarray(part[np.asarray(S)]) for part in (X, y, COUNT)))


def begun(learner, gp):
    problem = Problem(MemorySource(X, y, COUNT, dtype=jnp.float64), StepPlan(4, 3, 30, 10), None, None)
    return learner.init(gp, problem, key=KEY)


def stepper(learner):
    """Its compiled step, which is traced once, however many functions are used."""
    traced = []

    @eqx.filter_jit
    def step(state, batch):
        traced.append(1)
        return learner.step(state, batch, key=KEY)[0]

    def take(state, S):
        state = step(state, rows(S))
        assert len(traced) == 1
        return state

    return take


def used(state):
    return int(state.gp.approximation.mean_functions.used)


def _flat(gp):
    trainable, rest = partition(gp)
    vector, back = jax.flatten_util.ravel_pytree(trainable)
    return np.asarray(vector), lambda v: eqx.combine(back(jnp.asarray(v)), rest)


@pytest.mark.parametrize(
    ("n_covariance", "spread"), [(2, True), pytest.param(None, False, marks=pytest.mark.long)]
)
@pytest.mark.long
def test_steps_of_svdgp_ascend_the_bound_of_the_batch(n_covariance, spread):
    """Three steps of plain ascent with all columns, against finite differences of the bound: every parameter moves along its derivative."""
    learner = SVDGP(4, learning_rate=InverseRoot(1e-3), growth=2, n_columns=3, optimizer=optax.sgd)
    state, step = begun(learner, empty(3, n_covariance, spread)), stepper(learner)
    state = step(state, [0, 1, 2, 3])
    assert used(state) == 2
    state = step(state, [3, 4, 5, 6])
    assert used(state) == 3  # functions of the mean: full
    _, back = _flat(state.gp)
    value = jax.jit(lambda v: elbo(back(v), rows([7, 8, 9, 10]), 12.0) / COUNT.sum())
    for t in range(2, 5):
        at, _ = _flat(state.gp)
        slope = [
            (value(jnp.asarray(at + e)) - value(jnp.asarray(at - e))) / 2e-6 for e in 1e-6 * np.eye(len(at))
        ]
        state = step(state, [7, 8, 9, 10])
        assert_allclose(_flat(state.gp)[0] - at, 1e-3 / (1 + 0.1 * np.sqrt(t)) * np.array(slope), atol=1e-11)


def test_the_rate_falls_with_the_root_of_the_step_as_in_the_paper():
    learner, ruled = SVDGP(learning_rate=0.01), SVDGP(learning_rate=InverseRoot(0.01))
    for step in (0.0, 1.0, 100.0, 1999.0):
        sizes = [
            one.step_size(eqx.tree_at(lambda d: d.step, begun(one, empty(3, 2)).descent, jnp.float32(step)))
            for one in (learner, ruled)
        ]
        assert_allclose(sizes, 0.01 / (1 + 0.1 * np.sqrt(step)), rtol=1e-6)


def test_a_new_row_has_no_weight_in_the_mean_and_counts_once_in_the_covariance():
    """B = Λ, its ρ/σ², at the rows: their exact posterior covariance (algorithms 2.5). The rate is 0 in effect."""
    learner = SVDGP(4, learning_rate=1e-30, growth=4)
    state = stepper(learner)(begun(learner, empty(6, 4)), [0, 1, 2, 3])
    mean, variance = moments(state.gp, jnp.asarray(X))
    A, across = gram(X[:4], X[:4]) + np.diag(NOISE / COUNT[:4]), gram(X, X[:4])
    assert_allclose(mean, 0, atol=1e-12)
    assert_allclose(variance[:, 0], V - np.sum(across * np.linalg.solve(A, across.T).T, axis=1), rtol=1e-9)


def coupled(S=range(5)):
    """Functions at some rows, q the prior."""
    q = Decoupled(functions_at(X[list(S)]), jnp.zeros(len(S)), None, jnp.zeros((len(S), len(S))))
    return eqx.tree_at(lambda g: g.approximation, empty(1, None), q)


def mirrored(gp, S, gamma):
    return _mirrored(gp, rows(S), jnp.asarray(N / len(S)), jnp.asarray(gamma))


@eqx.filter_jit
def _mirrored(gp, batch, share, gamma):
    seen = sites(gp, batch, *gp.process().moments(batch.X))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(functions, "JITTER", 1e-12)
        moved = mirror_step(gp, batch.X, seen, share, gamma)
    return eqx.tree_at(lambda g: g.approximation, gp, moved)


@eqx.filter_jit
def values(gp, Z):
    """Mean and covariance of f(Z)."""
    process, Z = gp.process(), jnp.asarray(Z)
    K, W, _ = process.covariance_parts(Z)
    return process.mean(Z)[:, 0], K - W.T @ W


moments = eqx.filter_jit(lambda gp, X: gp.process().moments(X))


def test_mirror_steps_are_the_natural_gradient_steps_of_svi():
    """S⁻¹ ← (1−γ)S⁻¹ + γ(K⁻¹ + cPΛPᵀ), S⁻¹m ← (1−γ)S⁻¹m + γcPΛy (algorithms 2.4), a plain loop of ten steps."""
    gp, K = coupled(), gram(X[:5], X[:5])
    precision, linear = np.linalg.inv(K), np.zeros(5)
    for t in range(10):
        S = np.random.default_rng(t).choice(N, 4, replace=False)
        gamma = 1 / (2 + t)
        gp = mirrored(gp, S, gamma)
        P, weight = np.linalg.solve(K, gram(X[:5], X[S])), N / 4 * COUNT[S] / NOISE
        precision = (1 - gamma) * precision + gamma * (np.linalg.inv(K) + P * weight @ P.T)
        linear = (1 - gamma) * linear + gamma * P @ (weight * y[S])
        m, covariance = values(gp, X[:5])
        assert_allclose(m, np.linalg.solve(precision, linear), rtol=1e-6, atol=1e-8)
        assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("moved", [[1.0, 2.0], [-0.5, 3.0]])
def test_functions_that_move_within_their_span_leave_q_as_it_is(moved, monkeypatch):
    """Two functions of a linear kernel on two inputs span all of them, wherever they are. So do rows twice as far, with a of half the size."""
    generator = np.random.default_rng(3)
    q = Decoupled(
        functions_at(X[:2]), jnp.asarray([0.4, -1.1]), None, jnp.asarray(generator.normal(size=(2, 2)))
    )
    gp = SparseGP(Linear(jnp.asarray(V)), q, positive(NOISE, dtype=jnp.float64))
    other = eqx.tree_at(
        lambda g: g.approximation.mean_functions.points, gp, jnp.asarray([moved, [2.0, -1.0]])
    )
    monkeypatch.setattr(functions, "JITTER", 1e-14)
    carried = jax.jit(lambda: with_parts(other, q, linear_part(gp)))()
    for mine, before in zip(moments(carried, jnp.asarray(X)), moments(gp, jnp.asarray(X)), strict=True):
        assert_allclose(mine, before, rtol=1e-8, atol=1e-10)


@pytest.mark.long
def test_functions_that_nearly_coincide_may_move():
    """iVSGPR on a smooth function: 20 of them within a few lengthscales, whose a are huge and alternate. Every step ends near the rows."""
    generator = np.random.default_rng(0)
    Z = np.sort(generator.uniform(-1.7, 1.7, (200, 1)), axis=0)
    t = np.sin(3 * Z[:, 0]) + 0.1 * generator.normal(size=200)
    gp = SparseGP(RBF(jnp.asarray([1.0])), Decoupled.of(20, None, 1), 0.1)
    learner = IVSGPR(100, epochs=50, learning_rate=0.1)
    found = fit(learner, gp, MemorySource(Z, t), key=KEY)
    mean = np.asarray(moments(found.gp, jnp.asarray(Z, jnp.float32))[0])[:, 0]
    assert np.sqrt(np.mean((mean - np.sin(3 * Z[:, 0])) ** 2)) < 0.1
    assert all(entry["recovered"] == 0 for entry in found.history if "recovered" in entry)


def test_a_mirror_step_of_svdgp_finds_the_covariance_of_sgpr_and_leaves_the_mean(monkeypatch):
    """Weight 1 on all rows, functions that do not move (a rate of 0 in effect): S̃ = K A⁻¹ K, A = K + k Λ kᵀ."""
    gp = empty(3, 5)
    beta = functions_at(X[:5])
    gp = eqx.tree_at(lambda g: g.approximation.covariance_functions, gp, beta)
    monkeypatch.setattr(functions, "JITTER", 1e-12)
    learner = SVDGP(N, learning_rate=1e-30, growth=1, mirror_rate=1.0)
    step = stepper(learner)
    state = step(begun(learner, gp), np.arange(N))
    assert [used(state), used(step(state, np.arange(N)))] == [1, 2]
    K, across, weight = gram(X[:5], X[:5]), gram(X[:5], X), COUNT / NOISE
    S = K @ np.linalg.solve(K + across * weight @ across.T, K)
    mean, variance = moments(state.gp, jnp.asarray(X[:5]))
    assert_allclose(variance[:, 0], np.diag(S), rtol=1e-6)
    assert_allclose(mean, 0, atol=1e-12)


@pytest.mark.long
def test_ivsgpr_with_frozen_parameters_ends_near_sgprs_bound():
    """Only q and the functions move; the bound of all rows rises to at least that of SGPR's optimum at the starting functions, up to noise."""
    gp = empty(5, None)
    gp = SparseGP(frozen(gp.kernel), gp.approximation, frozen(NOISE))
    learner = IVSGPR(6, learning_rate=1e-3, growth=3)
    state, step = begun(learner, gp), stepper(learner)
    order = np.random.default_rng(1)
    for t in range(100):
        state = step(state, order.choice(N, 6, replace=False))
        assert used(state) == min(3 * (t + 1), 5)
    start = coupled(
        np.asarray([np.argmin(np.sum((X - z) ** 2, 1)) for z in state.gp.approximation.beta.points])
    )
    best = mirrored(start, np.arange(N), 1.0)
    bound = eqx.filter_jit(lambda gp: elbo(gp, rows(range(N)), N))
    assert float(bound(state.gp)) > float(bound(best)) - 0.5


def step_of(n_mean, batch_size, spread, kind):
    learner = SVDGP(batch_size, learning_rate=0.01, growth=8)
    state = begun(learner, empty(n_mean, 8, spread, jnp.float32))
    repeated = lambda part: jnp.asarray(np.resize(part, (batch_size, *part.shape[1:])), jnp.float32)
    dynamic, static = eqx.partition(state, eqx.is_array)
    step = lambda d, b, k: eqx.filter(learner.step(eqx.combine(d, static), b, key=k)[0], eqx.is_array)
    return kind(step)(dynamic, jax.tree.map(repeated, rows(range(N))), KEY)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.long
def test_the_cost_of_a_step_is_linear_in_the_functions_of_the_mean(spread, monkeypatch, traced_afresh):
    """By XLA's count of operations, which takes a loop for one round: each doubling of M_α adds twice as much as the last, to 2 %."""
    monkeypatch.setattr("stochgp.variational.functions.TILE", 1024)  # no loop
    lowered = lambda step: jax.jit(step).lower
    counts = [step_of(n, 32, spread, lowered).cost_analysis()["flops"] for n in (256, 512, 1024)]
    assert_allclose((counts[2] - counts[1]) / (counts[1] - counts[0]), 2, rtol=0.02)


@pytest.mark.parametrize("spread", some_of([False, True], [False]))
def test_a_step_keeps_no_number_for_each_row_and_function(spread):
    """No array of the traced step, inner programs included, has a quarter of so many."""
    assert 512 * 1024 <= max(sizes(step_of(8192, 512, spread, jax.make_jaxpr).jaxpr)) < 512 * 8192 / 4


def sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                    yield from sizes(inner)


def test_impossible_settings_are_refused():
    for settings, text in (
        ({"growth": 0}, "growth is 0"), ({"batch_size": 0}, "batch_size is 0"),
    ):  # fmt: skip
        for kind in (SVDGP, IVSGPR):
            with pytest.raises(ValueError, match=text):
                kind(**settings)
    with pytest.raises(ValueError, match="n_columns is 0"):
        SVDGP(n_columns=0)
    for kind in (SVDGP, IVSGPR):
        with pytest.raises(ValueError, match="mirror_rate is 2"):
            kind(mirror_rate=2.0)
    with pytest.raises(ValueError, match="same basis functions"):
        begun(IVSGPR(4, learning_rate=0.01), empty(3, 2))
