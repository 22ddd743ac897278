"""The toy model of `reference` as stochgp sees it, and helpers to run a learner by hand."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from reference import Theta, Toy

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.features import AbstractFeatureMap
from stochgp.learners import Problem
from stochgp.learners.evaluators import StepPlan
from stochgp.learners.evidence import EvidenceEvaluation
from stochgp.models import FeatureGP
from stochgp.objectives import moments_of_rows, spectrum
from stochgp.parameters import positive

FLOOR = 1e-3
KEY = jax.random.key(0)


class Tanh(AbstractFeatureMap):
    """φ(x) = tanh(xW)."""

    W: Float[Array, "D M"]

    @property
    def n_features(self) -> int:
        return self.W.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.tanh(jnp.matmul(X, self.W, precision=jax.lax.Precision.HIGHEST))


def make_toy(n=6, d=2, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, d))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] + 0.2 * generator.normal(size=n)
    return Toy(X, y, FLOOR)


def make_gp(d=2, M=4, *, dtype=jnp.float64, variance=1.3, noise_variance=0.4, seed=1):
    W = np.random.default_rng(seed).normal(size=(d, M))
    return FeatureGP(
        Tanh(jnp.asarray(W, dtype)),
        noise=positive(noise_variance, lower=FLOOR, dtype=dtype),
        variance=positive(variance, dtype=dtype),
    )


def theta_of(gp):
    return Theta(
        np.asarray(gp.features.W), np.asarray(gp.variance.raw)[()], np.asarray(gp.noise_variance.raw)[()]
    )


def with_theta(gp, theta):
    where = lambda g: (g.features.W, g.variance.raw, g.noise_variance.raw)
    return eqx.tree_at(where, gp, tuple(jnp.asarray(part) for part in theta))


def rows_of(toy, S=None, weight=None, dtype=jnp.float64):
    S = np.arange(len(toy.y)) if S is None else np.asarray(S)
    weight = np.ones(len(toy.y)) if weight is None else weight
    return Data(*(jnp.asarray(a[S], dtype) for a in (toy.X, toy.y, weight)))


def all_batches(n, size):
    """Every batch without replacement: 15 of them for N = 6, B = 2."""
    return [np.array(S) for S in itertools.combinations(range(n), size)]


def random_batches(n, size, n_steps, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.choice(n, size, replace=False) for _ in range(n_steps)]


def begin(learner, gp, toy, *, rate=1.0, n_steps=10, anchor=False):
    """The learner's state before the first step, anchored at the gp's own variances if wished."""
    source = MemorySource(toy.X, toy.y, dtype=jnp.float64)
    problem = Problem(source, StepPlan(len(toy.y), 1, n_steps, n_steps), None, rate)
    state = learner.init(gp, problem, key=KEY)
    return anchored(learner, state, gp, toy) if anchor else state


def anchored(learner, state, gp, toy, weight=None):
    """After an evaluation that leaves the two variances as they are."""
    moments = moments_of_rows(gp, rows_of(toy, weight=weight, dtype=gp.features.W.dtype))
    own = float(gp.variance), float(gp.noise_variance)
    evaluation = EvidenceEvaluation(gp, moments, spectrum(moments), own, own, 0.0, None)
    return learner.after_evaluation(state, evaluation)


def stepper(learner):
    step = eqx.filter_jit(learner.step)
    return lambda state, rows: step(state, rows, key=KEY)[0]


def assert_close(found, wanted, rtol=1e-10, atol=1e-10):
    """Every array of two trees of the same parts."""
    found, wanted = jax.tree.leaves(found), jax.tree.leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)
