"""The exact likelihood and leave-one-out densities of a few rows."""

import jax
import numpy as np

from stochgp.likelihoods.noise import noise_of_rows
from stochgp.objectives import kernel
from stochgp.objectives.conditionals import HALF_LOG_2PI, Conditional


def left_out(gp, rows):
    """e_i = α_i/Q_ii of the variance 1/Q_ii + σ²s(1 − 1/ρ) ≥ σ²s, Q = A⁻¹ (Rasmussen and Williams 2006, equations 5.10 to 5.12)."""
    with jax.enable_x64(True):
        at, noise = kernel._on_host(gp, rows)
        factor = kernel.factorised(gp.kernel, at.X, noise)
        alpha = factor.solve(at.y[:, None])[:, 0]
        one = noise_of_rows(gp.noise, at.X, np.ones_like(at.weights))
    variance = 1 / np.diagonal(kernel._inverse(factor.L))
    V = np.maximum(variance + one - noise, one)
    z = alpha * variance / np.sqrt(V)
    return Conditional(0.5 * np.log(V) + HALF_LOG_2PI + 0.5 * np.square(z), z, V)


def nlml(gp, rows):
    return kernel.nlml_and_gradient(gp, rows).nlml
