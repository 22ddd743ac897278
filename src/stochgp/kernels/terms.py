"""Kernels as sums of terms, the basis of their random features.

    k(x, z) = Σ_t v_t · Π_l x_l·z_l · Π_w E cos(ω_wᵀ(x_w − z_w)) · Π_h P(h(x_h) = h(z_h)),

with sums inside products distributed and deep kernels opened. x_l are the inputs of a linear kernel; x_w the inputs of a stationary kernel
divided by its lengthscale, or the circles of a periodic one; ω_w is a draw from its spectral density; x_h the inputs of a Tanimoto kernel, and
h a random hash of them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.kernels.base import Product, Sum, select
from stochgp.kernels.dense import PROFILES
from stochgp.kernels.linear import Constant, Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import RBF, AbstractStationary
from stochgp.kernels.tanimoto import Tanimoto
from stochgp.kernels.warped import Warped
from stochgp.parameters import AbstractParameter, frozen, value_of

Rows = tuple[Array, tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]
"""The rows' inputs to a term, [N, A] each: ones [N, 1], and the inputs of linear, wave and hashed factors."""


class Term(NamedTuple):
    """A term at some rows."""

    variance: Float[Array, ""]
    rows: Rows
    scales: tuple[Callable[..., Any], ...]  # each draws n lengths of an ω_w
    packed: tuple[bool, ...] = ()  # True for each x_h with sets of bits

    @property
    def n_exact(self) -> int | None:
        """The number of features if they are exact; None = infinitely many."""
        _, linear, waves, hashed = self.rows
        return None if waves or hashed else math.prod(x.shape[1] for x in linear)


def terms_of(kernel: Any, X: Array) -> list[Term]:
    """Return the terms of a kernel at the rows X. Raises TypeError if it has no features."""
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
            scale = kernel.frequency_scales if type(kernel) in PROFILES else partial(_scales, kernel)
            waves, scales = (kernel.scaled(X),), (scale,)
        case Periodic():  # the RBF kernel on its circles
            waves, scales = (kernel.circles(X),), (RBF().frequency_scales,)
        case Linear():
            linear = (select(X, kernel.active_dims),)
        case Tanimoto():
            hashed, packed = (select(X, kernel.active_dims),), (kernel.packed,)
        case Constant():
            pass
        case _:
            drawn = "prior functions can be drawn for the kernels of stochgp and for kinds of kernels.AbstractStationary"
            raise TypeError(f"a {type(kernel).__name__} has no random features: {drawn}")
    rows = jnp.ones((X.shape[0], 1), X.dtype), linear, waves, hashed
    return [Term(value_of(kernel.variance, X.dtype), rows, scales, packed)]


def _product(a: Term, b: Term) -> Term:
    parts: Any = (left + right for left, right in zip(a.rows[1:], b.rows[1:], strict=True))
    return Term(a.variance * b.variance, (a.rows[0], *parts), a.scales + b.scales, a.packed + b.packed)


def _scales(kernel: Any, n: int, *, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Any, " n"]:
    """Draw lengths of frequencies with every parameter frozen at its value."""
    is_parameter = lambda node: isinstance(node, AbstractParameter)
    fixed = jax.tree.map(lambda n: frozen(n) if is_parameter(n) else n, kernel, is_leaf=is_parameter)
    return fixed.frequency_scales(n, key=key, dtype=dtype)


def share(needs: Sequence[int | None], n_features: int) -> list[int]:
    """Return the features of each term: its need, or an equal part of the remaining features.

    A term of need None takes an even number, as many as possible. Raises ValueError if a term would get none.
    """
    columns, left = [0] * len(needs), n_features
    infinite = [need is None for need in needs]
    order = sorted(range(len(needs)), key=lambda i: (infinite[i], needs[i] or 0))
    for place, i in enumerate(order):
        part, need = left // (len(needs) - place), needs[i]
        columns[i] = part - part % 2 if need is None else min(part, need)
        left -= columns[i]
    if min(columns) < 1:
        n = len(needs)
        raise ValueError(f"n_features is {n_features}; a kernel of {n} terms needs at least {2 * n}")
    return columns
