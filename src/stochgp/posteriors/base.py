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
    """S functions drawn from a posterior: X [N, D] ↦ [N, S], anywhere, as often as wanted, differentiable."""

    @property
    @abc.abstractmethod
    def n_samples(self) -> int:
        """S."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        """f_s(x) for each row and each function."""

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        """f_s at its own rows Z_s [R, D]. By default from all S functions at these rows; a leaf overrides it where that is much work."""
        own = lambda of: self(of[1])[:, of[0]]
        return jax.lax.map(own, (jnp.arange(len(Z)), Z))

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        """Return f_s(x) for rows in host memory; a subclass may avoid compiling."""
        return np.asarray(_values(self, X))


class AbstractPosterior(eqx.Module):
    """f given the data. Means, variances and covariances are of f; what is observed of it is `observations.Observation`.

    Call the methods inside of `jax.enable_x64(True)`. They may compile for a number of rows, or compute on the host. `mean` and
    `mean_and_variance` are for one block of `block_rows` rows: a caller fills up the last block, so that nothing more is compiled.
    `block_rows` is None if they take any number of rows.
    """

    # Methods are plain ones: Equinox would make a pytree of each that is called.
    __getattribute__ = object.__getattribute__

    block_rows: eqx.AbstractClassVar[int | None]
    leaves_groups_out: ClassVar[bool] = (
        False  # True if `errors_of_left_out` leaves out the other rows of a group too
    )

    @property
    def dtype(self) -> str | None:
        """The dtype of the rows that it must be given; None = that of the model."""
        return None

    @abc.abstractmethod
    def mean(self, X: Rows) -> PerRow:
        """E f(x) for each row."""

    @abc.abstractmethod
    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """Return E f(x) and var f(x) for each row; the second is a variance, at least 0."""

    def latent_moments(
        self, X: Rows
    ) -> tuple[Float[Array | np.ndarray, "N L"], Float[Array | np.ndarray, "N L"]]:
        """Return mean and variance of every latent function, for one block of rows."""
        mean, variance = self.mean_and_variance(X)
        return mean[:, None], variance[:, None]

    @abc.abstractmethod
    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """cov(f(x), f(z)) for all pairs of rows, positive semi-definite to rounding. ValueError where it cannot be known."""

    @abc.abstractmethod
    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> AbstractFunctions:
        """Functions drawn from the posterior. ValueError where only single rows are known."""

    @abc.abstractmethod
    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        """Return the least memory for predictions of rows, their `covariance` or drawn functions, results included; 0 if that is refused."""

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"] | None:
        """z = (y − mean)/√V of these of the training rows, `data` all of them, each predicted as one observation from all others.

        As new rows are predicted, the noise variance of one observation being `noise`. None where it is not known, or would take long.
        """
        return None


@quick_jit
def _values(functions: AbstractFunctions, X: Any) -> Array:
    return functions(jnp.asarray(X))


class DrawnFunctions(AbstractFunctions):
    """S = `count` functions with the values [N, S] of a callable of X [N, D]: a function of JAX, or an `eqx.Partial` of arrays."""

    values: Callable
    count: int = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return self.count

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.values(X)


def dispersed(base: AbstractPosterior, scale: Callable, functions: AbstractFunctions) -> DrawnFunctions:
    """m(x) + √(c s(x)) (f_s(x) − m(x)) for functions f_s of the posterior `base` whose mean is m; c s(x) is the value of `scale`."""
    return DrawnFunctions(eqx.Partial(_dispersed, base, scale, functions), functions.n_samples)


def _dispersed(base: AbstractPosterior, scale: Callable, functions: AbstractFunctions, X: Array) -> Array:
    mean = jnp.asarray(base.mean(X), X.dtype)[:, None]
    root = jnp.sqrt(scale(X))[:, None]
    return mean + root * (functions(X) - mean)
