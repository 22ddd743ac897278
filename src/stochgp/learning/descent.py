"""One stochastic gradient step on θ by any optax rule: the part that all learners share."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from stochgp.learning.schedules import Schedule
from stochgp.numerics.arrays import on_device
from stochgp.numerics.precision import full_precision

NEVER = 1e9  # a step that no run reaches

Optimizer = Callable[[float], optax.GradientTransformation]


class Descent(eqx.Module):
    """Where the optimiser stands.

    The step size of step t is rate · decay((t − start) / (total − start)), the argument kept between 0 and 1, or learning_rate(t) · rate where
    that is a rule.
    """

    optimizer_state: PyTree
    rate: Float[Array, ""]
    step: Float[Array, ""]  # counted in float32: exact up to 2²⁴, and only a schedule's argument
    total: Float[Array, ""]
    start: Float[Array, ""]  # of the decay


def begin(parameters: PyTree, optimizer: Optimizer, rate: float, total: int) -> Descent:
    """Step 0 of `total`."""
    state, f = _started(optimizer, jax.tree.leaves(parameters)), np.float32
    zero = on_device(0, f)
    return Descent(state, on_device(rate, f), zero, on_device(total, f), zero)


def step_size(descent: Descent, learning_rate: float | Schedule | None, decay: Schedule) -> Array:
    """The step size of the step to come."""
    if callable(learning_rate):
        return descent.rate * learning_rate(descent.step)
    progress = (descent.step - descent.start) / (descent.total - descent.start)
    return descent.rate * decay(jnp.clip(progress, 0.0, 1.0))


def move(
    parameters: PyTree,
    gradient: PyTree,
    descent: Descent,
    optimizer: Optimizer,
    size: Array,
) -> tuple[PyTree, Descent]:
    """The parameters after one step of `size` and the optimiser's new state.

    The optimiser sees a plain list of the arrays, in the order of the tree.
    """
    leaves, structure = jax.tree.flatten(parameters)
    slopes = jax.tree.leaves(gradient)
    with full_precision():  # for rules that multiply matrices
        updates, state = optimizer(1.0).update(slopes, descent.optimizer_state, leaves)
    moved = [
        p + size.astype(p.dtype) * u.astype(p.dtype)
        for p, u in zip(leaves, jax.tree.leaves(updates), strict=True)
    ]
    after = Descent(state, descent.rate, descent.step + 1, descent.total, descent.start)
    return jax.tree.unflatten(structure, moved), after


def decaying(descent: Descent, n_steps: int | None) -> Descent:
    """The same state with a rate that decays over the next `n_steps` steps; None = one that does not."""
    f = descent.step.dtype.type
    start = f(NEVER) if n_steps is None else f(descent.step)
    end = start + f(n_steps or NEVER)
    return eqx.tree_at(lambda d: (d.start, d.total), descent, (on_device(start), on_device(end)))


def slowed(descent: Descent, factor: float) -> Descent:
    """The same state with a smaller rate."""
    rate = np.asarray(descent.rate)
    return eqx.tree_at(lambda d: d.rate, descent, on_device(rate * rate.dtype.type(factor)))


def start_rate(learning_rate: Any, chosen: float | None) -> float:
    """What `Descent.rate` begins with: 1 where a rule sets the step size, otherwise the number given or chosen."""
    if callable(learning_rate):
        return 1.0
    if learning_rate is not None:
        return float(learning_rate)
    if chosen is None:
        raise ValueError("learning_rate is None: give one, or let `fit` choose it")
    return chosen


@eqx.filter_jit
def _started(optimizer: Optimizer, parameters: list[Array]) -> PyTree:
    return optimizer(1.0).init(parameters)
