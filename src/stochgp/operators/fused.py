"""Fused products K V on a GPU: distances, kernel and sums of a tile stay in registers.

Each program of the grid sums some rows over a part of the columns, in full float32. Pallas compiles programs
with Triton. If JAX has no Pallas for Triton, this import fails, and products are computed tile by tile.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from stochgp.kernels import AbstractStationary
from stochgp.kernels.base import Points, above
from stochgp.numerics.arrays import matmul
from stochgp.parameters import AbstractParameter, value_of

DIRECT = 4  # up to this many coordinates, differences are squared directly; more use a matrix product
MOST = 128  # maximum number of coordinates of a row; XLA is faster for more
DEPTH = 16  # minimum depth of matrix products in Triton; arrays are padded to it
NARROW, WIDEST = 2, 128  # maximum number of right-hand sides that are summed one by one, and per call
WARPS = 4
PROGRAMS = 4096  # target number: dozens for each multiprocessor of a GPU

Block = tuple[int, int]  # rows and columns of a step of a program; powers of two
Parts = dict[str, Any]
"""Arrays of prepared rows or of right-hand sides.

Rows have "apart" [Q, N] for direct differences, or "coordinates" [A, N] (A a multiple of `DEPTH`) and
"norms" [N], or all three. Right-hand sides have "wide" [P, W] (W a power of two) and "narrow" [C, P].
"""


def serves(kernel: Any, rows: Any, V: Float[Array, "P S"]) -> bool:
    """Return True if `product` supports the kernel, rows and V (few coordinates, float32)."""
    return (
        kernel is not None
        and isinstance(rows, Points)
        and rows.coordinates.shape[1] + len(rows.apart) <= MOST
        and rows.norms.dtype == V.dtype == jnp.float32
    )


def product(
    kernel: AbstractStationary,
    rows: Points,
    columns: Points,
    V: Float[Array, "P S"],
    *,
    block: Block | None = None,
    interpret: bool = False,
) -> Float[Array, "B S"]:
    """Return Σ_j k(x_i, z_j) V_js in float32 for a stationary kernel k.

    `kernel.prepare` must have prepared rows and columns with the same centre. `block` None = default size.
    If `interpret` is True, the programs run one after the other, on any device.
    """
    S = V.shape[1]
    if S > WIDEST:
        parts = [V[:, start : start + WIDEST] for start in range(0, S, WIDEST)]
        one = partial(product, kernel, rows, columns, block=block, interpret=interpret)
        return jnp.concatenate([one(part) for part in parts], axis=1)
    X, Z, sides = _of_rows(rows), _of_rows(columns), _of_sides(V)
    B, P = rows.norms.shape[0], columns.norms.shape[0]
    if block is None:  # the fastest blocks on an H200
        wide = sides["wide"].shape[1] if "wide" in sides else 0
        direct = (64, 16) if wide else (32, 64)
        block = direct if "norms" not in X else (64, 32) if wide <= 32 else (64, 16)
    n_blocks, n_steps = -(-B // block[0]), -(-P // block[1])
    n_parts = min(max(1, PROGRAMS // n_blocks), n_steps)
    n_steps = -(-n_steps // n_parts)
    missing = n_parts * n_steps * block[1] - P
    X, Z, sides = _extended(X, n_blocks * block[0] - B), _extended(Z, missing), _extended(sides, missing)
    sums = _sums(kernel, (X, Z, sides), block, (n_blocks, n_parts, n_steps), interpret)
    n_narrow = len(sides["narrow"]) if "narrow" in sides else 0
    joined = [jnp.sum(sums["wide"], axis=0)[:, : S - n_narrow]] if "wide" in sums else []
    joined += [jnp.sum(sums["narrow"], axis=0).T] if n_narrow else []
    return value_of(kernel.variance, V.dtype) * jnp.concatenate(joined, axis=1)[:B]


def _of_rows(rows: Points) -> Parts:
    apart, coordinates = list(rows.apart), rows.coordinates.T
    if len(apart) + len(coordinates) <= DIRECT:
        return {"apart": jnp.stack([*apart, *coordinates])}
    padded = jnp.pad(coordinates, ((0, -len(coordinates) % DEPTH), (0, 0)))
    parts = {"coordinates": padded, "norms": rows.norms}
    return parts | ({"apart": jnp.stack(apart)} if apart else {})


def _of_sides(V: Float[Array, "P S"]) -> Parts:
    S = V.shape[1]
    n_narrow = S if S <= NARROW else S % DEPTH if S % DEPTH <= NARROW else 0
    n_wide = S - n_narrow
    parts = {"narrow": V[:, n_wide:].T} if n_narrow else {}
    if n_wide:
        width = max(DEPTH, 1 << (n_wide - 1).bit_length())
        parts["wide"] = jnp.pad(V[:, :n_wide], ((0, 0), (0, width - n_wide)))
    return parts


def _extended(parts: Parts, n: int) -> Parts:
    """Append n rows of zeros: along the first axis of "wide", the last axis of the others."""
    pads = lambda name, leaf: [(0, n), (0, 0)] if name == "wide" else [(0, 0)] * (leaf.ndim - 1) + [(0, n)]
    return {name: jnp.pad(leaf, pads(name, leaf)) for name, leaf in parts.items()}


def _specs(parts: Parts, size: int, index: Callable) -> Parts:
    """Return specifications of blocks of `size` rows, at `index(i, p)` of program (i, p)."""

    def spec(name: str, leaf: Array) -> pl.BlockSpec:
        if name == "wide":
            return pl.BlockSpec((size, leaf.shape[1]), lambda i, p: (index(i, p), 0))
        zeros = (0,) * (leaf.ndim - 1)
        return pl.BlockSpec((*leaf.shape[:-1], size), lambda i, p: (*zeros, index(i, p)))

    return {name: spec(name, leaf) for name, leaf in parts.items()}


def _sums(
    kernel: AbstractStationary,
    parts: tuple[Parts, Parts, Parts],
    block: Block,
    grid: tuple[int, int, int],
    interpret: bool,
) -> Parts:
    """Return the sums of all parts: "wide" [parts, B, W] and "narrow" [parts, C, B]."""
    (X, Z, sides), (n_blocks, n_parts, n_steps) = parts, grid
    is_parameter = lambda leaf: isinstance(leaf, AbstractParameter)
    by_value = jax.tree.map(lambda leaf: value_of(leaf, jnp.float32), kernel, is_leaf=is_parameter)
    leaves, tree = jax.tree.flatten(by_value)
    numbers = {i: leaf[None] for i, leaf in enumerate(leaves) if leaf.ndim == 0}  # the parameters of f
    B, n_columns, arrays, specs = n_blocks * block[0], n_steps * block[1], {}, {}
    if "wide" in sides:
        W = sides["wide"].shape[1]
        arrays["wide"] = jax.ShapeDtypeStruct((n_parts, B, W), jnp.float32)
        specs["wide"] = pl.BlockSpec((None, block[0], W), lambda i, p: (p, i, 0))
    if "narrow" in sides:
        C = len(sides["narrow"])
        arrays["narrow"] = jax.ShapeDtypeStruct((n_parts, C, B), jnp.float32)
        specs["narrow"] = pl.BlockSpec((None, C, block[0]), lambda i, p: (p, 0, i))

    def program(number_refs: dict, x: Parts, z: Parts, sides: Parts, out: Parts) -> None:
        own = tree.unflatten([number_refs[i][0] if i in number_refs else None for i in range(len(leaves))])
        _program(own.profile, block, n_steps, (x, z, sides), out)

    return pl.pallas_call(
        program,
        out_shape=arrays,
        grid=(n_blocks, n_parts),
        in_specs=(
            {i: pl.BlockSpec((1,), lambda i, p: (0,)) for i in numbers},
            _specs(X, block[0], lambda i, p: i),
            _specs(Z, n_columns, lambda i, p: p),
            _specs(sides, n_columns, lambda i, p: p),
        ),
        out_specs=specs,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=interpret,
        name="kernel_product",
    )(numbers, X, Z, sides)


def _program(
    profile: Callable[[Array], Array], block: Block, n_steps: int, parts: tuple[Parts, Parts, Parts], out: Parts
) -> None:  # fmt: skip
    """Write the sums of one program, given references to its blocks."""
    x, z, sides = parts
    shape = block
    apart = [x["apart"][q, :] for q in range(x["apart"].shape[0])] if "apart" in x else []

    def step(j: Array, total: Parts) -> Parts:
        at = pl.ds(j * block[1], block[1])
        squares = _squares(x, z, at) if "norms" in x else jnp.zeros(shape, jnp.float32)
        for q, mine in enumerate(apart):
            squares += jnp.square(mine[:, None] - z["apart"][q, at][None, :])
        k, new = profile(squares), {}
        if "wide" in total:
            new["wide"] = total["wide"] + matmul(k, sides["wide"][at, :])
        if "narrow" in total:
            terms = (k * sides["narrow"][c, at][None, :] for c in range(len(total["narrow"])))
            new["narrow"] = tuple(a + b for a, b in zip(total["narrow"], terms, strict=True))
        return new

    start: Parts = {}
    if "wide" in sides:
        start["wide"] = jnp.zeros((block[0], sides["wide"].shape[1]), jnp.float32)
    if "narrow" in sides:
        start["narrow"] = (jnp.zeros(shape, jnp.float32),) * sides["narrow"].shape[0]
    total = jax.lax.fori_loop(0, n_steps, step, start)
    if "wide" in total:
        out["wide"][...] = total["wide"]
    for c, sum_ in enumerate(total.get("narrow", ())):
        out["narrow"][c, :] = jnp.sum(sum_, axis=1)


def _squares(x: Parts, z: Parts, at: Any) -> Float[Array, "R C"]:
    """Return squared distances with a matrix product, as in `squared_distances`."""
    starts = range(0, x["coordinates"].shape[0], DEPTH)
    slices = [pl.ds(first, DEPTH) for first in starts]
    products = sum(matmul(x["coordinates"][some, :].T, z["coordinates"][some, at]) for some in slices)
    norms = x["norms"][...][:, None] + z["norms"][at][None, :]
    return above(norms - 2 * products, norms)
