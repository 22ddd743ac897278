"""The interface of posteriors, in the units of the model."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.data.rows import Data

Rows = Float[Array | np.ndarray, "N D"]
PerRow = Float[Array | np.ndarray, " N"]


class AbstractFunctions(eqx.Module):
    """S functions drawn from a posterior: a differentiable map X [N, D] ↦ [N, S], for any rows and any number of calls."""

    @property
    @abc.abstractmethod
    def n_samples(self) -> int:
        """The number S of functions."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        """Return f_s(x) for each row and each function."""

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        """Return f_s at its own rows Z_s [R, D]. The default evaluates all S functions at these rows; a subclass may be faster."""
        own = lambda of: self(of[1])[:, of[0]]
        return jax.lax.map(own, (jnp.arange(len(Z)), Z))

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        """Return f_s(x) for rows in host memory. A subclass may avoid compiling."""
        return np.asarray(_values(self, X))


class AbstractPosterior(eqx.Module):
    """The posterior of f, with its means, variances and covariances.

    `observations.Observation` has those of observations. Call the methods inside `jax.enable_x64(True)`. They compile for a number of rows, or
    compute on the host. `mean` and `mean_and_variance` take a block of `block_rows` rows: fill up the last block, so that nothing else is
    compiled. `block_rows` is None if they accept any number of rows.
    """

    # Methods are plain ones: Equinox would make a pytree of each that is called.
    __getattribute__ = object.__getattribute__

    block_rows: eqx.AbstractClassVar[int | None]
    leaves_groups_out: ClassVar[bool] = (
        False  # True if `errors_of_left_out` leaves out the other rows of a group too
    )

    @property
    def dtype(self) -> str | None:
        """The dtype of rows for predictions; None = that of the model."""
        return None

    @abc.abstractmethod
    def mean(self, X: Rows) -> PerRow:
        """Return E f(x) for each row."""

    @abc.abstractmethod
    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """Return E f(x) and var f(x) ≥ 0 for each row."""

    def latent_moments(
        self, X: Rows
    ) -> tuple[Float[Array | np.ndarray, "N L"], Float[Array | np.ndarray, "N L"]]:
        """Return mean and variance of every latent function, for one block of rows."""
        mean, variance = self.mean_and_variance(X)
        return mean[:, None], variance[:, None]

    @abc.abstractmethod
    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """Return cov(f(x), f(z)) for all pairs of rows, positive semi-definite up to rounding. ValueError if it is unknown."""

    @abc.abstractmethod
    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> AbstractFunctions:
        """Return functions drawn from the posterior. ValueError if it predicts only single rows."""

    @abc.abstractmethod
    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        """Return the least memory for predictions, `covariance` or drawn functions, with their results; 0 if they are refused."""

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"] | None:
        """Return leave-one-out errors z = (y − mean)/√V of some training rows of `data`.

        All other rows predict each of `rows` as one observation with the noise variance `noise`. None if the errors are unknown or expensive.
        """
        return None


@quick_jit
def _values(functions: AbstractFunctions, X: Any) -> Array:
    return functions(jnp.asarray(X))


class DrawnFunctions(AbstractFunctions):
    """S = `count` functions with values [N, S] from a callable of X [N, D]: a JAX function or an `eqx.Partial`."""

    values: Callable
    count: int = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return self.count

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.values(X)


def dispersed(base: AbstractPosterior, scale: Callable, functions: AbstractFunctions) -> DrawnFunctions:
    """Return m(x) + √(c s(x)) (f_s(x) − m(x)) for functions f_s of the posterior `base` with mean m; `scale` returns c s(x)."""
    return DrawnFunctions(eqx.Partial(_dispersed, base, scale, functions), functions.n_samples)


def _dispersed(base: AbstractPosterior, scale: Callable, functions: AbstractFunctions, X: Array) -> Array:
    mean = jnp.asarray(base.mean(X), X.dtype)[:, None]
    root = jnp.sqrt(scale(X))[:, None]
    return mean + root * (functions(X) - mean)
