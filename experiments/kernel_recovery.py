"""The recovery problem of the sgGP paper: 1024 rows drawn from the model itself, so that the truth is known and only two variances are sought.

x ~ N(0, 5²); RBF kernel of lengthscale 0.5, known; truth (σ_f², σ_ε²) = (4, 1). In the eigenbasis of the kernel matrix the exact NLML per
datum and its gradient by the two variances are sums over 1024 numbers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.recovery import TRUTH, Raw
from stochgp.data.streams import DeviceRows
from stochgp.kernels import RBF
from stochgp.learners import BSGD, AbstractLearner, ByLoss, PowerLaw, Problem, Uniform, constant
from stochgp.models import KernelGP
from stochgp.objectives import Spectrum, nlml_of_spectrum, refit
from stochgp.parameters import frozen

ROWS, LENGTHSCALE = 1024, 0.5
FIRST_STEP = {"5.0/3.0": 9.0, "2.5/3.5": 9.0, "2.5/0.7": 6.0}  # α₁ of each start


class Recovery(NamedTuple):
    """The rows, and the spectrum from which the exact NLML follows; `variance`, `noise_variance` are where it is lowest."""

    source: DeviceRows
    spectrum: Spectrum
    variance: float
    noise_variance: float

    def squared_gradient(self, variance: float, noise_variance: float) -> float:
        """‖∇ℓ‖² of the exact NLML per datum by the two variances."""
        if not (variance > 0 and noise_variance > 0):
            return float("nan")
        return float(np.sum(np.square(nlml_of_spectrum(self.spectrum, variance, noise_variance)[1])))

    def gp(self, start: tuple[float, float]) -> KernelGP:
        """The model at (σ_f², σ_ε²) = start; steps are in the variances themselves, without a floor."""
        variance, noise = (Raw(jnp.asarray(value, jnp.float32)) for value in start)
        return KernelGP(RBF(frozen(LENGTHSCALE), variance), noise)


def make(seed: int, rows: int = ROWS) -> Recovery:
    """Rows and targets of one seed."""
    generator = np.random.default_rng(seed)
    X = 5 * generator.standard_normal((rows, 1))
    values, basis = np.linalg.eigh(np.exp(-0.5 * np.square((X - X.T) / LENGTHSCALE)))
    values = np.maximum(values, 0)
    y = TRUTH[0] ** 0.5 * basis @ (np.sqrt(values) * generator.standard_normal(rows))
    y += TRUTH[1] ** 0.5 * generator.standard_normal(rows)
    # With Φ = QΛ^½ the moments of a feature GP: ΦᵀΦ = Λ, Φᵀy = Λ^½ Qᵀy.
    s = Spectrum(values, basis, np.sqrt(values) * (basis.T @ y), float(y @ y), float(rows))
    return Recovery(DeviceRows(X, y), s, *refit(s, *TRUTH))


def learner(batch: int, epochs: int, start: str, signal_scale: float | None) -> AbstractLearner:
    """The paper's: uniform batches, plain SGD at α_k = α₁/k; s₁ = `signal_scale` log m, or m where that is None."""
    rate = PowerLaw(FIRST_STEP[start], 1.0)
    return BSGD(batch, epochs, rate, optax.sgd, constant, Uniform(), signal_scale)


def follow(
    learner: AbstractLearner,
    problem: Recovery,
    start: tuple[float, float],
    *,
    steps: int,
    every: int,
    seed: int,
) -> list[tuple[int, float, float]]:
    """(step, σ_f², σ_ε²) at the start and after every `every` of `steps` plain steps: no evaluations, no recoveries."""
    with jax.enable_x64(True):
        gp, source = problem.gp(start), problem.source
        plan = learner.plan(source.size, source.n_inputs, ByLoss())
        run = Problem(source, plan, learner.prepare(gp, source, plan, (seed, 0)))
        state = learner.init(gp, run, key=jax.random.key(seed))
        path = [(0, *start)]
        for first in range(0, steps, every):
            state, _ = learner.advance(state, run, first, every, (seed, 1))
            found = learner.model(state)
            path.append((first + every, float(found.kernel.variance), float(found.noise_variance)))
    return path
