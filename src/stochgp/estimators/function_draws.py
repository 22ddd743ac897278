"""Functions drawn from a posterior, in the user's units."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.compiled import quick_jit
from stochgp.data import Standardiser
from stochgp.data.blocks import hash_again
from stochgp.data.fingerprint_rows import is_packed
from stochgp.data.reading import Encoder
from stochgp.data.standardise import ModelRows
from stochgp.numerics.precision import full_precision
from stochgp.observations import AbstractMeanFunction
from stochgp.parameters import cast
from stochgp.posteriors import AbstractFunctions
from stochgp.tables.encoding import STAND_INS, known_instead
from stochgp.transforms import AbstractTransform

ROWS = 256  # of one evaluation of functions


class AbstractDraws(eqx.Module):
    """S functions: `draws(X)` are their values at rows X, in the user's units."""

    @property
    @abc.abstractmethod
    def n_samples(self) -> int:
        """S."""

    @abc.abstractmethod
    def __call__(self, X: Any) -> Any:
        """[N, S]; of a NumPy array or a data frame a NumPy array in float64, of a JAX array a JAX array where that can be."""

    @abc.abstractmethod
    def at_numbers(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        """The values at rows whose text columns are encoded already."""


class FunctionDraws(AbstractDraws):
    """S functions drawn from a posterior: f(X) are their values, in target units, at rows X in the units given to `fit`.

    A JAX array X [N, D] gives a JAX array [N, S] in its dtype, differentiable in X, under any transformation of JAX. A NumPy array or a
    data frame gives a NumPy array [N, S] in float64, in blocks of rows; so do fingerprints of any kind.
    """

    functions: AbstractFunctions
    center: Float[Array, " D"]
    scale: Float[Array, " D"]
    target_mean: Float[Array, ""]
    target_scale: Float[Array, ""]
    encoder: Encoder | None = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    transform: AbstractTransform | None = None
    mean_function: AbstractMeanFunction | None = None
    normals: Float[Array, "R S"] | None = None  # z of each draw of the mean function

    @property
    def n_samples(self) -> int:
        return self.functions.n_samples

    def __call__(self, X: Any) -> Any:
        if isinstance(X, jax.Array) and not is_packed(self.encoder):
            return self._on_device(X)
        return self.at_numbers(np.asarray(X) if self.encoder is None else self.encoder.transform(X))

    def at_numbers(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        found, (new, instead) = self._at(X), known_instead(self.encoder, X)
        if new.any():  # a draw at a row is of the known level that its own bits determine
            level = hash_again(found[new].view(np.uint64), 0) % np.uint64(STAND_INS)
            found[new] = sum((level == k) * self._at(Z) for k, Z in enumerate(instead))
        return found

    def _at(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        inputs = Standardiser(np.asarray(self.center), np.asarray(self.scale))
        targets = Standardiser(np.asarray(self.target_mean), np.asarray(self.target_scale))
        rows = ModelRows(X, inputs, self.dtype)
        (values,) = rows.by_block(lambda Z: (_apply(self.functions, Z),), ROWS)
        values, m = targets.inverse(values), self.mean_function
        return self._back(
            values if m is None else values + m(X)[:, None] + m.deviations(X) @ np.asarray(self.normals)
        )

    def _on_device(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        if X.ndim != 2 or X.shape[1] != len(self.center) or not jnp.issubdtype(X.dtype, jnp.floating):
            raise ValueError(
                f"expected floating rows [N, {len(self.center)}], but got {X.dtype} of shape {X.shape}"
            )
        Z = (X - self.center.astype(X.dtype)) / self.scale.astype(X.dtype)
        functions = cast(self.functions, X.dtype)  # float64 where it may not be used
        values = functions(Z) * self.target_scale.astype(X.dtype) + self.target_mean.astype(X.dtype)
        if (m := self.mean_function) is not None and self.normals is not None:
            with full_precision():
                values += m.on_device(X)[:, None] + m.deviations(X, jnp) @ self.normals.astype(X.dtype)
        return self._back(values)

    def _back(self, values: Any) -> Any:
        """In the units of y."""
        return values if self.transform is None else self.transform.inverse(values)


@quick_jit
def _apply(functions: AbstractFunctions, X: Any) -> Array:
    return functions(jnp.asarray(X))
