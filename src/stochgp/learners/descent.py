"""Steps of optax optimizers, learning-rate schedules, and the selection of mini-batches."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array, Float, Int, Int32, PyTree

from stochgp.compiled import quick_jit
from stochgp.data.memory import MemorySource, independent_batches, shuffled_batches
from stochgp.learners.evaluators import Seed
from stochgp.neighbours import Neighbours, neighbours_bytes
from stochgp.numerics.arrays import full_precision, on_device
from stochgp.parameters import cast

NEVER = 1e9  # a number of steps that no run reaches
WEIGHT_DECAY = 0.1

Optimizer = Callable[[float], optax.GradientTransformation]
Schedule = Callable[[Float[Array, ""]], Float[Array, ""]]


class Descent(eqx.Module):
    """The state of an optimiser.

    The size of step t is rate · decay((t − start) / (total − start)), with the fraction clipped to [0, 1].
    If `learning_rate` is a function, the size of step t is `rate` times `learning_rate(t)`.
    """

    optimizer_state: list[Array]  # only the leaves, because files contain no classes of other packages
    rate: Float[Array, ""]
    step: Float[Array, ""]  # float32 counts exactly up to 2²⁴
    total: Float[Array, ""]
    start: Float[Array, ""]  # the step at which the decay begins


def begin(parameters: PyTree, optimizer: Optimizer, rate: float, total: int) -> Descent:
    """Return the optimiser's state before the first of `total` steps."""
    state = _started(optimizer, jax.tree.leaves(parameters))
    numbers = (on_device(value, np.float32) for value in (rate, 0, total, 0))
    return Descent(jax.tree.leaves(state), *numbers)


def step_size(descent: Descent, learning_rate: float | Schedule | None, decay: Schedule) -> Array:
    """Return the size of the next step."""
    if callable(learning_rate):
        return descent.rate * learning_rate(descent.step)
    progress = (descent.step - descent.start) / (descent.total - descent.start)
    return descent.rate * decay(jnp.clip(progress, 0.0, 1.0))


def move(
    parameters: PyTree, gradient: PyTree, descent: Descent, optimizer: Optimizer, size: Array
) -> tuple[PyTree, Descent]:
    """Return the parameters and the state after one step of size `size`."""
    leaves, structure = jax.tree.flatten(parameters)
    slopes, rule = jax.tree.leaves(gradient), optimizer(1.0)
    before = jax.tree.unflatten(
        jax.tree.structure(jax.eval_shape(rule.init, leaves)), descent.optimizer_state
    )
    with full_precision():  # some optimizers multiply matrices
        updates, state = rule.update(slopes, before, leaves)
    moved = [
        p + size.astype(p.dtype) * u.astype(p.dtype)
        for p, u in zip(leaves, jax.tree.leaves(updates), strict=True)
    ]
    after = dataclasses.replace(descent, optimizer_state=jax.tree.leaves(state), step=descent.step + 1)
    return jax.tree.unflatten(structure, moved), after


def decaying(descent: Descent, n_steps: int | None) -> Descent:
    """Return the state whose rate decays over the next `n_steps` steps; None = no decay."""
    f = descent.step.dtype.type
    start = f(NEVER) if n_steps is None else f(descent.step)
    end = start + f(n_steps or NEVER)
    return eqx.tree_at(lambda d: (d.start, d.total), descent, (on_device(start), on_device(end)))


def slowed(descent: Descent, factor: float) -> Descent:
    """Return the state with its learning rate multiplied by `factor`."""
    rate = np.asarray(descent.rate)
    return eqx.tree_at(lambda d: d.rate, descent, on_device(rate * rate.dtype.type(factor)))


def start_rate(learning_rate: Any, chosen: float | None) -> float:
    """Return the initial `Descent.rate`: 1 if `learning_rate` is a function, else the number."""
    if callable(learning_rate):
        return 1.0
    if learning_rate is not None:
        return float(learning_rate)
    if chosen is None:
        raise ValueError("learning_rate is None; set it to a number, or call `fit`, which selects a rate")
    return chosen


@quick_jit
def _started(optimizer: Optimizer, parameters: list[Array]) -> PyTree:
    return optimizer(1.0).init(parameters)


def cosine(progress: Float[Array, ""]) -> Float[Array, ""]:
    """Return the cosine decay ½(1 + cos(π · progress)), which falls from 1 to 0.

    Parameters
    ----------
    progress : array
        The completed fraction of the planned steps.
    """
    return 0.5 * (1 + jnp.cos(jnp.pi * progress))


def constant(progress: Float[Array, ""]) -> Float[Array, ""]:
    """Return 1 at every step, so that the learning rate does not decay.

    Parameters
    ----------
    progress : array
        The completed fraction of the planned steps.
    """
    return jnp.ones_like(progress)


class PowerLaw(eqx.Module):
    """Schedule with the value scale · (t + 1)^(−exponent) at step t ≥ 0.

    Parameters
    ----------
    scale, exponent : float
        The value at step 0, and the exponent. The theory of `SCGD` requires the exponents 3/4 for
        `learning_rate` and 1/2 for `tracking`.
    """

    scale: float
    exponent: float

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale * (step + 1.0) ** (-self.exponent)


class InverseRoot(eqx.Module):
    """Schedule with the value scale / (1 + slope √t) at step t ≥ 0.

    Parameters
    ----------
    scale, slope : float
        The value at step 0, and the slope. The paper of `SVDGP` uses a slope of 0.1.
    """

    scale: float
    slope: float = 0.1

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale / (1.0 + self.slope * jnp.sqrt(step))


def at_step(value: float | Schedule, step: Float[Array, ""]) -> Float[Array, ""] | float:
    """Return `value`, or its value at this step if it is a function."""
    return value(step) if callable(value) else value


def muon(learning_rate: float, weight_decay: float = WEIGHT_DECAY) -> optax.GradientTransformation:
    """Return the Muon optimizer (Jordan et al. 2024).

    Muon replaces the momentum of a matrix by the nearest semi-orthogonal matrix, so all directions move
    equally, even if their gradients are small. Arrays that are not matrices follow Adam.

    Parameters
    ----------
    learning_rate : float
        The learning rate, for matrices and for Adam.
    weight_decay : float
        Every step multiplies each matrix by 1 − learning_rate · weight_decay, which limits its growth.
    """
    rule = optax.contrib.muon(learning_rate, weight_decay=weight_decay)

    def init(params: optax.Params) -> optax.OptState:
        """Cast Muon's constants to the parameters' dtype, so that its products have this dtype."""
        return cast(rule.init(params), jax.tree.leaves(params)[0].dtype)

    return optax.GradientTransformation(init, rule.update)


class Uniform(eqx.Module):
    """Mini-batches of uniformly drawn rows.

    Parameters
    ----------
    replace : bool
        If True, rows are drawn independently with replacement. If False, each epoch shuffles all rows.
    """

    replace: bool = False

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> Int[np.ndarray, " N"]:
        return np.arange(source.size, dtype=np.int32)

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        return 16 * n_rows

    def batches(
        self, prepared: Any, first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """Return the row indices of the batches for `n_steps` steps that begin with `first_step`."""
        draw = independent_batches if self.replace else shuffled_batches
        return draw(prepared, batch_size, first_step, n_steps, seed)


class NearestNeighbours(eqx.Module):
    """Mini-batches of a random row and the B − 1 rows nearest to it by Euclidean distance.

    Standardise the inputs first. The search for neighbours takes place once, before the first step.
    """

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> tuple[Int32[np.ndarray, "U B"], Int[np.ndarray, " steps"]]:
        """Return the neighbourhoods of the distinct random rows, and each step's neighbourhood."""
        rows, generator = np.arange(source.size, dtype=np.int32), np.random.default_rng(seed)
        shuffles = [generator.permutation(rows) for _ in range(-(-total_steps // source.size))]
        centres, order = np.unique(np.concatenate(shuffles)[:total_steps], return_inverse=True)
        others = Neighbours(source.inputs(np.float64)).others(centres, batch_size - 1)
        return np.column_stack([centres.astype(np.int32), others]), order

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        rows = (8 * n_inputs + 16) * n_rows + 16 * total_steps
        n_centres = min(n_rows, total_steps)
        return rows + neighbours_bytes(None, n_rows, n_inputs, n_centres, batch_size)

    def batches(
        self, prepared: tuple[Any, Any], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """Return the row indices of the batches for `n_steps` steps that begin with `first_step`."""
        rows, order = prepared
        return rows[order[first_step : first_step + n_steps]]
