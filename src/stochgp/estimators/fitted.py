"""What a fit leaves behind, and predictions from it in the user's units."""

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data import Standardiser, TableEncoder
from stochgp.estimators.inputs import refuse_not_finite
from stochgp.parameters import cast
from stochgp.posteriors import FeaturePosterior, FunctionSamples

ROWS = 256  # of every compiled evaluation, the last one padded: a row's prediction does not depend on its company


class AbstractFitted(abc.ABC):
    """The posterior over standardised targets given standardised inputs, with the way there and back.

    `noise_variance` is that of the standardised targets; `dtype` is that of the rows that the posterior sees.
    """

    encoder: TableEncoder | None
    inputs: Standardiser
    targets: Standardiser
    noise_variance: float
    dtype: str

    @abc.abstractmethod
    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """E f(x) in target units."""

    @abc.abstractmethod
    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(E f(x), standard deviation of f(x), or of an observation there) in target units."""

    @abc.abstractmethod
    def covariance(self, X: Float[np.ndarray, "N D"], *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        """cov(f(x), f(z)) for all pairs of rows, or of observations there, in squared target units."""

    @abc.abstractmethod
    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> Any:
        """A module X [N, D] ↦ [N, S] of functions drawn from the posterior, on standardised rows and targets."""

    @abc.abstractmethod
    def predict_bytes(self, n_rows: int) -> int:
        """The memory that mean and standard deviation of so many rows take."""

    @abc.abstractmethod
    def covariance_bytes(self, n_rows: int) -> int:
        """The memory that a covariance of so many rows takes."""

    @abc.abstractmethod
    def functions_bytes(self, n_samples: int) -> int:
        """The memory that drawing so many functions takes."""

    @property
    def target_scale(self) -> float:
        return float(self.targets.scale)

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray) -> "FunctionDraws":
        """Functions drawn from the posterior, in the user's units."""
        with jax.enable_x64(True):
            return FunctionDraws(
                functions=self.functions(n_samples, key=key),
                center=jnp.asarray(self.inputs.mean, jnp.float64),
                scale=jnp.asarray(self.inputs.scale, jnp.float64),
                target_mean=jnp.asarray(self.targets.mean, jnp.float64),
                target_scale=jnp.asarray(self.targets.scale, jnp.float64),
                encoder=self.encoder,
                dtype=self.dtype,
            )

    def noise(self, shape: tuple[int, ...], *, key: PRNGKeyArray) -> Float[np.ndarray, "..."]:
        """Independent observation noise in target units."""
        draws = np.asarray(jax.random.normal(key, shape, jnp.float32), np.float64)
        return self.target_scale * self.noise_variance**0.5 * draws


@dataclass(frozen=True, eq=False)
class Fitted(AbstractFitted):
    """The posterior of a feature GP."""

    encoder: TableEncoder | None
    inputs: Standardiser
    targets: Standardiser
    posterior: FeaturePosterior
    noise_variance: float
    dtype: str

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        return self.targets.inverse(self._by_block(_mean, X)[0])

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        mean, variance = self._by_block(_mean_and_variance, X)
        if include_noise:
            variance = variance + self.noise_variance
        return self.targets.inverse(mean), self.target_scale * np.sqrt(variance)

    def covariance(self, X: Float[np.ndarray, "N D"], *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        n_blocks = -(-len(X) // ROWS)
        with jax.enable_x64(True):
            Z = np.zeros((n_blocks * ROWS, X.shape[1]), self.dtype)
            Z[: len(X)] = self.inputs.transform(X, self.dtype)
            scaled = np.asarray(_covariance(self.posterior, jnp.asarray(Z)))[: len(X), : len(X)]
        covariance = scaled * self.target_scale**2
        if include_noise:
            covariance[np.diag_indices(len(X))] += self.noise_variance * self.target_scale**2
        return covariance

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> FunctionSamples:
        return self.posterior.sample_functions(n_samples, key=key)

    def predict_bytes(self, n_rows: int) -> int:
        return 64 * n_rows

    def covariance_bytes(self, n_rows: int) -> int:
        n = n_rows + ROWS
        return 8 * n * (3 * n + 2 * len(self.posterior.weights))

    def functions_bytes(self, n_samples: int) -> int:
        return 2 * self.posterior.weights.dtype.itemsize * len(self.posterior.weights) * n_samples

    def _by_block(self, evaluate: Any, X: np.ndarray) -> tuple[np.ndarray, ...]:
        return in_blocks(lambda Z: evaluate(self.posterior, Z), self.inputs, X, self.dtype)


class FunctionDraws(eqx.Module):
    """S functions drawn from a posterior: f(X) are their values, in target units, at rows X in the units given to `fit`.

    A JAX array X [N, D] gives a JAX array [N, S] in its dtype, differentiable in X, under any transformation of JAX. A NumPy array or a
    data frame gives a NumPy array [N, S] in float64, in blocks of rows.
    """

    functions: Any  # a module X [N, D] ↦ [N, S], with `n_samples`
    center: Float[Array, " D"]
    scale: Float[Array, " D"]
    target_mean: Float[Array, ""]
    target_scale: Float[Array, ""]
    encoder: TableEncoder | None = eqx.field(static=True)
    dtype: str = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return self.functions.n_samples

    def __call__(self, X: Any) -> Any:
        if isinstance(X, jax.Array):
            return self._on_device(X)
        return self.at_numbers(np.asarray(X) if self.encoder is None else self.encoder.transform(X))

    def at_numbers(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        """The values at rows whose text columns are encoded already."""
        inputs = Standardiser(np.asarray(self.center), np.asarray(self.scale))
        targets = Standardiser(np.asarray(self.target_mean), np.asarray(self.target_scale))
        (values,) = in_blocks(lambda Z: (_apply(self.functions, Z),), inputs, X, self.dtype)
        return targets.inverse(values)

    def _on_device(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        if X.ndim != 2 or X.shape[1] != len(self.center) or not jnp.issubdtype(X.dtype, jnp.floating):
            raise ValueError(
                f"expected floating rows [N, {len(self.center)}], but got {X.dtype} of shape {X.shape}"
            )
        Z = (X - self.center.astype(X.dtype)) / self.scale.astype(X.dtype)
        functions = cast(self.functions, X.dtype)  # float64 where it may not be used
        return functions(Z) * self.target_scale.astype(X.dtype) + self.target_mean.astype(X.dtype)


@eqx.filter_jit
def _mean(posterior: FeaturePosterior, X: Array) -> tuple[Array]:
    return (posterior.mean(X),)


@eqx.filter_jit
def _mean_and_variance(posterior: FeaturePosterior, X: Array) -> tuple[Array, Array]:
    return posterior.mean_and_variance(X)


@eqx.filter_jit
def _covariance(posterior: FeaturePosterior, X: Array) -> Array:
    return posterior.covariance(X)


@eqx.filter_jit
def _apply(functions: Any, X: Array) -> Array:
    return functions(X)


def in_blocks(
    evaluate: Any, inputs: Standardiser, X: np.ndarray, dtype: str, n_block: int = ROWS
) -> tuple[np.ndarray, ...]:
    """What `evaluate` returns for the standardised rows, block by block, as float64 arrays [N, …].

    Raises ValueError where a result is not finite: inputs so far from the training rows that the features overflow.
    """
    results: tuple[np.ndarray, ...] = ()
    with jax.enable_x64(True):
        for start in range(0, len(X), n_block):
            part = X[start : start + n_block]
            Z = np.zeros((n_block, X.shape[1]), dtype)
            Z[: len(part)] = _transformed(inputs, part, dtype, start)
            values = [np.asarray(value)[: len(part)] for value in evaluate(jnp.asarray(Z))]
            if not results:
                results = tuple(np.empty((len(X), *value.shape[1:]), np.float64) for value in values)
            for result, value in zip(results, values, strict=True):
                result[start : start + len(part)] = value
            _refuse_overflow(values, part, start)
    return results


def _transformed(inputs: Standardiser, part: np.ndarray, dtype: str, start: int) -> np.ndarray:
    try:
        return inputs.transform(part, dtype)
    except ValueError as error:
        refuse_not_finite(part)
        raise ValueError(f"in the rows from {start + 1} on: {error}") from error


def _refuse_overflow(values: list[np.ndarray], part: np.ndarray, start: int) -> None:
    for value in values:
        bad = ~np.isfinite(value).reshape(len(part), -1).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"the prediction of row {start + row + 1} is not a finite number: its inputs, up to {np.abs(part[row]).max():g} "
                "in size, lie too far from the training rows"
            )
