"""Draws of functions from GP(0, k), made from random features.

A kernel is a sum of terms v · Π_l x_l·z_l · Π_w E cos(ω_wᵀ(x_w − z_w)) · Π_h P(h(x_h) = h(z_h)). Here x_l are
inputs of linear kernels. x_w are scaled inputs of stationary kernels (or circles of periodic kernels), with
random frequencies ω_w. x_h are inputs of Tanimoto kernels, with random hashes h. Draw all ω_w, vectors r_l
with E r_l r_lᵀ = I, and signs ξ_h = ±1 of hashes. Each such draw gives a term two features,

    √v · Π_l r_lᵀx_l · Π_h ξ_h(h(x_h)) · [cos(Σ_w ω_wᵀx_w), sin(Σ_w ω_wᵀx_w)].

Lengths of frequencies are stratified. Purely linear terms use exact features if few features suffice.
Sources: Rahimi and Recht (2007); Yu et al. (2016) for directions; Kar and Karnick (2012) for linear forms.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.features.base import check_rows
from stochgp.features.fourier import orthogonal_directions, stratified_frequencies
from stochgp.features.hashing import draw_hashes, hash_signs
from stochgp.kernels import dense
from stochgp.kernels.base import Product, Sum, as_kernel, select
from stochgp.kernels.linear import Constant, Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import RBF, AbstractStationary
from stochgp.kernels.tanimoto import Tanimoto
from stochgp.kernels.warped import Warped
from stochgp.numerics import seeds
from stochgp.numerics.arrays import einsum, matmul, on_device
from stochgp.parameters import AbstractParameter, Frozen, frozen, value_of

__all__ = ["prior_functions"]

GROUP = 4  # number of functions that share random features
BLOCK = 512  # rows per block of features in memory

Rows = tuple[Array, tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]
"""Inputs of a term at N rows: ones [N, 1], and inputs [N, A] of linear, wave and hashed factors."""


class Term(NamedTuple):
    """A term of a kernel, with the inputs of the term at some rows."""

    variance: Float[Array, ""]
    rows: Rows
    scales: tuple[Callable[..., Any], ...]  # functions that draw n lengths of an ω_w
    packed: tuple[bool, ...] = ()  # True for each x_h of packed bits

    @property
    def n_exact(self) -> int | None:
        """The number of exact features; None if the term needs random features."""
        _, linear, waves, hashed = self.rows
        return None if waves or hashed else math.prod(x.shape[1] for x in linear)


class PriorFunctions(eqx.Module):
    """S differentiable functions f_s(x) = φ(x)·w_s with weights w_s ~ N(0, I).

    A call maps rows [N, D] to values [N, S]. Each of G groups of functions has its own random features φ.
    """

    kernel: Any = eqx.field(converter=as_kernel)  # possibly frozen
    draws: Frozen  # for each term a `Draw` with a first axis G, or None for exact features
    weights: Float[Array, "G M L"]  # w_s of L functions in each group
    n_inputs: int = eqx.field(static=True)
    n_samples: int = eqx.field(static=True)  # at most G · L

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        check_rows(X, self.n_inputs)
        return _evaluate(self, X)

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        """Return f_s(x), without compiling for sums of stationary kernels (`kernels.dense`)."""
        if (terms := dense.terms_of(self.kernel)) is None:
            return np.asarray(self(jnp.asarray(X)))
        found = np.empty((len(X), math.prod(self.weights.shape[::2])), X.dtype)
        for g, weights in enumerate(np.asarray(self.weights)):
            parts = [
                (term, np.asarray(draw.frequencies[g]))
                for term, draw in zip(terms, self.draws.content, strict=True)
            ]
            columns = slice(g * weights.shape[1], (g + 1) * weights.shape[1])
            for start in range(0, len(X), BLOCK):
                rows, waves = slice(start, start + BLOCK), []
                for term, frequencies in parts:
                    angles = 2 * np.pi * (term.scaled(X[rows]) @ frequencies.astype(X.dtype))
                    root = math.sqrt(term.variance / frequencies.shape[1])
                    waves += [root * np.cos(angles), root * np.sin(angles)]
                found[rows, columns] = np.concatenate(waves, axis=1) @ weights.astype(X.dtype)
        return found[:, : self.n_samples]

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        """Return the values of each f_s at its own rows Z_s."""
        check_rows(Z[0], self.n_inputs)
        return _evaluate_own(self, Z)


def prior_functions(
    kernel: Any,
    n_inputs: int,
    n_samples: int,
    *,
    n_features: int = 2000,
    group: int = GROUP,
    key: PRNGKeyArray,
    dtype: DTypeLike = jnp.float32,
) -> PriorFunctions:
    """Draw `n_samples` functions from GP(0, kernel) with the present hyperparameters.

    Over random keys, draws have the mean 0 and the covariance k. For a rational quadratic kernel, frequencies
    are drawn for the present value of `alpha`. Raises TypeError for a kernel without random features, and
    ValueError if `n_features` is too small or if `n_samples` or `group` is below 1.

    Parameters
    ----------
    kernel : AbstractKernel
        A kernel of stochgp or another `AbstractStationary`.
    n_inputs, n_samples : int
        The number of inputs, and the number of functions.
    n_features, group : int
        The maximum number of features of all terms, and of functions with the same features.
    key, dtype
        The random key, and the dtype of features and weights.
    """
    if n_samples < 1 or group < 1:
        raise ValueError(f"n_samples is {n_samples} and group is {group}; both must be at least 1")
    n_groups, dtype = -(-n_samples // group), jnp.dtype(dtype)
    terms, columns = _plan(kernel, n_inputs, n_features, dtype)
    draw_key, weight_key = seeds.split_key(key)
    keys = seeds.split_key(draw_key, n_groups)
    # Numbers are drawn in float32 on the host, without compiling.
    draws = [_draws(terms, columns, own) for own in keys]
    weights = seeds.normal(weight_key, (n_groups, sum(columns), -(-n_samples // n_groups)), jnp.float32)
    stacked = jax.tree.map(lambda *parts: _stacked(parts, dtype), *draws)
    return PriorFunctions(kernel, stacked, _stacked(list(weights), dtype), n_inputs, n_samples)


def spread_values(
    functions: PriorFunctions, X: Float[Array, "N D"], log_scales: Float[Array, "N D"]
) -> Float[Array, "N S"]:
    """Return inner products of prior functions with inducing functions of other widths at X.

    The kernel is RBF with lengthscales ℓ_d; `log_scales` contains log c_d. Inducing functions have the widths
    ℓ_d c_d, so features of frequency ω are multiplied by Π_d √c_d exp(−(c_d² − 1) ℓ_d² ω_d²/4).
    """
    kernel = value_of(functions.kernel)
    terms, c = terms_of(kernel, X), select(log_scales, kernel.active_dims)

    def group(of: tuple[Frozen, Array]) -> Array:
        draws, weights = of[0].value, of[1].astype(X.dtype)
        squares = jnp.square(math.pi * draws[0].frequencies.astype(X.dtype))
        gain = jnp.exp(0.5 * jnp.sum(c, axis=1)[:, None] - matmul(jnp.exp(2 * c) - 1, squares))
        waves = _features([term.variance for term in terms], [term.rows for term in terms], draws)
        return matmul(waves * jnp.concatenate([gain, gain], axis=1), weights)

    found = jax.lax.map(group, (functions.draws, functions.weights))  # [G, N, L]
    return jnp.moveaxis(found, 0, 1).reshape(X.shape[0], -1)[:, : functions.n_samples]


class Draw(NamedTuple):
    """Random numbers for the F features of a term."""

    directions: tuple[Array, ...]  # r_l [A, F] of each linear factor with A inputs
    frequencies: Any  # [ΣA, F] for all waves (or None), in turns (1 turn = 2π)
    hashes: tuple[
        Any, ...
    ] = ()  # F keys [F, 2] per hashed factor; `_drawn` replaces them with random numbers


def _plan(kernel: Any, n_inputs: int, n_features: int, dtype: DTypeLike) -> tuple[list[Term], list[int]]:
    """Return the terms of a kernel at a row of zeros, and the number of features of each."""
    terms, row = [], jnp.zeros((1, n_inputs), dtype)
    if dense.terms_of(kernel) is None:
        terms = terms_of(kernel, row)
    else:  # no parameter values are needed
        jax.eval_shape(lambda X: terms.extend(terms_of(kernel, X)), row)
    return terms, share([term.n_exact for term in terms], n_features)


def _stacked(parts: Sequence[Any], dtype: Any) -> Array:
    """Stack arrays along a new first axis, with floating arrays in `dtype`."""
    dtype = dtype if jnp.issubdtype(parts[0].dtype, jnp.floating) else parts[0].dtype
    return on_device(np.stack(parts), dtype)


def _draws(terms: list[Term], columns: list[int], key: PRNGKeyArray) -> Frozen:
    parts = zip(terms, columns, seeds.split_key(key, len(terms)), strict=True)
    return Frozen(tuple(_draw(*part) for part in parts))


def _draw(term: Term, n_columns: int, key: PRNGKeyArray) -> Draw | None:
    """Draw the random numbers of a term, or return None if its features are exact."""
    if term.n_exact == n_columns:
        return None
    _, linear, waves, _ = term.rows
    n = n_columns // 2 if waves else n_columns
    keys = iter(seeds.split_key(key, len(linear) + len(waves) + len(term.packed)))
    directions, frequencies = [], []
    for x in linear:
        drawn = orthogonal_directions(n, x.shape[1], next(keys), jnp.float32)
        directions.append(x.shape[1] ** 0.5 * drawn.T)
    for x, scales in zip(waves, term.scales, strict=True):
        drawn = stratified_frequencies(n, x.shape[1], scales, next(keys), jnp.float32)
        frequencies.append(drawn.T / (2 * math.pi))
    hashes = tuple(jax.random.key_data(jax.random.split(next(keys), n)) for _ in term.packed)
    return Draw(tuple(directions), np.concatenate(frequencies) if waves else None, hashes)


def _drawn(terms: Sequence[Term], draws: Sequence[Draw | None]) -> list[Draw | None]:
    """Return the draws with random numbers in place of the keys of hashes."""

    def numbers(term: Term, draw: Draw | None) -> Draw | None:
        if draw is None or not term.packed:
            return draw
        factors = zip(term.packed, term.rows[3], draw.hashes, strict=True)
        return draw._replace(
            hashes=tuple(draw_hashes(packed, x.shape[1], keys, x.dtype) for packed, x, keys in factors)
        )

    return [numbers(*of) for of in zip(terms, draws, strict=True)]


def _features(variances: Sequence[Array], rows: Sequence[Rows], draws: Sequence[Draw | None]) -> Array:
    """Return the features [N, M] of all terms."""
    return jnp.concatenate([_columns(*term) for term in zip(variances, rows, draws, strict=True)], axis=1)


def _columns(variance: Array, rows: Rows, draw: Draw | None) -> Array:
    ones, linear, waves, hashed = rows
    if draw is None:
        outer = lambda a, b: (a[:, :, None] * b[:, None, :]).reshape(a.shape[0], -1)
        return jnp.sqrt(variance) * functools.reduce(outer, linear, ones)
    forms = [matmul(x, r.astype(x.dtype)) for x, r in zip(linear, draw.directions, strict=True)]  # [N, F]
    signs = [hash_signs(x, of) for x, of in zip(hashed, draw.hashes, strict=True)]
    form = functools.reduce(jnp.multiply, forms + signs, ones)
    if draw.frequencies is None:
        return jnp.sqrt(variance / form.shape[1]) * form
    turns = matmul(jnp.concatenate(waves, axis=1), draw.frequencies.astype(form.dtype))  # [N, F]
    angles = 2 * math.pi * (turns - jnp.round(turns))
    Phi = jnp.concatenate([form * jnp.cos(angles), form * jnp.sin(angles)], axis=1)
    return jnp.sqrt(variance / turns.shape[1]) * Phi


@quick_jit
def _evaluate(functions: PriorFunctions, X: Array) -> Array:
    """Return the values [N, S], with features of one group and one block at a time."""
    terms, n = terms_of(functions.kernel, X), X.shape[0]
    n_blocks = max(1, -(-n // BLOCK))
    size = -(-n // n_blocks)

    def split(x: Array) -> Array:
        return jnp.pad(x, ((0, n_blocks * size - n), (0, 0))).reshape(n_blocks, size, x.shape[1])

    blocks = jax.tree.map(split, [term.rows for term in terms])

    @jax.checkpoint
    def values(rows: list[Rows], draws: Sequence, weights: Array) -> Array:
        return matmul(_features([term.variance for term in terms], rows, draws), weights)  # [size, L]

    def group(of: tuple[Frozen, Array]) -> Array:
        draws, weights = _drawn(terms, of[0].value), of[1].astype(X.dtype)
        return jax.lax.map(lambda rows: values(rows, draws, weights), blocks)

    found = jax.lax.map(group, (functions.draws, functions.weights))  # [G, n_blocks, size, L]
    found = jnp.moveaxis(found, 0, 2).reshape(n_blocks * size, found.shape[0] * found.shape[-1])
    return found[:n, : functions.n_samples]


def _evaluate_own(functions: PriorFunctions, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
    """Return the values [S, R], one group of functions at a time."""
    (S, R, D), (G, _, L) = Z.shape, functions.weights.shape
    rows = jnp.pad(Z, ((0, G * L - S), (0, 0), (0, 0))).reshape(G * L * R, D)
    terms = terms_of(functions.kernel, rows)
    parts = jax.tree.map(lambda x: x.reshape(G, L * R, x.shape[1]), [term.rows for term in terms])

    @jax.checkpoint
    def group(of: tuple[list[Rows], Frozen, Array]) -> Array:
        rows, draws, weights = of
        Phi = _features([term.variance for term in terms], rows, _drawn(terms, draws.value))  # [L R, M]
        return einsum("lrm,ml->lr", Phi.reshape(L, R, Phi.shape[1]), weights.astype(Z.dtype))

    found = jax.lax.map(group, (parts, functions.draws, functions.weights))  # [G, L, R]
    return found.reshape(G * L, R)[:S]


def terms_of(kernel: Any, X: Array) -> list[Term]:
    """Return terms of a kernel at rows X. Raises TypeError if it has no random features."""
    kernel = value_of(kernel)
    linear, waves, scales, hashed, packed = (), (), (), (), ()
    match kernel:
        case Sum():
            return terms_of(kernel.left, X) + terms_of(kernel.right, X)
        case Product():
            right = terms_of(kernel.right, X)
            return [_product(a, b) for a in terms_of(kernel.left, X) for b in right]
        case Warped():
            return terms_of(kernel.kernel, kernel.rows(X))
        case AbstractStationary():
            scale = (
                kernel.frequency_scales
                if type(kernel) in dense.PROFILES
                else functools.partial(_scales, kernel)
            )
            waves, scales = (kernel.scaled(X),), (scale,)
        case Periodic():  # an RBF kernel on circles
            waves, scales = (kernel.circles(X),), (RBF().frequency_scales,)
        case Linear():
            linear = (select(X, kernel.active_dims),)
        case Tanimoto():
            hashed, packed = (select(X, kernel.active_dims),), (kernel.packed,)
        case Constant():
            pass
        case _:
            drawn = "prior functions need kernels of stochgp or subclasses of kernels.AbstractStationary"
            raise TypeError(f"a {type(kernel).__name__} has no random features: {drawn}")
    rows = jnp.ones((X.shape[0], 1), X.dtype), linear, waves, hashed
    return [Term(value_of(kernel.variance, X.dtype), rows, scales, packed)]


def _product(a: Term, b: Term) -> Term:
    parts: Any = (left + right for left, right in zip(a.rows[1:], b.rows[1:], strict=True))
    return Term(a.variance * b.variance, (a.rows[0], *parts), a.scales + b.scales, a.packed + b.packed)


def _scales(kernel: Any, n: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Any, " n"]:
    """Draw lengths of frequencies with all parameters frozen."""
    is_parameter = lambda node: isinstance(node, AbstractParameter)
    fixed = jax.tree.map(lambda n: frozen(n) if is_parameter(n) else n, kernel, is_leaf=is_parameter)
    return fixed.frequency_scales(n, key=key, dtype=dtype)


def share(needs: Sequence[int | None], n_features: int) -> list[int]:
    """Divide `n_features` among terms that need these numbers (None: any even number)."""
    columns, left = [0] * len(needs), n_features
    infinite = [need is None for need in needs]
    order = sorted(range(len(needs)), key=lambda i: (infinite[i], needs[i] or 0))
    for place, i in enumerate(order):
        part, need = left // (len(needs) - place), needs[i]
        columns[i] = part - part % 2 if need is None else min(part, need)
        left -= columns[i]
    if min(columns) < 1:
        n = len(needs)
        raise ValueError(f"n_features is {n_features}; a kernel of {n} terms needs at least {2 * n} features")
    return columns
