"""Predictions of fitted models in the user's units."""

import dataclasses
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data import Standardiser
from stochgp.data.files import mixed
from stochgp.data.memory import MemorySource
from stochgp.data.reading import Encoder
from stochgp.data.rows import Data
from stochgp.distributions import AbstractDistribution
from stochgp.numerics.arrays import full_precision
from stochgp.numerics.seeds import fold_in, split_key
from stochgp.observations import AbstractMeanFunction, Observation
from stochgp.parameters import cast
from stochgp.posteriors import AbstractFunctions, AbstractPosterior
from stochgp.posteriors.base import dispersed
from stochgp.tables.encoding import STAND_INS, known_instead
from stochgp.tables.molecules import is_packed
from stochgp.transforms import AbstractTransform

DRAWN_ROWS = 256  # rows per evaluation of drawn functions
NEW_ROWS = 1_000  # rows with new categories per evaluation


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model: input encoder, input scaling, posterior of f, and observation model.

    The posterior receives standardised rows of `dtype`, in padded blocks of `posterior.block_rows` rows.
    """

    encoder: Encoder | None
    inputs: Standardiser
    posterior: AbstractPosterior
    dtype: str
    observation: Observation
    seen: Any = None  # a `Seen`, the input ranges of the training rows; None for packed fingerprints
    log_slope: float = 0.0  # mean of log T′(y) over the training rows for the target transform T
    slope_rows: float = 0.0  # number of rows in this mean
    stream: Any = None  # state for `update`: of a learner, or the sums of a feature GP

    @property
    def targets(self) -> Standardiser:
        return self.observation.targets

    @property
    def target_scale(self) -> float:
        return self.observation.scale

    @property
    def log_unit(self) -> float:
        """The offset of losses in the user's units, as in `TrainingData.log_unit`."""
        return math.log(self.target_scale) - self.log_slope

    def widened(self, c: float) -> "Fitted":
        """Return a copy with c times the predicted variances."""
        return dataclasses.replace(self, observation=self.observation.widened(c))

    def with_rows(self, rows: Data, forget: float = 1.0) -> "Fitted":
        """Update ranges and means of log T′. `forget` multiplies the weight of earlier rows."""
        T, observation, y = self.observation.transform, self.observation, rows.y
        found = self if self.seen is None else dataclasses.replace(self, seen=self.seen.with_rows(rows.X))
        if T is None:
            return found
        old, n, slope = forget * self.slope_rows, 0.0, 0.0
        if len(y):
            n, slope = float(rows.weights.sum()), float(np.average(T.log_slope(y), weights=rows.weight))
            observation = observation.supporting(y)
        mean = (old * self.log_slope + n * slope) / (old + n) if old + n > 0 else 0.0
        return dataclasses.replace(found, observation=observation, log_slope=mean, slope_rows=old + n)

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return E f(x) in target units, or E y for transformed targets and counts."""
        if self.observation.outward is not None:
            return self.distribution(X).mean
        posterior = self.posterior
        rows = self._rows(X)
        (mean,) = self._moments(rows, lambda Z: (posterior.mean(Z),))
        return self.observation.to_target(mean, rows)

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Return the mean and standard deviation of f(x) or, with noise, of an observation."""
        rows, observation = self._rows(X), self.observation
        if include_noise:
            return observation.mean_and_std(*self._latent(rows), rows)
        mean, variance = self._moments(rows, self.posterior.mean_and_variance)
        mean, std = observation.of_function(mean, variance, rows)
        return mean if observation.outward is None else self.mean(X), std

    def distribution(self, X: Float[np.ndarray, "N D"]) -> AbstractDistribution:
        """Return the distribution of an observation at each row, in target units."""
        rows = self._rows(X)
        return self.observation.predict(*self._latent(rows), rows)

    def fold_out(self, rows: Data, fold: Int[np.ndarray, " N"]) -> AbstractDistribution:
        """Return cross-validated distributions of observations at the training rows.

        A row is predicted from the rows of other folds, with hyperparameters learned from all rows. `rows`
        are the training rows, in the order of the fit. The posterior must have a method `fold_out`.
        """
        observation, X, posterior = self.observation, self._rows(rows.X), typing.cast(Any, self.posterior)
        z, m, values = observation.transformed(rows.y), observation.mean_function, np.zeros(len(rows))
        if m is not None:
            values = typing.cast(Any, m).left_out(dataclasses.replace(rows, y=z))
        y = observation.targets.transform(z - values)
        data = dataclasses.replace(rows, X=X.inputs(), y=y)
        with jax.enable_x64(True):
            mean, variance = posterior.fold_out(data, fold, float(posterior.noise.level))
        if m is not None:
            # `predict` adds m(x) and its variance. Here the average variance of m replaces it.
            mean = mean + (values - m(rows.X)) / observation.scale
            own = m.variance(rows.X) / observation.scale**2 / observation.variance_factor(X)
            variance = variance + np.average(own, weights=rows.weights) - own
        return observation.predict(mean[:, None], variance[:, None], X)

    def need_bytes(self, n_rows: int = 0, **wanted: Any) -> int:
        """Return the bytes that predictions of the posterior need."""
        return self.posterior.need_bytes(n_rows, **wanted)

    def covariance(self, X: Float[np.ndarray, "N D"], *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        """Return covariances of f, or of observations, between all rows, in squared target units."""
        rows, observation = self._rows(X), self.observation
        if observation.outward is not None:
            raise ValueError(
                "return_cov is not available for transformed targets and counts; use sample_y for joint samples"
            )
        with jax.enable_x64(True):
            found = self.posterior.covariance(rows.inputs())
            scaled = observation.with_inflation(found, rows)
        covariance = np.multiply(scaled, self.target_scale**2, out=scaled if scaled.flags.writeable else None)
        new = known_instead(self.encoder, X)[0]
        if new.any():
            covariance[new, new] = self.mean_and_std(X[new], include_noise=False)[1] ** 2
        if include_noise:
            moments = None if observation.has_noise else self._latent(rows)
            noise = observation.noise_variances(rows, moments)
            covariance[np.diag_indices(len(X))] += noise * self.target_scale**2
        return covariance

    def sample_functions(self, n_samples: int, *, key: PRNGKeyArray) -> "FunctionDraws":
        """Draw functions from the posterior, in the user's units."""
        of_functions = split_key(key)[0]  # the other key is for noise
        m, normals = self.observation.mean_function, None
        with jax.enable_x64(True):
            if m is not None:
                shape = m.deviations(self.inputs.mean[None]).shape[1], n_samples
                normals = jax.random.normal(jax.random.fold_in(of_functions, n_samples), shape, jnp.float64)
            return FunctionDraws(
                functions=self._functions(n_samples, key=fold_in(of_functions, 0)),
                center=jnp.asarray(self.inputs.mean, jnp.float64),
                scale=jnp.asarray(self.inputs.scale, jnp.float64),
                target_mean=jnp.asarray(self.targets.mean, jnp.float64),
                target_scale=jnp.asarray(self.targets.scale, jnp.float64),
                encoder=self.encoder,
                dtype=self.dtype,
                transform=self.observation.outward,
                mean_function=m,
                normals=normals,
            )

    def observed(
        self, functions: Any, X: Float[np.ndarray, "N D"], *, key: PRNGKeyArray
    ) -> Float[np.ndarray, "N S"]:
        """Draw an observation of each function at each row."""
        rows = self._rows(X)
        moments = self._latent(rows) if self.observation.draws_by_moments else None
        return self.observation.sample(functions.at_numbers(X), rows, moments, key=key)

    def _functions(self, n_samples: int, *, key: PRNGKeyArray) -> AbstractFunctions:
        drawn, inflation = self.posterior.functions(n_samples, key=key), self.observation.inflation
        if inflation is None or not inflation.is_scaling:
            return drawn
        return dispersed(self.posterior, inflation.scale, drawn)

    def _rows(self, X: np.ndarray) -> MemorySource:
        return MemorySource(X, inputs=self.inputs, dtype=self.dtype, on_device=False)

    def _latent(self, rows: MemorySource) -> tuple[Float[np.ndarray, "N L"], Float[np.ndarray, "N L"]]:
        """Return means and variances of all latent functions in standardised units."""
        mean, variance = self._moments(rows, self.posterior.latent_moments)
        return mean, variance

    def _moments(self, rows: MemorySource, moments: Callable) -> tuple[np.ndarray, ...]:
        """Return moments. For a new category, return moments of a mixture over known categories."""
        evaluate = lambda of: of.evaluated(moments, self.posterior.block_rows)
        found, new = evaluate(rows), np.flatnonzero(known_instead(self.encoder, rows.X)[0])
        for start in range(0, len(new), NEW_ROWS):
            at = new[start : start + NEW_ROWS]
            for every, part in zip(found, self._of_new_categories(rows.X[at], evaluate), strict=True):
                every[at] = part
        return found

    def _of_new_categories(self, X: Float[np.ndarray, "n D"], evaluate: Callable) -> list[np.ndarray]:
        m, Z = self.observation.mean_function, np.stack(list(known_instead(self.encoder, X)[1]))
        stacked, shape = Z.reshape(-1, Z.shape[-1]), Z.shape[:2]
        mean, *variance = (of.reshape(*shape, *of.shape[1:]) for of in evaluate(self._rows(stacked)))
        factor = np.broadcast_to(self.observation.variance_factor(self._rows(X)), len(X))
        if m is not None:
            like = (*shape, *(1,) * (mean.ndim - 2))
            mean = mean + ((m(stacked).reshape(shape) - m(X)) / self.target_scale).reshape(like)
            moved = (m.variance(stacked).reshape(shape) - m.variance(X)) / self.target_scale**2 / factor
            variance = [part + moved.reshape(like) for part in variance]
        # `factor` cancels here: the dispersion later multiplies all returned variances.
        spread = (mean.var(axis=0, ddof=1).T / factor).T
        return [mean.mean(axis=0), *(part.mean(axis=0) + spread for part in variance)]


class FunctionDraws(eqx.Module):
    """A set f of S functions drawn from a posterior; f(X) returns values in target units.

    For a JAX array X [N, D], f(X) is a JAX array [N, S] of the same dtype, and JAX can differentiate and
    transform f. For a NumPy array, a data frame or fingerprints, f(X) is a float64 NumPy array [N, S].
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
    normals: Float[Array, "R S"] | None = None  # random coefficients of the mean function, for each draw

    @property
    def n_samples(self) -> int:
        return self.functions.n_samples

    def __call__(self, X: Any) -> Any:
        if isinstance(X, jax.Array) and not is_packed(self.encoder):
            return self._on_device(X)
        return self.at_numbers(np.asarray(X) if self.encoder is None else self.encoder.transform(X))

    def at_numbers(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        found, (new, instead) = self._at(X), known_instead(self.encoder, X)
        if new.any():  # hash the value to choose a known category for each draw
            category = mixed(found[new].view(np.uint64)) % np.uint64(STAND_INS)
            found[new] = sum((category == k) * self._at(Z) for k, Z in enumerate(instead))
        return found

    def _at(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        inputs = Standardiser(np.asarray(self.center), np.asarray(self.scale))
        targets = Standardiser(np.asarray(self.target_mean), np.asarray(self.target_scale))
        rows = MemorySource(X, inputs=inputs, dtype=self.dtype, on_device=False)
        (values,) = rows.evaluated(lambda Z: (self.functions.on_host(Z),), DRAWN_ROWS)
        values, m = targets.inverse(values), self.mean_function
        return self._back(
            values if m is None else values + m(X)[:, None] + m.deviations(X) @ np.asarray(self.normals)
        )

    def _on_device(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        if X.ndim != 2 or X.shape[1] != len(self.center) or not jnp.issubdtype(X.dtype, jnp.floating):
            raise ValueError(
                f"X must be a floating-point array [N, {len(self.center)}], but X has the dtype {X.dtype} and the shape {X.shape}"
            )
        Z = (X - self.center.astype(X.dtype)) / self.scale.astype(X.dtype)
        functions = cast(self.functions, X.dtype)  # all arrays have the dtype of X
        values = functions(Z) * self.target_scale.astype(X.dtype) + self.target_mean.astype(X.dtype)
        if (m := self.mean_function) is not None and self.normals is not None:
            with full_precision():
                values += m(X, jnp)[:, None] + m.deviations(X, jnp) @ self.normals.astype(X.dtype)
        return self._back(values)

    def _back(self, values: Any) -> Any:
        """Undo the target transform."""
        return values if self.transform is None else self.transform.inverse(values)
