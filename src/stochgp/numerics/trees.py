"""Sums of symmetric trees: piecewise constant functions of rows."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from stochgp.numerics.arrays import on_device

FEW_ROWS = 32  # up to this many rows, all trees are evaluated at once


class Trees(eqx.Module):
    """The function g(x) = Σ_t leaves[t, b_t(x)] of symmetric trees t with depth d.

    Binary digit k = 1 … d of the leaf number b_t(x) is 1 if x[inputs[t, k]] > thresholds[t, k], else 0.
    """

    __getattribute__ = object.__getattribute__  # plain methods, which are no pytrees

    inputs: Int32[Any, "T d"]
    thresholds: Float[Any, "T d"]
    leaves: Float[Any, "T L"]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """Return g(x) for each row, one tree after the other."""
        place = 2 ** jnp.arange(self.inputs.shape[1] - 1, -1, -1, dtype=jnp.int32)

        def add(total: Array, tree: tuple[Array, Array, Array]) -> tuple[Array, None]:
            inputs, thresholds, leaves = tree
            leaf = jnp.sum((X[:, inputs] > thresholds.astype(X.dtype)) * place, axis=1)
            return total + leaves.astype(X.dtype)[leaf], None

        zeros = jnp.zeros(X.shape[0], X.dtype)
        return jax.lax.scan(add, zeros, (self.inputs, self.thresholds, self.leaves))[0]

    def plus(self, constant: float) -> "Trees":
        """Return g(x) + constant."""
        leaves = np.array(self.leaves)
        leaves[0] += constant
        with jax.enable_x64(True):
            return Trees(self.inputs, self.thresholds, on_device(leaves, leaves.dtype))

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return g(x) for each row, computed with NumPy."""
        inputs, thresholds, leaves = (
            np.asarray(part) for part in (self.inputs, self.thresholds, self.leaves)
        )
        if 0 < len(X) <= FEW_ROWS and len(leaves):  # all trees at once, summed in the same order
            place = 2 ** np.arange(inputs.shape[1])[::-1]
            leaf = (X[:, inputs] > thresholds) @ place
            return np.cumsum(leaves[np.arange(len(leaves)), leaf], axis=1, dtype=np.float64)[:, -1]
        total, columns = np.zeros(len(X)), np.ascontiguousarray(X.T)
        for j, cut, values in zip(inputs, thresholds, leaves, strict=True):
            leaf = np.zeros(len(X), np.int64)
            for k in range(len(j)):
                leaf = 2 * leaf + (columns[j[k]] > cut[k])
            total += values[leaf]
        return total


def joined(trees: Sequence[Trees], factor: float = 1.0) -> Trees:
    """Return the sum of the trees times a factor, on the device."""
    every = [(tree.inputs, tree.thresholds, tree.leaves) for tree in trees]
    inputs, thresholds, leaves = (np.concatenate(part) for part in zip(*every, strict=True))
    with jax.enable_x64(True):
        return Trees(
            on_device(inputs, np.int32),
            on_device(thresholds, np.float64),
            on_device(factor * leaves, np.float64),
        )
