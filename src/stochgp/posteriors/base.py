"""Base classes of posteriors and of functions drawn from them."""

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
    """S functions drawn from a posterior; a call maps rows [N, D] to values [N, S]."""

    @property
    @abc.abstractmethod
    def n_samples(self) -> int:
        """The number of functions, S."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        """Return the value of each function at each row."""

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        """Return the values of each function s at its own rows Z[s]."""
        own = lambda of: self(of[1])[:, of[0]]
        return jax.lax.map(own, (jnp.arange(len(Z)), Z))

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        """Return the value of each function at each row, for rows in host memory."""
        return np.asarray(_values(self, X))


class AbstractPosterior(eqx.Module):
    """The posterior of the latent function f, with its means, variances and covariances.

    Call the methods inside `jax.enable_x64(True)`. Call `mean` and `mean_and_variance` with `block_rows`
    rows, because JAX compiles a program for each number of rows. If `block_rows` is None, any number of rows
    is fine.
    """

    # This makes methods plain functions. Equinox would create a pytree at each access.
    __getattribute__ = object.__getattribute__

    block_rows: eqx.AbstractClassVar[int | None]
    leaves_groups_out: ClassVar[bool] = False  # True if `errors_of_left_out` leaves out whole groups

    @property
    def dtype(self) -> str | None:
        """The dtype of rows for predictions. None means the dtype of the model."""
        return None

    @abc.abstractmethod
    def mean(self, X: Rows) -> PerRow:
        """Return the mean of f(x) for each row."""

    @abc.abstractmethod
    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """Return the mean and the variance of f(x) for each row."""

    def latent_moments(
        self, X: Rows
    ) -> tuple[Float[Array | np.ndarray, "N L"], Float[Array | np.ndarray, "N L"]]:
        """Return mean and variance of every latent function for one block of rows."""
        mean, variance = self.mean_and_variance(X)
        return mean[:, None], variance[:, None]

    @abc.abstractmethod
    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """Return the covariance matrix of f at the rows. Raises ValueError if it is unknown."""

    @abc.abstractmethod
    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> AbstractFunctions:
        """Return functions drawn from the posterior. Raises ValueError for local posteriors."""

    @abc.abstractmethod
    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        """Return the peak bytes of predictions, of `covariance`, or of `n_samples` functions."""

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"] | None:
        """Return standardised leave-one-out errors (y − mean)/√V of some training rows of `data`.

        V is the variance of an observation, given all other rows; it includes the noise variance `noise`. The
        result is None if the errors are unknown or expensive.
        """
        return None


@quick_jit
def _values(functions: AbstractFunctions, X: Any) -> Array:
    return functions(jnp.asarray(X))


class DrawnFunctions(AbstractFunctions):
    """Drawn functions: `values` computes their values [N, S], and `count` is S."""

    values: Callable
    count: int = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return self.count

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.values(X)


def dispersed(base: AbstractPosterior, scale: Callable, functions: AbstractFunctions) -> DrawnFunctions:
    """Multiply the variance of `functions`, drawn from the posterior `base`, by `scale(X)`."""
    return DrawnFunctions(eqx.Partial(_dispersed, base, scale, functions), functions.n_samples)


def _dispersed(base: AbstractPosterior, scale: Callable, functions: AbstractFunctions, X: Array) -> Array:
    mean = jnp.asarray(base.mean(X), X.dtype)[:, None]
    root = jnp.sqrt(scale(X))[:, None]
    return mean + root * (functions(X) - mean)
