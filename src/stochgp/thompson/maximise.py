"""Maximisation of posterior functions on a box, and checks of boxes and points."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from stochgp.data.rows import Data, refuse_not_finite
from stochgp.kernels.warped import along_inputs
from stochgp.numerics.arrays import extended
from stochgp.operators import KernelOperator
from stochgp.parameters import value_of
from stochgp.posteriors import AbstractFunctions, KernelFunctions

BLOCK = 512  # points per evaluation
OUTSIDE = 1e-6  # tolerance for points outside the box, in widths of the box
STEPS_OF_SIZE = 8  # padded sizes between consecutive powers of two
UNIFORM, STEP_SIZE = 0.1, 1e-3  # share of uniform proposals; step size of Adam in widths of the box
DEFAULT_NEARBY = 0.1  # default standard deviation of proposals in widths of the box


Box = Float[np.ndarray, "2 D"]
"""Lower and upper bounds of all inputs, in the units of the functions."""


def maximise(
    functions: AbstractFunctions,
    box: Box,
    observed: Data,
    nearby: Float[np.ndarray, " D"],
    *,
    rounds: int,
    proposals: int,
    steps: int,
    sign: float = 1.0,
    generator: np.random.Generator,
) -> Float[np.ndarray, "S D"]:
    """Return the maximiser of each function on a box, or the minimiser if `sign` is −1.

    In each round, all functions share random proposals, and each function starts from its best proposal (Lin
    et al. 2024). From each start, Adam takes steps inside the box. The result is the best of all starting and
    final points. `nearby` are standard deviations of proposals around `observed` rows.
    """
    dtype = observed.X.dtype
    points = proposed((rounds, proposals), box, observed, nearby, generator=generator)
    points, box, signs = (np.asarray(x, dtype) for x in (points, box, sign))
    return np.asarray(_search(padded(functions), points, box, signs, steps), np.float64)


def proposed(
    shape: tuple[int, int],
    box: Box,
    observed: Data,
    nearby: Float[np.ndarray, " D"],
    *,
    generator: np.random.Generator,
) -> Float[np.ndarray, "R C D"]:
    """Return R rounds of C proposals in the box.

    A tenth of the proposals is uniform. All other proposals are N(x, diag nearby²). Their observed rows x are
    drawn with probabilities proportional to y − min y. If all y are equal, all proposals are uniform.
    """
    lower, upper = box
    anywhere = lower + (upper - lower) * generator.uniform(size=(*shape, len(lower)))
    chance = np.asarray(observed.y, np.float64) - np.min(observed.y, initial=math.inf)
    total = float(chance.sum())
    if not 0 < total < math.inf:
        return anywhere
    rows = generator.choice(len(chance), size=shape, p=chance / total)
    near = np.asarray(observed.X, np.float64)[rows] + nearby * generator.normal(size=anywhere.shape)
    n_uniform = round(UNIFORM * shape[1])
    near[:, :n_uniform] = anywhere[:, :n_uniform]
    return np.clip(near, lower, upper)


def half_lengthscales(kernel: Any, box: Box) -> Float[np.ndarray, " D"]:
    """Return half the lengthscales, at most the box width; else a tenth of the width."""
    plain, D, width = along_inputs(kernel), box.shape[1], box[1] - box[0]
    if plain is not None and plain.active_dims is None:
        lengths = np.asarray(value_of(plain.lengthscale), np.float64)
        if lengths.size in (1, D):
            return np.minimum(np.broadcast_to(lengths / 2, (D,)), width)
    return DEFAULT_NEARBY * width


def padded(functions: AbstractFunctions) -> AbstractFunctions:
    """Pad the functions with rows of weight 0, so that similar sizes share one program."""
    if not isinstance(functions, KernelFunctions):
        return functions
    old, size = functions.operator, ladder(functions.operator.size)
    X = extended(jnp.asarray(old.inputs), size - old.size)
    operator = KernelOperator.of(old.kernel, X, jnp.ones(size, old.dtype), tile=old.tile)
    operator = eqx.tree_at(lambda op: op.inputs, operator, None, is_leaf=lambda leaf: leaf is None)
    weights = jnp.pad(old.unpad(functions.weights), ((0, operator.padded - old.size), (0, 0)))
    return KernelFunctions(operator, functions.prior, weights)


def ladder(size: int) -> int:
    """Round a size up to the next one of a sequence with ratios of at most 9/8."""
    step = max(1, 2 ** (size.bit_length() - 1) // STEPS_OF_SIZE)
    return -(-size // step) * step


@eqx.filter_jit
def _search(
    functions: AbstractFunctions, points: Any, box: Any, sign: Any, steps: int
) -> Float[Array, "S D"]:
    best = lambda some: some[jnp.argmax(sign * values_at(functions, some), axis=0)]
    starts = jnp.moveaxis(jax.lax.map(best, points), 0, 1)  # [S, R, D]
    lower, upper = box
    width = upper - lower

    def total(u: Float[Array, "S R D"]) -> tuple[Array, Array]:
        values = sign * functions.at_own(lower + width * u)
        return jnp.sum(values), values

    slope = jax.value_and_grad(lambda u: -total(u)[0])
    adam = optax.adam(STEP_SIZE)

    def step(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
        u, state = carry
        found: tuple[Any, Any] = adam.update(slope(u)[1], state)
        return (jnp.clip(u + found[0], 0, 1), found[1]), None

    begun = jnp.clip((starts - lower) / width, 0, 1)
    ended = jax.lax.scan(step, (begun, adam.init(begun)), None, steps)[0][0]
    both = jnp.concatenate([begun, ended], axis=1)
    values = jnp.concatenate([total(begun)[1], total(ended)[1]], axis=1)
    best = jnp.argmax(values, axis=1)
    place = jnp.take_along_axis(both, best[:, None, None], axis=1)[:, 0]
    return jnp.clip(lower + width * place, lower, upper)


def values_at(functions: AbstractFunctions, points: Float[Array, "C D"]) -> Float[Array, "C S"]:
    """Return all functions at all points, computed in blocks of points."""
    n = min(BLOCK, len(points))
    n_blocks = -(-len(points) // n)
    rows = extended(points, n_blocks * n - len(points))
    found = jax.lax.map(functions, rows.reshape(n_blocks, n, -1))
    return found.reshape(n_blocks * n, -1)[: len(points)]


def read_box(bounds: Any) -> Box:
    """Read bounds [D, 2]. Raises ValueError unless they are finite with lower < upper."""
    found = np.asarray(bounds, np.float64)
    if found.ndim != 2 or found.shape[1] != 2 or len(found) == 0:
        raise ValueError(
            f"bounds must have the shape [D, 2], with a lower and an upper bound for each input, but have the shape {found.shape}"
        )
    bad = ~(np.isfinite(found).all(axis=1) & (found[:, 0] < found[:, 1]))
    if bad.any():
        d = int(np.argmax(bad))
        raise ValueError(
            f"bounds of input {d + 1} are {found[d].tolist()}; the lower bound must be below the upper bound"
        )
    return np.ascontiguousarray(found.T)


def read_points(X: Any, box: Box | None = None) -> Float[np.ndarray, "n D"]:
    """Read finite rows and clip them to the box. Raises ValueError for points outside."""
    found, D = np.asarray(X, np.float64), "D" if box is None else box.shape[1]
    if found.ndim != 2 or 0 in found.shape or found.shape[1] != D != "D":
        raise ValueError(f"points must have the shape [n, {D}] with n ≥ 1, but have the shape {found.shape}")
    refuse_not_finite(found)
    if box is None:
        return found
    lower, upper = box
    slack = OUTSIDE * (upper - lower)
    out = (found < lower - slack) | (found > upper + slack)
    if out.any():
        row, d = (int(i) for i in np.argwhere(out)[0])
        raise ValueError(
            f"point {row + 1} is outside the box: its input {d + 1} is {found[row, d]:g}, but the bounds are "
            f"[{lower[d]:g}, {upper[d]:g}]"
        )
    return np.clip(found, lower, upper)
