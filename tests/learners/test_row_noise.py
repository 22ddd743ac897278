"""Row noise that trains with the features: moments, likelihood and every learner's gradient against dense algebra, by enumeration of batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float
from toy import (
    FLOOR,
    Tanh,
    all_batches,
    anchored,
    assert_close,
    begin,
    make_gp,
    make_toy,
    rows_of,
    stepper,
)

from stochgp.learners import BSGD, SCGD, ByEvidence, Minimax, constant
from stochgp.likelihoods import AbstractNoise
from stochgp.models import FeatureGP
from stochgp.objectives import moments_of_rows, nlml, nlml_of_rows, nlml_of_spectrum, spectrum
from stochgp.parameters import AbstractParameter, partition, positive

pytestmark = pytest.mark.usefixtures("strict_double")

N, B, M = 6, 2, 4
OWN = {"evaluator": ByEvidence(refit=False), "optimizer": optax.sgd, "decay": constant, "batch_size": B}
COUNTS = np.array([1.0, 3.0, 2.0, 1.0, 1.0, 2.0])


class LogLinearNoise(AbstractNoise):
    """s(x) = exp(tanh(xV)·u), V and u trained."""

    level: AbstractParameter
    features: Tanh
    weights: Float[Array, " H"]

    def multiplier(self, X):
        return jnp.exp(self.features(X) @ self.weights)


def model(M=M):
    """Features tanh(xW); noise of three features of its own."""
    gp = make_gp(M=M)
    generator = np.random.default_rng(5)
    psi = Tanh(jnp.asarray(generator.normal(size=(2, 3))))
    level = positive(0.4, lower=FLOOR, dtype=jnp.float64)
    return FeatureGP(
        gp.features, LogLinearNoise(level, psi, jnp.asarray(generator.normal(size=3))), gp.variance
    )


def twice_log_density(gp, rows):
    """−2 log p(y) of rows that stand for `count` rows each with the same target, from n × n matrices of the repeated rows."""
    return _twice_log_density(gp, *repeated(rows))


def repeated(rows):
    times = np.asarray(rows.weight, int)
    return jnp.asarray(np.repeat(rows.X, times, 0)), jnp.asarray(np.repeat(rows.y, times))


@eqx.filter_jit  # one program is compiled sooner than one for each operation
def _twice_log_density(gp, X, y):
    Phi, noise = gp.scaled_features(X), gp.noise.variance(X, jnp.ones(len(y)))
    C = Phi @ Phi.T + jnp.diag(noise)
    return y @ jnp.linalg.solve(C, y) + jnp.linalg.slogdet(C)[1] + len(y) * jnp.log(2 * jnp.pi)


def gradient(gp, rows):
    return _gradient(*partition(gp), *repeated(rows))


@eqx.filter_jit
def _gradient(trainable, rest, X, y):
    return jax.grad(lambda t: _twice_log_density(eqx.combine(t, rest), X, y))(trainable)


def moved(before, after, rate=1.0):
    """What steps of plain descent subtracted from what trains."""
    change = lambda a, b: (np.asarray(a) - np.asarray(b)) / rate
    return jax.tree.map(change, partition(before)[0], partition(after)[0])


def mean(trees):
    return jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *trees)


@eqx.filter_jit
def _likelihoods(gp, rows):
    moments = moments_of_rows(gp, rows)
    return moments, nlml(moments, gp.variance.value, gp.noise_variance.value), nlml_of_rows(gp, rows)


@pytest.mark.parametrize("M", [4, 9])
def test_the_likelihood_is_that_of_repeated_rows(M):
    """B0: a count is no multiplier: ρ rows have ρ log σ²s, one row of noise σ²s/ρ has log(σ²s/ρ)."""
    gp, rows = model(M), rows_of(make_toy(N), weight=COUNTS)
    n, wanted = COUNTS.sum(), twice_log_density(gp, rows)
    moments, of_moments, of_rows = _likelihoods(gp, rows)
    assert_close(2 * n * of_moments, wanted)
    assert_close(2 * n * of_rows, wanted)
    found = nlml_of_spectrum(spectrum(moments), float(gp.variance), float(gp.noise_variance))
    assert_close(2 * n * found[0], wanted)


def test_the_exact_gradient_trains_the_noise():
    gp, rows = model(), rows_of(make_toy(N), weight=COUNTS)
    trainable, rest = partition(gp)
    of = lambda t: 2 * COUNTS.sum() * nlml_of_rows(eqx.combine(t, rest), rows)
    found = jax.jit(jax.grad(of))(trainable)
    assert_close(found, gradient(gp, rows), rtol=1e-9)


@pytest.mark.parametrize("counts", [np.ones(N), COUNTS], ids=["ones", "counts"])
@pytest.mark.parametrize("M", [4, 9])
def test_at_an_anchor_scgd_is_unbiased(M, counts):
    """With Λ = F⁻¹ and w exact the mean over all batches is the gradient of −2 log p, by the features, both variances and the noise."""
    toy, gp = make_toy(N), model(M)
    rows = rows_of(toy, weight=counts)
    learner = SCGD(learning_rate=1.0, **OWN)
    state = anchored(learner, begin(learner, gp, toy), gp, toy, counts)
    state = eqx.tree_at(lambda s: s.count, state, jnp.asarray(counts.sum()))
    step = stepper(learner)
    found = mean([moved(gp, step(state, rows_of(toy, S, weight=counts)).gp) for S in all_batches(N, B)])
    assert_close(found, gradient(gp, rows), rtol=1e-8, atol=1e-8)


def test_trackers_see_the_precisions():
    toy, gp = make_toy(N), model()
    learner = SCGD(learning_rate=1.0, tracking=1.0, anchored=False, **OWN)
    state, step = begin(learner, gp, toy), stepper(learner)
    trackers = [step(state, rows_of(toy, S)).F for S in all_batches(N, B)]
    moments = moments_of_rows(gp, rows_of(toy))
    v, s2 = float(gp.variance), float(gp.noise_variance)
    assert_close(mean(trackers), v * moments.gram + s2 * np.eye(M))


def test_at_its_saddle_minimax_is_unbiased():
    """A = F, B = −‖F‖F⁻¹/μ with μ ≥ μ*, w exact: the mean gradient by θ is that of −2 log p."""
    toy, gp, rate = make_toy(N), model(), 2.0**-20
    learner = Minimax(learning_rate=rate, **OWN)
    state, step = begin(learner, gp, toy, rate=rate, anchor=True), stepper(learner)
    found = []
    for S in all_batches(N, B):
        pair = jax.tree.map(lambda part: jnp.stack([part, part]), rows_of(toy, S))
        found.append(moved(gp, step(state, pair).gp, rate))
    assert_close(mean(found), gradient(gp, rows_of(toy)), rtol=1e-6, atol=1e-6)


def test_bsgd_has_the_gradient_of_its_batch():
    toy, gp, S = make_toy(N), model(), np.array([1, 4])
    learner = BSGD(learning_rate=1.0, **{k: v for k, v in OWN.items() if k != "evaluator"})
    after = stepper(learner)(begin(learner, gp, toy), rows_of(toy, S)).gp
    wanted = jax.tree.map(lambda g: g / (2 * B), gradient(gp, rows_of(toy, S)))
    assert_close(moved(gp, after), wanted, rtol=1e-8)
