"""The recovery problem of the SCGD paper: 1024 rows drawn from the model itself, so that the truth is known and only two variances are sought.

x ~ N(0, 5²); φ = 128 orthogonal random Fourier features with lengthscale 0.5, fixed; y = 2φ(x)ᵀw + ε with w ~ N(0, I), ε ~ N(0, 1): truth
(σ_f², σ_ε²) = (4, 1). With the features fixed the exact NLML is a function of two numbers, and its minimum is known to rounding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stochgp.data.streams import Batch, DeviceRows, shuffled_batches
from stochgp.features import RandomFourier
from stochgp.kernels import RBF
from stochgp.learners import AbstractLearner, Minimax, Problem
from stochgp.models import FeatureGP
from stochgp.objectives import Spectrum, add_up, nlml_of_spectrum, refit, spectrum
from stochgp.parameters import AbstractParameter, frozen
from stochgp.planning.steps import StepPlan

ROWS, FEATURES, LENGTHSCALE, TRUTH = 1024, 128, 0.5, (4.0, 1.0)
STARTS = {"5.0/3.0": (5.0, 3.0), "2.5/3.5": (2.5, 3.5), "2.5/0.7": (2.5, 0.7), "3.0/2.0": (3.0, 2.0)}


class Raw(AbstractParameter):
    """A variance that is itself the unconstrained parameter, as in the paper: steps are in the variance, not in its logarithm."""

    raw: Float[Array, ""]

    @property
    def value(self) -> Float[Array, ""]:
        return self.raw


class Recovery(NamedTuple):
    """The rows, the fixed features, their exact moments, and the lowest exact NLML with the variances that attain it."""

    source: DeviceRows
    features: RandomFourier
    spectrum: Spectrum
    lowest: float
    variance: float
    noise_variance: float

    def gap(self, variance: float, noise_variance: float) -> float:
        """Exact NLML per datum above the lowest."""
        if not (variance > 0 and noise_variance > 0):
            return float("nan")
        return nlml_of_spectrum(self.spectrum, variance, noise_variance)[0] - self.lowest

    def gp(self, start: tuple[float, float], raw: bool = False) -> FeatureGP:
        """The model at (σ_f², σ_ε²) = start."""
        if raw:
            variance, noise = (Raw(jnp.asarray(value, jnp.float32)) for value in start)
            return FeatureGP(self.features, noise=noise, variance=variance)
        return FeatureGP(self.features, noise=start[1], variance=start[0])


def make(seed: int, rows: int = ROWS, n_features: int = FEATURES) -> Recovery:
    """Batch, features and targets of one seed."""
    kernel = frozen(RBF(lengthscale=LENGTHSCALE, variance=1.0))
    features = RandomFourier.init(kernel, 1, n_features, key=jax.random.key(seed), orthogonal=True)
    generator = np.random.default_rng(seed)
    X = 5 * generator.standard_normal((rows, 1))
    Phi = np.asarray(features(jnp.asarray(X, jnp.float32)), np.float64)
    y = TRUTH[0] ** 0.5 * Phi @ generator.standard_normal(n_features)
    y += TRUTH[1] ** 0.5 * generator.standard_normal(rows)
    with jax.enable_x64(True):
        source = DeviceRows(X, y)
        s = spectrum(add_up(FeatureGP(features), source.chunks(rows)))
    variance, noise = refit(s, *TRUTH)
    return Recovery(source, features, s, nlml_of_spectrum(s, variance, noise)[0], variance, noise)


def follow(
    learner: AbstractLearner,
    gp: FeatureGP,
    source: DeviceRows,
    *,
    steps: int,
    every: int,
    seed: int,
    prepare: Callable[[Any], Any] = lambda state: state,
) -> list[tuple[int, float, float, Any]]:
    """(step, σ_f², σ_ε², state) at the start and after every `every` of `steps` plain steps: no evaluations, no recoveries.

    `learners.fit` does more than the papers' loops; here nothing but the learner's own steps happens. `prepare` changes the first state.
    """
    with jax.enable_x64(True):
        state = prepare(begun(learner, gp, source, steps, seed))
        path = [_place(learner, state, 0)]
        for first in range(0, steps, every):
            batches = source.take(draw(learner, source.size, first, every, (seed,)))
            state = run_steps(learner, state, batches)
            path.append(_place(learner, state, first + every))
    return path


def begun(learner: AbstractLearner, gp: FeatureGP, source: DeviceRows, steps: int, seed: int) -> Any:
    """The learner's state before the first of `steps` plain steps."""
    B = learner.batch_size or source.size
    problem = Problem(source, StepPlan(B, source.size // B, steps, steps), None)
    return learner.init(gp, problem, key=jax.random.key(seed))


def draw(
    learner: AbstractLearner, n_rows: int, first: int, n_steps: int, seed: tuple[int, ...]
) -> Int[np.ndarray, "..."]:
    """The rows of the batches of steps first … first + n_steps − 1, in shuffled epochs [K, B]; of MINIMAX two independent ones a step [K, 2, B]."""
    B, n_streams = learner.batch_size or n_rows, 2 if isinstance(learner, Minimax) else 1
    streams = [shuffled_batches(np.arange(n_rows), B, first, n_steps, (*seed, i)) for i in range(n_streams)]
    return streams[0] if n_streams == 1 else np.stack(streams, axis=1)


def _place(learner: AbstractLearner, state: Any, step: int) -> tuple[int, float, float, Any]:
    gp = learner.model(state)
    return step, float(gp.variance), float(gp.noise_variance), state


@eqx.filter_jit
def run_steps(learner: AbstractLearner, state: Any, batches: Batch) -> Any:
    """The state after one step on each of a stack of batches."""
    dynamic, static = eqx.partition(state, eqx.is_array)
    key = jax.random.key(0)  # the learners of these experiments draw nothing inside a step

    def body(carry: Any, batch: Batch) -> tuple[Any, None]:
        new, _ = learner.step(eqx.combine(carry, static), batch, key=key)
        return eqx.filter(new, eqx.is_array), None

    dynamic, _ = jax.lax.scan(body, dynamic, batches)
    return eqx.combine(dynamic, static)
