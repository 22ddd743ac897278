"""Student-t noise of feature GPs: a bound of log p(y) that every step raises, weights of rows, and the gradient of SCGD with them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import integrate, stats
from toy import Tanh, all_batches, anchored, assert_close, begin, make_gp, make_toy, rows_of, stepper

from stochgp.distributions import ScaleMixture, student_multipliers
from stochgp.learners import SCGD, ByEvidence, constant
from stochgp.likelihoods import HeadNoise
from stochgp.models import FeatureGP
from stochgp.objectives import moments_of_rows, nlml_of_spectrum, refit, spectrum
from stochgp.objectives.feature import belief_of
from stochgp.objectives.held_out import HeldOut, densities_of_spectrum
from stochgp.objectives.student import expected_precisions, robust_moments, weighted_moments
from stochgp.parameters import partition, positive

pytestmark = pytest.mark.usefixtures("strict_double")

N, B, M, DF = 6, 2, 4, 3.5
COUNTS = np.array([1.0, 3.0, 2.0, 1.0, 1.0, 2.0])


def model(M=M):
    """Features tanh(xW); noise that depends on the input by three features of its own."""
    gp = make_gp(M=M)
    generator = np.random.default_rng(5)
    psi = Tanh(jnp.asarray(generator.normal(size=(2, 3))))
    level = positive(0.4, lower=1e-3, dtype=jnp.float64)
    return FeatureGP(gp.features, HeadNoise(level, psi, jnp.asarray(generator.normal(size=3))), gp.variance)


def variances(gp):
    return float(gp.variance), float(gp.noise_variance)


def bound(gp, moments):
    """Of log p(y), from the moments of `student`."""
    return -float(moments.count) * nlml_of_spectrum(spectrum(moments), *variances(gp))[0]


def first_belief(gp, rows):
    return belief_of(spectrum(moments_of_rows(gp, rows)), *variances(gp))


@pytest.mark.parametrize("counts", [np.ones(N), COUNTS], ids=["ones", "counts"])
def test_every_step_raises_the_bound(counts):
    """Weights, then both variances with the weights held (generalised EM), then the weights again, …"""
    gp, rows = model(), rows_of(make_toy(N), weight=counts)
    belief, found = first_belief(gp, rows), []
    for _ in range(12):
        moments = weighted_moments(gp, rows, belief, DF)
        found.append(bound(gp, moments))
        gp = gp.with_variances(*refit(spectrum(moments), *variances(gp), noise_range=(0.05, 10)))
        found.append(bound(gp, moments))
        belief = belief_of(spectrum(moments), *variances(gp))
    assert np.min(np.diff(found)) >= -1e-9
    assert found[-1] > found[0] + 0.1


def test_the_bound_is_below_the_log_evidence():
    """Against the integral over the weight of a single feature."""
    gp, rows = model(M=1), rows_of(make_toy(N))
    Phi, noise = (
        np.asarray(gp.scaled_features(rows.X))[:, 0],
        np.asarray(gp.noise.variance(rows.X, rows.weight)),
    )
    log_t = lambda w: stats.t.logpdf(np.asarray(rows.y), DF, Phi * w, noise**0.5).sum()
    evidence = np.log(integrate.quad(lambda w: np.exp(log_t(w) + stats.norm.logpdf(w)), -8, 8)[0])
    found = bound(gp, robust_moments(gp, lambda: [rows], DF, rounds=100))
    assert evidence - 1.5 < found <= evidence


def test_without_a_function_the_bound_is_the_density():
    """f = 0: the bound is Σ ρ log t(y), as nothing is dependent any more."""
    gp, rows = model(), rows_of(make_toy(N), weight=COUNTS)
    gp = gp.with_variances(1e-14, 0.4)
    noise = np.asarray(gp.noise.variance(rows.X, jnp.ones(N)))
    wanted = COUNTS @ stats.t.logpdf(np.asarray(rows.y), DF, 0, noise**0.5)
    moments = weighted_moments(gp, rows, first_belief(gp, rows), DF)
    np.testing.assert_allclose(bound(gp, moments), wanted, rtol=1e-9)


def test_light_tails_are_those_of_a_gaussian():
    """ν → ∞: weights of 1 and the Gaussian's moments, at the rate 1/ν."""
    gp, rows = model(), rows_of(make_toy(N), weight=COUNTS)
    wanted = moments_of_rows(gp, rows)
    for df in (1e6, 1e9):
        found = weighted_moments(gp, rows, first_belief(gp, rows), df)
        assert_close(found, wanted, rtol=50 / df, atol=50 / df)


def test_a_count_is_so_many_rows():
    gp, rows = model(), rows_of(make_toy(N), weight=COUNTS)
    times = COUNTS.astype(int)
    repeated = type(rows)(*(jnp.repeat(part, times, axis=0) for part in rows))._replace(weight=jnp.ones(10))
    found, wanted = (robust_moments(gp, lambda r=r: [r], DF) for r in (rows, repeated))
    assert_close(found, wanted)


def test_weights_are_those_of_the_expected_squares():
    """λ̄ = (ν + 1)/(ν + E(y − f)²/(σ²s)), from the dense posterior."""
    gp, rows = model(), rows_of(make_toy(N), weight=COUNTS)
    Phi, noise = np.asarray(gp.scaled_features(rows.X)), np.asarray(gp.noise.variance(rows.X, rows.weight))
    K = Phi @ Phi.T
    gain = np.linalg.solve(K + np.diag(noise), K)
    mean, variance = gain.T @ np.asarray(rows.y), np.diag(K - K @ gain)
    squares = (np.asarray(rows.y) - mean) ** 2 + variance
    wanted = (DF + 1) / (DF + squares / (noise * COUNTS))
    assert_close(expected_precisions(gp, rows, first_belief(gp, rows), DF)[0], wanted)


def student(rate):
    judge = ByEvidence(refit=False, df=DF)
    return SCGD(learning_rate=rate, df=DF, judge=judge, optimizer=optax.sgd, decay=constant, batch_size=B)


@pytest.mark.parametrize("counts", [np.ones(N), COUNTS], ids=["ones", "counts"])
@pytest.mark.parametrize("M", [4, 9])
def test_scgd_follows_the_bound_without_bias(M, counts):
    """Where the weights have settled, the mean over all batches is the gradient of −2 bound, by the features, both variances and the head."""
    toy, gp = make_toy(N), model(M)
    rows = rows_of(toy, weight=counts)
    moments = robust_moments(gp, lambda: [rows], DF, rounds=400)
    belief = belief_of(spectrum(moments), *variances(gp))
    trainable, rest = partition(gp)

    def loss(theta):
        """−2 bound with q(f) and q(λ) held: by Danskin's theorem its gradient is that of the bound at its best q."""
        held = eqx.combine(theta, rest)
        lam = jax.lax.stop_gradient(expected_precisions(gp, rows, belief, DF)[0])
        Phi, s = held.scaled_features(rows.X), held.noise.multiplier(rows.X)
        noise = held.noise_variance.value * s / lam
        C = jnp.repeat(Phi, counts.astype(int), 0)
        A = C @ C.T + jnp.diag(jnp.repeat(noise, counts.astype(int)))
        y = jnp.repeat(rows.y, counts.astype(int))
        return y @ jnp.linalg.solve(A, y) + jnp.linalg.slogdet(A)[1]

    wanted = jax.grad(loss)(trainable)
    learner = student(1.0)
    state = anchored(learner, begin(learner, gp, toy), gp, toy, counts)
    d = variances(gp)[0] * spectrum(moments).eigenvalues + variances(gp)[1]
    Q, c = spectrum(moments).basis, variances(gp)[0] ** 0.5 * spectrum(moments).cross
    where = lambda s: (s.weights, s.factor, s.count)
    state = eqx.tree_at(where, state, tuple(map(jnp.asarray, (Q @ (c / d), (Q / d**0.5).T, counts.sum()))))
    step = stepper(learner)
    moved = [step(state, rows_of(toy, S, weight=counts)).gp for S in all_batches(N, B)]
    found = [jax.tree.map(jnp.subtract, partition(gp)[0], partition(after)[0]) for after in moved]
    mean = jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *found)
    assert_close(mean, wanted, rtol=1e-7, atol=1e-7)


def test_light_tails_take_the_steps_of_a_gaussian():
    toy, gp, df = make_toy(N), model(), 1e9
    gaussian = SCGD(
        learning_rate=0.01, judge=ByEvidence(refit=False), optimizer=optax.sgd, decay=constant, batch_size=B
    )
    light = SCGD(
        learning_rate=0.01,
        df=df,
        judge=ByEvidence(refit=False, df=df),
        optimizer=optax.sgd,
        decay=constant,
        batch_size=B,
    )
    found, wanted = (
        partition(stepper(learner)(begin(learner, gp, toy, anchor=True), rows_of(toy, [1, 4])).gp)[0]
        for learner in (light, gaussian)
    )
    assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def held_out_rows():
    generator = np.random.default_rng(3)
    P, y = generator.normal(size=(5, M)), 3 * generator.normal(size=5)
    return HeldOut(P, y, np.ones(5), generator.uniform(0.5, 2, 5), DF)


def test_held_out_rows_have_the_density_of_the_predictive_distribution():
    gp = model()
    s, rows, (v, s2) = spectrum(moments_of_rows(gp, rows_of(make_toy(N)))), held_out_rows(), (1.3, 0.4)
    d = v * s.eigenvalues + s2
    mean, latent = rows.P @ (v * s.cross / d), (rows.P**2) @ (v * s2 / d)
    wanted = ScaleMixture(mean, latent, s2 * rows.multiplier, *student_multipliers(DF), DF).logpdf(rows.y)
    found = densities_of_spectrum(s, rows, v, s2)
    np.testing.assert_allclose(-found.value, wanted, rtol=1e-12)
    h = 1e-6
    by_v, by_s2 = (
        (
            densities_of_spectrum(s, rows, v + a, s2 + b).value
            - densities_of_spectrum(s, rows, v - a, s2 - b).value
        )
        / (2 * h)
        for a, b in ((h, 0), (0, h))
    )
    np.testing.assert_allclose(found.by_variance, by_v, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.by_noise, by_s2, rtol=1e-6, atol=1e-8)


def test_degrees_of_freedom_are_those_of_the_judge_too():
    with pytest.raises(ValueError, match="give both, or none"):
        SCGD(df=4.0)
    with pytest.raises(ValueError, match="df is 2"):
        SCGD(df=2.0, judge=ByEvidence(df=2.0))
