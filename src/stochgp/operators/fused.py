"""K V in one pass on a GPU: the distances, the kernel and the sum of a tile stay in registers, and nothing of K is written.

One program of the grid has some rows and a part of the columns, which it takes some at a time; the sums of the parts are added at the end, always in the
same order. Every product is in full float32. It is written in Pallas, which JAX compiles by Triton: JAX 0.11 says that a later JAX will not, and there the
import of this file fails and products are by tiles.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from stochgp.kernels import AbstractStationary
from stochgp.kernels.distances import Points, above
from stochgp.numerics.precision import matmul
from stochgp.parameters import AbstractParameter, value_of

DIRECT = 4  # coordinates of a row whose differences are squared one by one; from more on distances are made by a product of matrices
MOST = 128  # coordinates of a row: each costs time here, and hardly any in XLA's tiles
DEPTH = 16  # of a product of matrices, the least that Triton takes: coordinates and wide right-hand sides are filled up to it
NARROW, WIDEST = 2, 128  # right-hand sides: summed one by one at most, and in one call at most
PROGRAMS = 4096  # aimed at: dozens for each of a GPU's hundred multiprocessors


class Block(NamedTuple):
    """What one program holds: powers of two."""

    rows: int
    columns: int  # of a step
    warps: int = 4


class Rows(NamedTuple):
    """Prepared rows, each coordinate in one piece; None where there are none of a kind."""

    apart: Any  # [Q, N], differences taken one by one
    coordinates: Any  # [A, N], A a multiple of `DEPTH`
    norms: Any  # [N], of the coordinates

    @classmethod
    def of(cls, rows: Points) -> "Rows":
        apart, coordinates = list(rows.apart), rows.coordinates.T
        if len(apart) + len(coordinates) <= DIRECT:
            return cls(jnp.stack([*apart, *coordinates]), None, None)
        filled = jnp.pad(coordinates, ((0, -len(coordinates) % DEPTH), (0, 0)))
        return cls(jnp.stack(apart) if apart else None, filled, rows.norms)

    def extended(self, n: int) -> "Rows":
        """With n rows of zeros more."""
        return jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, n)]), self)


class Sides(NamedTuple):
    """Right-hand sides as a program takes them, or sums of them; None where there are none of a kind."""

    wide: Any  # [P, W], W a power of two from `DEPTH` to `WIDEST`
    narrow: Any  # [C, P], C at most `NARROW`

    @classmethod
    def of(cls, V: Float[Array, "P S"]) -> "Sides":
        S = V.shape[1]
        n_narrow = S if S <= NARROW else S % DEPTH if S % DEPTH <= NARROW else 0
        n_wide = S - n_narrow
        narrow = V[:, n_wide:].T if n_narrow else None
        if n_wide == 0:
            return cls(None, narrow)
        width = max(DEPTH, 1 << (n_wide - 1).bit_length())
        return cls(jnp.pad(V[:, :n_wide], ((0, 0), (0, width - n_wide))), narrow)

    def extended(self, n: int) -> "Sides":
        """With n rows of zeros more."""
        wide = None if self.wide is None else jnp.pad(self.wide, ((0, n), (0, 0)))
        return Sides(wide, None if self.narrow is None else jnp.pad(self.narrow, ((0, 0), (0, n))))

    def joined(self, n_rows: int, n_columns: int) -> Float[Array, "B S"]:
        """What `of` took apart, of sums [parts, ...]."""
        narrow = [] if self.narrow is None else [jnp.sum(self.narrow, axis=0).T]
        n_wide = n_columns - sum(part.shape[1] for part in narrow)
        wide = [] if self.wide is None else [jnp.sum(self.wide, axis=0)[:, :n_wide]]
        return jnp.concatenate([*wide, *narrow], axis=1)[:n_rows]


def serves(kernel: Any, rows: Any, V: Float[Array, "P S"]) -> bool:
    """Whether `product` is for these: a function of distances, few enough coordinates, float32."""
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
    """Σ_j k(x_i, z_j) V_js in float32.

    Parameters
    ----------
    kernel : AbstractStationary
        k = variance · f(s).
    rows, columns : Points
        Made by `kernel.prepare` with the same centre, B and P of them.
    V : array [P, S]
        Right-hand sides, float32.
    block : Block, optional
        None = by the numbers of coordinates and of right-hand sides.
    interpret : bool
        Whether to run the programs one by one, on any device.
    """
    S = V.shape[1]
    if S > WIDEST:
        parts = [V[:, start : start + WIDEST] for start in range(0, S, WIDEST)]
        one = partial(product, kernel, rows, columns, block=block, interpret=interpret)
        return jnp.concatenate([one(part) for part in parts], axis=1)
    X, Z, sides = Rows.of(rows), Rows.of(columns), Sides.of(V)
    B, P = rows.norms.shape[0], columns.norms.shape[0]
    grid = Grid.of(B, P, _block(X, sides) if block is None else block)
    missing = grid.n_parts * grid.n_columns - P
    X, Z, sides = X.extended(grid.n_rows - B), Z.extended(missing), sides.extended(missing)
    sums = _sums(kernel, X, Z, sides, grid, interpret)
    return value_of(kernel.variance, V.dtype) * sums.joined(B, S)


class Grid(NamedTuple):
    """How many programs there are and what each does."""

    block: Block
    n_blocks: int  # of rows
    n_parts: int  # of the columns
    n_steps: int  # of a part

    @classmethod
    def of(cls, n_rows: int, n_columns: int, block: Block) -> "Grid":
        n_blocks, n_steps = -(-n_rows // block.rows), -(-n_columns // block.columns)
        n_parts = min(max(1, PROGRAMS // n_blocks), n_steps)
        return cls(block, n_blocks, n_parts, -(-n_steps // n_parts))

    @property
    def n_rows(self) -> int:
        """Of all programs."""
        return self.n_blocks * self.block.rows

    @property
    def n_columns(self) -> int:
        """Of a part."""
        return self.n_steps * self.block.columns

    def of_rows(self, leaf: Array) -> pl.BlockSpec:
        """Where a program's rows are in an array whose last axis they are."""
        zeros = (0,) * (leaf.ndim - 1)
        return pl.BlockSpec((*leaf.shape[:-1], self.block.rows), lambda i, p: (*zeros, i))

    def of_columns(self, leaf: Array) -> pl.BlockSpec:
        """Where a program's part of the columns is in an array whose last axis they are."""
        zeros = (0,) * (leaf.ndim - 1)
        return pl.BlockSpec((*leaf.shape[:-1], self.n_columns), lambda i, p: (*zeros, p))

    def of_sides(self, sides: Sides) -> Sides:
        """Where a program's part of the right-hand sides is."""
        wide, narrow = sides
        if wide is not None:
            wide = pl.BlockSpec((self.n_columns, wide.shape[1]), lambda i, p: (p, 0))
        return Sides(wide, None if narrow is None else self.of_columns(narrow))

    def of_sums(self, sides: Sides) -> tuple[Sides, Sides]:
        """Sums [parts, B, W] and [parts, C, B], and where a program's are."""
        arrays, specs = Sides(None, None), Sides(None, None)
        if sides.wide is not None:
            W = sides.wide.shape[1]
            arrays = arrays._replace(wide=jax.ShapeDtypeStruct((self.n_parts, self.n_rows, W), jnp.float32))
            specs = specs._replace(wide=pl.BlockSpec((None, self.block.rows, W), lambda i, p: (p, i, 0)))
        if sides.narrow is not None:
            C = len(sides.narrow)
            arrays = arrays._replace(narrow=jax.ShapeDtypeStruct((self.n_parts, C, self.n_rows), jnp.float32))
            specs = specs._replace(narrow=pl.BlockSpec((None, C, self.block.rows), lambda i, p: (p, 0, i)))
        return arrays, specs


def _block(X: Rows, sides: Sides) -> Block:
    """The fastest of some on an H200."""
    n_wide = 0 if sides.wide is None else sides.wide.shape[1]
    if X.coordinates is None:
        return Block(64, 16) if n_wide else Block(32, 64)
    return Block(64, 32) if n_wide <= 32 else Block(64, 16)


def _sums(kernel: AbstractStationary, X: Rows, Z: Rows, sides: Sides, grid: Grid, interpret: bool) -> Sides:
    """Of the parts, [parts, B, W] and [parts, C, B]."""
    by_value = jax.tree.map(lambda leaf: value_of(leaf, jnp.float32), kernel, is_leaf=_is_parameter)
    leaves, tree = jax.tree.flatten(by_value)
    numbers = {i: leaf[None] for i, leaf in enumerate(leaves) if leaf.ndim == 0}  # what f may read

    def program(number_refs: dict, x: Rows, z: Rows, sides: Sides, *out: Any) -> None:
        own = tree.unflatten([number_refs[i][0] if i in number_refs else None for i in range(len(leaves))])
        _program(own.profile, grid, x, z, sides, Sides(*out))

    arrays, sum_specs = grid.of_sums(sides)
    return pl.pallas_call(
        program,
        out_shape=arrays,
        grid=(grid.n_blocks, grid.n_parts),
        in_specs=(
            jax.tree.map(lambda _: pl.BlockSpec((1,), lambda i, p: (0,)), numbers),
            jax.tree.map(grid.of_rows, X),
            jax.tree.map(grid.of_columns, Z),
            grid.of_sides(sides),
        ),
        out_specs=sum_specs,
        compiler_params=triton.CompilerParams(num_warps=grid.block.warps, num_stages=2),
        interpret=interpret,
        name="kernel_product",
    )(numbers, X, Z, sides)


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, AbstractParameter)


def _program(
    profile: Callable[[Array], Array], grid: Grid, x: Rows, z: Rows, sides: Sides, out: Sides
) -> None:
    """The sums of one program, of references to what is its own."""
    block = grid.block
    shape = (block.rows, block.columns)
    apart = [] if x.apart is None else [x.apart[q, :] for q in range(x.apart.shape[0])]

    def step(j: Array, total: Sides) -> Sides:
        at = pl.ds(j * block.columns, block.columns)
        squares = _squares(x, z, at, shape)
        for q, mine in enumerate(apart):
            squares += jnp.square(mine[:, None] - z.apart[q, at][None, :])
        k = profile(squares)
        wide, narrow = total
        if wide is not None:
            wide += matmul(k, sides.wide[at, :])
        if narrow is not None:
            narrow = tuple(sum_ + k * sides.narrow[c, at][None, :] for c, sum_ in enumerate(narrow))
        return Sides(wide, narrow)

    none = Sides(
        None if sides.wide is None else jnp.zeros((block.rows, sides.wide.shape[1]), jnp.float32),
        None if sides.narrow is None else (jnp.zeros(shape, jnp.float32),) * sides.narrow.shape[0],
    )
    total = jax.lax.fori_loop(0, grid.n_steps, step, none)
    if total.wide is not None:
        out.wide[...] = total.wide
    if total.narrow is not None:
        for c, sum_ in enumerate(total.narrow):
            out.narrow[c, :] = jnp.sum(sum_, axis=1)


def _squares(x: Rows, z: Rows, at: Any, shape: tuple[int, int]) -> Float[Array, "R C"]:
    """Squared distances by the coordinates that are not apart, as `squared_distances` has them."""
    zeros = jnp.zeros(shape, jnp.float32)
    if x.coordinates is None:
        return zeros
    products = zeros
    for first in range(0, x.coordinates.shape[0], DEPTH):
        some = pl.ds(first, DEPTH)
        products += matmul(x.coordinates[some, :].T, z.coordinates[some, at])
    norms = x.norms[...][:, None] + z.norms[at][None, :]
    return above(norms - 2 * products, norms)
