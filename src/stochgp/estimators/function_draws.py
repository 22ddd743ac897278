"""Functions drawn from a posterior, in the user's units."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.utils.validation import check_is_fitted

from stochgp.data import Standardiser
from stochgp.data.fingerprint_rows import is_packed
from stochgp.data.reading import Encoder
from stochgp.data.splits import hash_again
from stochgp.data.standardise import ModelRows
from stochgp.estimators.predictor import PosteriorRegressor
from stochgp.numerics.precision import full_precision
from stochgp.observations import AbstractMeanFunction
from stochgp.parameters import cast
from stochgp.posteriors import AbstractFunctions
from stochgp.posteriors.joint import Covariances, JointMoments, Means, Sets
from stochgp.tables.encoding import STAND_INS, known_instead
from stochgp.transforms import AbstractTransform

ROWS = 256  # of one evaluation of functions


class JoinedFunctions(AbstractFunctions):
    """Functions drawn in parts, one part after the other."""

    parts: tuple[AbstractFunctions, ...]

    @property
    def n_samples(self) -> int:
        return sum(part.n_samples for part in self.parts)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return jnp.concatenate([part(X) for part in self.parts], axis=1)


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


@eqx.filter_jit
def _apply(functions: AbstractFunctions, X: Any) -> Array:
    return functions(jnp.asarray(X))


class JointPredictions:
    """Mean and covariance of f at sets of points X [B, Q, D], in the units of the inputs and of the targets given to `fit`.

    The mean and the diagonal of the covariance are those of `predict(X, return_std=True)`, the scale that was chosen for variances included:

        C(x, z) = s² √(c(x) c(z)) C₀(x, z) + cov(m(x), m(z)),   m a fitted prior mean, c the multipliers of variances, constant or by trees, whose slopes are 0 almost everywhere.

    Raises TypeError for what is no regressor of this package. Raises ValueError for inputs that are not numbers alone, for targets of which f
    is not the mean (transformed ones, and counts, whose f is the logarithm of a rate), and for a posterior without covariances.
    """

    def __init__(self, estimator: Any):
        if not isinstance(estimator, PosteriorRegressor):
            raise TypeError(f"a fitted regressor of stochgp is wanted, not {type(estimator).__name__}")
        check_is_fitted(estimator)
        fitted = estimator._fitted
        if fitted.encoder is not None and not getattr(fitted.encoder, "is_plain", False):
            raise ValueError(
                "the estimator was fitted to a table whose columns are encoded: fit it to an array of numbers"
            )
        if fitted.observation.outward is not None:
            raise ValueError(
                "observations of the estimator are no Gaussian around f (transformed targets, or counts of a rate e^f): fit transformed targets, "
                "such as log(y + 1/2), with likelihood='gaussian', or take functions by sample_functions, which are in the units of the targets"
            )
        self._fitted = fitted
        self._joint = JointMoments(fitted.posterior)

    @property
    def n_inputs(self) -> int:
        return len(self._fitted.inputs.mean)

    def value(self, X: Sets) -> tuple[Means, Covariances]:
        """(Mean, covariance) of f at each set."""
        s, Z = self._fitted.target_scale, self._standardised(X)
        mean, covariance = self._joint.value(Z)
        root = self._root(Z)
        mean = float(self._fitted.targets.mean) + s * mean
        covariance = s**2 * root[:, :, None] * covariance * root[:, None]
        if (m := self._fitted.observation.mean_function) is not None:
            d = m.deviations(X)
            mean, covariance = mean + m(X), covariance + d @ d.swapaxes(1, 2)
        return mean, covariance

    def pull(self, X: Sets, by_mean: Means, by_covariance: Covariances) -> Sets:
        """The gradient in X of a function whose gradients in means and covariances are given."""
        s, Z = self._fitted.target_scale, self._standardised(X)
        root = self._root(Z)
        by_own = s**2 * root[:, :, None] * by_covariance * root[:, None]
        found = self._joint.pull(Z, s * by_mean, by_own) / np.asarray(self._fitted.inputs.scale, np.float64)
        m = self._fitted.observation.mean_function
        if m is not None:
            by = (by_covariance + by_covariance.swapaxes(1, 2)) @ m.deviations(X)
            found += by_mean[..., None] * m.gradient(X) + m.gradient(X, by)
        return found

    def noise(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """What the variance of an observation has more than that of f, as `predict(X, return_std=True, include_noise=True)` says; at least 0."""
        (_, with_noise), (_, of_f) = (
            self._fitted.mean_and_std(X, include_noise=given) for given in (True, False)
        )
        return np.maximum(with_noise**2 - of_f**2, 0.0)

    def _standardised(self, X: Sets) -> Sets:
        inputs = self._fitted.inputs
        return (X - np.asarray(inputs.mean, np.float64)) / np.asarray(inputs.scale, np.float64)

    def _root(self, Z: Sets) -> Means:
        """√c of every point."""
        inflation = self._fitted.observation.inflation
        if inflation is None or not inflation.is_scaling:
            return np.ones(Z.shape[:2])
        rows = np.asarray(Z.reshape(-1, Z.shape[-1]), self._fitted.dtype)
        return np.sqrt(inflation.multiplier(rows)).reshape(Z.shape[:2])
