"""The largest value of each of many posterior functions on a box: gradient ascent from many starts."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from stochgp.data.rows import Rows
from stochgp.kernels.rotated import along_inputs
from stochgp.numerics.arrays import extended
from stochgp.operators import KernelOperator
from stochgp.parameters import value_of
from stochgp.posteriors import AbstractFunctions, KernelFunctions

BLOCK = 512  # candidates whose values are computed at a time
STEPS_OF_SIZE = 8  # sizes of padded systems between a power of two and the next
OTHERWISE = (
    0.1  # of the box, the radius of nearby proposals where the kernel has no lengthscale of every input
)


class Maximiser(eqx.Module):
    """How the maximum of a function f on a box is searched (Lin et al. 2024, appendix on Thompson sampling).

    In each round points are drawn, which all functions share. The best of the round is a start for f. From every start steps of Adam follow, clipped to
    the box after each. The best of all starts and ends is the answer. The paper takes 30 rounds of 50,000 points.

    Raises ValueError for settings outside of their ranges.

    Parameters
    ----------
    rounds : int
        Rounds, each of which gives every function one start.
    candidates : int
        Points of a round.
    uniform : float
        The share of them that is uniform in the box, from 0 to 1. Each of the others is an observed row, drawn with a probability proportional to
        y − min y, plus N(0, (ℓ/2)²) in every input, clipped to the box; ℓ are the lengthscales.
    steps : int
        Steps of Adam from every start; 0 = the best start is the answer.
    step_size : float
        Of Adam, in widths of the box, above 0 and at most 1.
    """

    rounds: int = 8
    candidates: int = 1000
    uniform: float = 0.1
    steps: int = 100
    step_size: float = 1e-3

    def __check_init__(self) -> None:
        if self.rounds < 1 or self.candidates < 1 or self.steps < 0:
            raise ValueError(
                f"rounds={self.rounds} and candidates={self.candidates} must be at least 1, steps={self.steps} at least 0"
            )
        if not 0 <= self.uniform <= 1:
            raise ValueError(f"uniform is {self.uniform}; it must lie in [0, 1]")
        if not 0 < self.step_size <= 1:
            raise ValueError(f"step_size is {self.step_size}; it must be above 0 and at most 1")


class Box(NamedTuple):
    """lower ≤ x ≤ upper, in the units of the functions' inputs."""

    lower: Float[np.ndarray, " D"]
    upper: Float[np.ndarray, " D"]

    @property
    def width(self) -> Float[np.ndarray, " D"]:
        return self.upper - self.lower


def maximise(
    functions: AbstractFunctions,
    how: Maximiser,
    box: Box,
    observed: Rows,
    nearby: Float[np.ndarray, " D"],
    *,
    sign: float = 1.0,
    generator: np.random.Generator,
) -> tuple[Float[np.ndarray, "S D"], Float[np.ndarray, " S"]]:
    """(Where each function is largest, its value there); with `sign` −1 where it is smallest.

    `observed` are the rows so far; the larger their targets the better. `nearby` are the standard deviations of proposals around observed rows. Call it
    inside of `jax.enable_x64(True)`.
    """
    dtype = observed.X.dtype
    points = proposals(how, box, observed, nearby, generator=generator).astype(dtype)
    bounds = tuple(np.asarray(bound, dtype) for bound in box)
    found, values = _search(
        padded(functions),
        points,
        bounds,
        np.asarray(sign, dtype),
        np.asarray(how.step_size, dtype),
        how.steps,
    )
    return np.asarray(found, np.float64), np.asarray(values, np.float64)


def proposals(
    how: Maximiser,
    box: Box,
    observed: Rows,
    nearby: Float[np.ndarray, " D"],
    *,
    generator: np.random.Generator,
) -> Float[np.ndarray, "R C D"]:
    """The candidates of every round; all uniform where no row is better than another."""
    shape = (how.rounds, how.candidates, len(box.lower))
    anywhere = box.lower + box.width * generator.uniform(size=shape)
    chance = np.asarray(observed.y, np.float64) - np.min(observed.y, initial=math.inf)
    total = float(chance.sum())
    if not 0 < total < math.inf:
        return anywhere
    rows = generator.choice(len(chance), size=shape[:2], p=chance / total)
    near = np.asarray(observed.X, np.float64)[rows] + nearby * generator.normal(size=shape)
    n_uniform = round(how.uniform * how.candidates)
    near[:, :n_uniform] = anywhere[:, :n_uniform]
    return np.clip(near, box.lower, box.upper)


def half_lengthscales(kernel: Any, box: Box) -> Float[np.ndarray, " D"]:
    """ℓ/2 of a stationary kernel of all inputs, at most the width of the box; else a tenth of that width."""
    plain, D = along_inputs(kernel), len(box.lower)
    if plain is not None and plain.active_dims is None:
        lengths = np.asarray(value_of(plain.lengthscale), np.float64)
        if lengths.size in (1, D):
            return np.minimum(np.broadcast_to(lengths / 2, (D,)), box.width)
    return OTHERWISE * box.width


def padded(functions: AbstractFunctions) -> AbstractFunctions:
    """The same functions with rows of weight 0, so that systems of about the same size share what is compiled."""
    if not isinstance(functions, KernelFunctions):
        return functions
    old = functions.operator
    if not isinstance(old, KernelOperator) or old.inputs is None:
        return functions
    size, rows = ladder(old.size), jnp.asarray(old.inputs)
    X = extended(rows, size - old.size)
    operator = KernelOperator.of(old.kernel, X, jnp.ones(size, old.dtype), tile=old.tile)
    operator = eqx.tree_at(lambda op: op.inputs, operator, None, is_leaf=lambda leaf: leaf is None)
    weights = jnp.pad(old.unpad(functions.weights), ((0, operator.padded - old.size), (0, 0)))
    return KernelFunctions(operator, functions.prior, weights)


def ladder(size: int) -> int:
    """The next size of a row of sizes that grows by at most an eighth from one to the next."""
    step = max(1, 2 ** (size.bit_length() - 1) // STEPS_OF_SIZE)
    return -(-size // step) * step


@eqx.filter_jit
def _search(
    functions: AbstractFunctions,
    points: Float[Array | np.ndarray, "R C D"],
    bounds: Any,
    sign: Any,
    step_size: Any,
    steps: int,
) -> tuple[Float[Array, "S D"], Float[Array, " S"]]:
    starts = jnp.moveaxis(jax.lax.map(lambda of: _best(functions, of, sign), points), 0, 1)  # [S, R, D]
    lower, upper = bounds
    width = upper - lower

    def total(u: Float[Array, "S R D"]) -> tuple[Array, Array]:
        values = sign * functions.at_own(lower + width * u)
        return jnp.sum(values), values

    slope = jax.value_and_grad(lambda u: -total(u)[0])
    adam = optax.adam(step_size)

    def step(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
        u, state = carry
        found: tuple[Any, Any] = adam.update(slope(u)[1], state)
        change, state = found
        return (jnp.clip(u + change, 0, 1), state), None

    begun = jnp.clip((starts - lower) / width, 0, 1)
    ended = jax.lax.scan(step, (begun, adam.init(begun)), None, steps)[0][0]
    both = jnp.concatenate([begun, ended], axis=1)
    values = jnp.concatenate([total(begun)[1], total(ended)[1]], axis=1)
    best = jnp.argmax(values, axis=1)
    place = jnp.take_along_axis(both, best[:, None, None], axis=1)[:, 0]
    return jnp.clip(lower + width * place, lower, upper), sign * jnp.max(values, axis=1)


def _best(functions: AbstractFunctions, points: Float[Array, "C D"], sign: Any) -> Float[Array, "S D"]:
    """For each function the point of its largest value."""
    values = values_at(functions, points)
    return points[jnp.argmax(sign * values, axis=0)]


def values_at(functions: AbstractFunctions, points: Float[Array, "C D"]) -> Float[Array, "C S"]:
    """f_s at every point, by blocks of points."""
    n = min(BLOCK, len(points))
    n_blocks = -(-len(points) // n)
    rows = extended(points, n_blocks * n - len(points))
    found = jax.lax.map(functions, rows.reshape(n_blocks, n, -1))
    return found.reshape(n_blocks * n, -1)[: len(points)]
