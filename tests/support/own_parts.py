"""One of each kind, as a user would write it in a file of their own: `stochgp fit … --with own_parts.py`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import stochgp
from stochgp.distributions import Mixture, Normal
from stochgp.features import AbstractFeatureMap
from stochgp.kernels.stationary import AbstractStationary
from stochgp.learners import AbstractLearner
from stochgp.learners.evaluators import StepPlan
from stochgp.likelihoods import AbstractLikelihood, constant_noise
from stochgp.models import KernelGP
from stochgp.parameters import AbstractParameter, positive, value_of
from stochgp.solvers import AbstractIterativeSolver
from tests.test_toy_family import ConstantPosterior, ConstantRegressor


@stochgp.register("cauchy")
class Cauchy(AbstractStationary):
    """k = variance / (1 + s), s the squared scaled distance."""

    def profile(self, s):
        return 1 / (1 + s)

    def frequency_scales(self, n, *, key, dtype=jnp.float32):
        """1/(1 + s) = E exp(−s t), t ~ Exp(1): frequencies are normal with variance 2t."""
        return jnp.sqrt(2 * jax.random.exponential(key, (n,), dtype))


@stochgp.register("waves")
class Waves(AbstractFeatureMap):
    """sin and cos of whole multiples of each input."""

    multiples: Any = eqx.field(static=True)
    n_inputs: int = eqx.field(static=True)

    @classmethod
    def init(cls, n_inputs, n_features, *, key, dtype):
        return cls(3 if n_features is None else n_features // (2 * n_inputs), n_inputs)

    @property
    def n_features(self):
        return 2 * self.multiples * self.n_inputs

    def __call__(self, X):
        turns = (X[:, :, None] * jnp.arange(1, self.multiples + 1, dtype=X.dtype)).reshape(len(X), -1)
        return jnp.concatenate([jnp.sin(turns), jnp.cos(turns)], axis=1) / (self.multiples**0.5)


@stochgp.register("laplace")
class Laplace(AbstractLikelihood):
    """p(y | f) = exp(−|y − f|/b)/(2b): a normal whose variance is 2b² times an exponential variable."""

    scale: AbstractParameter = eqx.field(converter=positive, default=0.3)

    @property
    def n_latent(self):
        return 1

    def log_density(self, y, f, X):
        b = value_of(self.scale, f.dtype)
        return -jnp.abs(y - f[:, 0]) / b - jnp.log(2 * b)

    def predictive(self, mean, variance, X):
        t, weight = np.polynomial.laguerre.laggauss(40)
        noise = 2 * float(self.scale) ** 2 * t
        parts = tuple(Normal(mean[:, 0], np.sqrt(variance[:, 0] + each)) for each in noise)
        return Mixture(parts, weight)


@stochgp.register("richardson")
class Richardson(AbstractIterativeSolver):
    """α ← α + (b − A α)/‖A‖."""

    epochs: int = 4000
    check_every: int = 50
    patience = None

    def constants(self, operator, *, key):
        v = jnp.ones((operator.padded, 1), operator.dtype)
        for _ in range(20):
            w = operator.matvec(v)
            norm = jnp.linalg.norm(w) / jnp.linalg.norm(v)
            v = w / jnp.linalg.norm(w)
        return 0.9 / norm

    def init(self, operator, constants, b, start, residual=None):
        return start

    def step(self, operator, constants, b, state, batch):
        left = b - operator.matvec(state)
        return state + (constants * left).astype(state.dtype), jnp.sum(left**2, axis=0), None

    def value(self, state):
        return state


class Held(eqx.Module):
    gp: KernelGP


@stochgp.register("differences")
class Differences(AbstractLearner):
    """σ² is half of the mean squared difference of neighbours along the first input; the kernel stays as it is."""

    def plan(self, n_rows, n_inputs, evaluator):
        return StepPlan(n_rows, 1, 1, 1)

    def peak_bytes(self, gp, n_rows, n_inputs):
        return 16 * n_rows

    def prepare(self, gp, source, plan, seed):
        return None

    def init(self, gp, problem, *, key):
        return Held(gp)

    def advance(self, state, problem, first_step, n_steps, seed):
        rows = problem.source.on_host(np.arange(problem.source.size))
        y = np.asarray(rows.y)[np.argsort(np.asarray(rows.X)[:, 0])]
        s2 = float(np.mean(np.diff(y) ** 2) / 2)
        kernel = state.gp.kernel
        return Held(KernelGP(kernel, constant_noise(s2, dtype=jnp.float32))), {
            "loss": 0.5 * float(np.log(s2))
        }


stochgp.register("constant")(ConstantRegressor)
stochgp.register()(ConstantPosterior)
