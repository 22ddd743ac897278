"""Step-size rules, and an optimiser that optax has with settings for small networks."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float

from stochgp.parameters import cast

Schedule = Callable[[Float[Array, ""]], Float[Array, ""]]


def cosine(progress: Float[Array, ""]) -> Float[Array, ""]:
    """½(1 + cos(π · progress)): from 1 down to 0.

    Parameters
    ----------
    progress : array
        Fraction of the planned steps taken.
    """
    return 0.5 * (1 + jnp.cos(jnp.pi * progress))


def constant(progress: Float[Array, ""]) -> Float[Array, ""]:
    """1 throughout.

    Parameters
    ----------
    progress : array
        Fraction of the planned steps taken.
    """
    return jnp.ones_like(progress)


class PowerLaw(eqx.Module):
    """scale · (t + 1)^(−exponent) at step t = 0, 1, …

    Parameters
    ----------
    scale : float
        The value at step 0.
    exponent : float
        The theory of SCGD asks for 3/4 (a_t) and 1/2 (b_t).
    """

    scale: float
    exponent: float

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale * (step + 1.0) ** (-self.exponent)


class InverseRoot(eqx.Module):
    """scale / (1 + slope √t) at step t = 0, 1, …

    Parameters
    ----------
    scale : float
        The value at step 0.
    slope : float
        The paper of SVDGP has 0.1; that of iVSGPR 1, with a scale of 1, for its mirror steps.
    """

    scale: float
    slope: float = 0.1

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale / (1.0 + self.slope * jnp.sqrt(step))


def at_step(value: float | Schedule, step: Float[Array, ""]) -> Float[Array, ""] | float:
    """A number as it is, a rule at its step."""
    return value(step) if callable(value) else value


WEIGHT_DECAY = 0.1


def muon(learning_rate: float, weight_decay: float = WEIGHT_DECAY) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024): the momentum of every matrix is replaced by the nearest semi-orthogonal one; Adam on all that is no matrix.

    All directions of a weight matrix then move alike, however small their gradients. It fits deep kernels in a third to a tenth of
    Adam's steps; a step costs 15 products of the matrices more.

    Parameters
    ----------
    learning_rate : float
        a, of the matrices and of Adam.
    weight_decay : float
        A step also shrinks every matrix by a · weight_decay of itself: else long runs at a large rate end with weights so large that held-out rows suffer.
    """
    rule = optax.contrib.muon(learning_rate, weight_decay=weight_decay)

    def init(params: optax.Params) -> optax.OptState:
        """Muon's constants would be float64 where x64 is enabled, and then its products too."""
        return cast(rule.init(params), jax.tree.leaves(params)[0].dtype)

    return optax.GradientTransformation(init, rule.update)
