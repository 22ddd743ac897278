"""Step-size rules."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

Schedule = Callable[[Float[Array, ""]], Float[Array, ""]]


def cosine(progress: Float[Array, ""]) -> Float[Array, ""]:
    """½(1 + cos(π · progress)): from 1 down to 0; progress is the fraction of the planned steps taken."""
    return 0.5 * (1 + jnp.cos(jnp.pi * progress))


def constant(progress: Float[Array, ""]) -> Float[Array, ""]:
    """1 throughout."""
    return jnp.ones_like(progress)


class PowerLaw(eqx.Module):
    """scale · (t + 1)^(−exponent) at step t = 0, 1, …; the theory of SCGD asks for exponents 3/4 (a_t) and 1/2 (b_t)."""

    scale: float
    exponent: float

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale * (step + 1.0) ** (-self.exponent)


class InverseRoot(eqx.Module):
    """scale / (1 + slope √t) at step t = 0, 1, …; the paper of SVDGP has slope 0.1, that of iVSGPR 1 / (1 + √t) for its mirror steps."""

    scale: float
    slope: float = 0.1

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale / (1.0 + self.slope * jnp.sqrt(step))


def at_step(value: float | Schedule, step: Float[Array, ""]) -> Float[Array, ""] | float:
    """A number as it is, a rule at its step."""
    return value(step) if callable(value) else value
