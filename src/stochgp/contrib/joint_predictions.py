"""What `predict` says of points together, with slopes: what optimisers of acquisition functions ask of an estimator."""

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted

from stochgp.estimators.base import PosteriorRegressor
from stochgp.posteriors.joint import Covariances, JointMoments, Means, Sets


class JointPredictions:
    """Mean and covariance of f at sets of points X [B, Q, D], in the units of the inputs and of the targets given to `fit`.

    The mean is that of `predict`. The covariance is that of `predict(X, return_cov=True)` or, with an iterative solver, of functions drawn, the scale that was chosen for
    variances included:

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
