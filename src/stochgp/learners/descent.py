"""Stochastic gradient steps on θ with any optax rule, rules of their size, and rows of their batches."""

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

NEVER = 1e9  # a step that no run reaches
WEIGHT_DECAY = 0.1

Optimizer = Callable[[float], optax.GradientTransformation]
Schedule = Callable[[Float[Array, ""]], Float[Array, ""]]


class Descent(eqx.Module):
    """The state of an optimiser.

    Step t has the size rate · decay((t − start) / (total − start)), the fraction clipped to [0, 1]; with a rule, learning_rate(t) · rate.
    """

    optimizer_state: list[Array]  # only leaves: files hold no classes of other packages
    rate: Float[Array, ""]
    step: Float[Array, ""]  # counted in float32: exact up to 2²⁴, and only a schedule's argument
    total: Float[Array, ""]
    start: Float[Array, ""]  # of the decay


def begin(parameters: PyTree, optimizer: Optimizer, rate: float, total: int) -> Descent:
    """Return the state at step 0 of `total`."""
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
    """Return the parameters and the state after one step of `size`, with arrays in tree order."""
    leaves, structure = jax.tree.flatten(parameters)
    slopes, rule = jax.tree.leaves(gradient), optimizer(1.0)
    before = jax.tree.unflatten(
        jax.tree.structure(jax.eval_shape(rule.init, leaves)), descent.optimizer_state
    )
    with full_precision():  # for rules that multiply matrices
        updates, state = rule.update(slopes, before, leaves)
    moved = [
        p + size.astype(p.dtype) * u.astype(p.dtype)
        for p, u in zip(leaves, jax.tree.leaves(updates), strict=True)
    ]
    after = dataclasses.replace(descent, optimizer_state=jax.tree.leaves(state), step=descent.step + 1)
    return jax.tree.unflatten(structure, moved), after


def decaying(descent: Descent, n_steps: int | None) -> Descent:
    """Return the state with a rate that decays over the next `n_steps` steps; None = no decay."""
    f = descent.step.dtype.type
    start = f(NEVER) if n_steps is None else f(descent.step)
    end = start + f(n_steps or NEVER)
    return eqx.tree_at(lambda d: (d.start, d.total), descent, (on_device(start), on_device(end)))


def slowed(descent: Descent, factor: float) -> Descent:
    """Return the same state with a smaller rate."""
    rate = np.asarray(descent.rate)
    return eqx.tree_at(lambda d: d.rate, descent, on_device(rate * rate.dtype.type(factor)))


def start_rate(learning_rate: Any, chosen: float | None) -> float:
    """Return the first `Descent.rate`: 1 if a rule sets the step size, else the given rate."""
    if callable(learning_rate):
        return 1.0
    if learning_rate is not None:
        return float(learning_rate)
    if chosen is None:
        raise ValueError("learning_rate is None: set it, or let `fit` choose it")
    return chosen


@quick_jit
def _started(optimizer: Optimizer, parameters: list[Array]) -> PyTree:
    return optimizer(1.0).init(parameters)


def cosine(progress: Float[Array, ""]) -> Float[Array, ""]:
    """Decay ½(1 + cos(π · progress)), from 1 to 0.

    Parameters
    ----------
    progress : array
        Fraction of the planned steps taken.
    """
    return 0.5 * (1 + jnp.cos(jnp.pi * progress))


def constant(progress: Float[Array, ""]) -> Float[Array, ""]:
    """No decay: 1 at every step.

    Parameters
    ----------
    progress : array
        Fraction of the planned steps taken.
    """
    return jnp.ones_like(progress)


class PowerLaw(eqx.Module):
    """Rule with the value scale · (t + 1)^(−exponent) at step t ≥ 0.

    Parameters
    ----------
    scale, exponent : float
        The value at step 0; the exponent. The theory of SCGD requires the exponents 3/4 (a_t) and 1/2 (b_t).
    """

    scale: float
    exponent: float

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale * (step + 1.0) ** (-self.exponent)


class InverseRoot(eqx.Module):
    """Rule with the value scale / (1 + slope √t) at step t ≥ 0.

    Parameters
    ----------
    scale, slope : float
        The value at step 0; the slope, 0.1 in the paper of SVDGP. In the paper of iVSGPR both are 1 for mirror steps.
    """

    scale: float
    slope: float = 0.1

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        return self.scale / (1.0 + self.slope * jnp.sqrt(step))


def at_step(value: float | Schedule, step: Float[Array, ""]) -> Float[Array, ""] | float:
    """Return a number unchanged, or the value of a rule at this step."""
    return value(step) if callable(value) else value


def muon(learning_rate: float, weight_decay: float = WEIGHT_DECAY) -> optax.GradientTransformation:
    """Muon optimizer (Jordan et al. 2024).

    It replaces the momentum of a matrix by the nearest semi-orthogonal matrix, so all directions move equally, even if their gradients are small. A step takes 15 more matrix products. Other arrays follow Adam.

    Parameters
    ----------
    learning_rate : float
        The rate a, for matrices and for Adam.
    weight_decay : float
        A step multiplies every matrix by 1 − a · weight_decay. This limits the growth of weights in long runs at a large rate.
    """
    rule = optax.contrib.muon(learning_rate, weight_decay=weight_decay)

    def init(params: optax.Params) -> optax.OptState:
        """Cast Muon's constants, because float64 constants would make its products float64."""
        return cast(rule.init(params), jax.tree.leaves(params)[0].dtype)

    return optax.GradientTransformation(init, rule.update)


class Uniform(eqx.Module):
    """Batches of uniformly drawn rows.

    Parameters
    ----------
    replace : bool
        True: independent draws with replacement. False: a new shuffle of all rows in each epoch.
    """

    replace: bool = False

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> Int[np.ndarray, " N"]:
        """Compute constants on the host before the first step."""
        return np.arange(source.size, dtype=np.int32)

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """Return the bytes of the row indices and a shuffle of them."""
        return 16 * n_rows

    def batches(
        self, prepared: Any, first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """Return the rows of the batches of steps first_step … first_step + n_steps − 1."""
        draw = independent_batches if self.replace else shuffled_batches
        return draw(prepared, batch_size, first_step, n_steps, seed)


class NearestNeighbours(eqx.Module):
    """Batches of a centre and its B − 1 nearest rows by Euclidean distance.

    Standardise the inputs first. Centres are drawn without replacement from shuffles of all rows. Their neighbours are searched once, before the first step.
    """

    def prepare(
        self, source: MemorySource, batch_size: int, total_steps: int, seed: Seed
    ) -> tuple[Int32[np.ndarray, "U B"], Int[np.ndarray, " steps"]]:
        """Return the neighbourhoods [U, B] of distinct centres, and each step's index among them."""
        rows, generator = np.arange(source.size, dtype=np.int32), np.random.default_rng(seed)
        shuffles = [generator.permutation(rows) for _ in range(-(-total_steps // source.size))]
        centres, order = np.unique(np.concatenate(shuffles)[:total_steps], return_inverse=True)
        others = Neighbours(source.inputs(np.float64)).others(centres, batch_size - 1)
        return np.column_stack([centres.astype(np.int32), others]), order

    def peak_bytes(self, n_rows: int, n_inputs: int, batch_size: int, total_steps: int) -> int:
        """Return the bytes of float64 rows, tree, lists and centres."""
        rows = (8 * n_inputs + 16) * n_rows + 16 * total_steps
        n_centres = min(n_rows, total_steps)
        return rows + neighbours_bytes(None, n_rows, n_inputs, n_centres, batch_size)

    def batches(
        self, prepared: tuple[Any, Any], first_step: int, n_steps: int, batch_size: int, seed: Seed
    ) -> Int[np.ndarray, "K B"]:
        """Return the rows of the batches of these steps."""
        rows, order = prepared
        return rows[order[first_step : first_step + n_steps]]
