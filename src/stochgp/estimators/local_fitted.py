"""What a fit leaves behind that predicts from the nearest rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from stochgp.data import Standardiser, TableEncoder
from stochgp.data.neighbours import search_bytes
from stochgp.estimators.fitted import AbstractFitted
from stochgp.estimators.inputs import refuse_not_finite
from stochgp.posteriors import LocalPosterior

CHUNK = 1 << 16  # rows that are standardised at a time
COMPILER_BYTES = 100_000_000  # that a first prediction leaves behind


@dataclass(frozen=True, eq=False)
class LocalFitted(AbstractFitted):
    """Predictions for every row by itself from its nearest training rows: no covariances between rows, no functions."""

    encoder: TableEncoder | None
    inputs: Standardiser
    targets: Standardiser
    posterior: LocalPosterior
    noise_variance: float
    dtype: str

    @property
    def kernel(self) -> Any:
        return self.posterior.gp.kernel

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        return self.mean_and_std(X, include_noise=False)[0]

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        mean, std = np.empty(len(X)), np.empty(len(X))
        for start in range(0, len(X), CHUNK):
            part = X[start : start + CHUNK]
            refuse_not_finite(part)
            m, v = self.posterior.mean_and_variance(self.inputs.transform(part, self.dtype))
            mean[start : start + CHUNK] = m
            std[start : start + CHUNK] = np.sqrt(
                v + (self.posterior.noise_variance if include_noise else 0.0)
            )
        return self.targets.inverse(mean), self.target_scale * std

    def covariance(self, X: Float[np.ndarray, "N D"], *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        raise ValueError(
            "local predictions know no covariances between rows: fit with prediction='global' for return_cov"
        )

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> Any:
        raise ValueError(
            "local predictions are of single rows, not functions: fit with prediction='global' for samples"
        )

    def predict_bytes(self, n_rows: int) -> int:
        """With the tree of the training rows, which is made at the first prediction."""
        n_train, n_inputs = self.posterior.X.shape
        tree = search_bytes(n_train, n_inputs, min(n_rows, CHUNK), self.posterior.n_neighbours)
        return 64 * n_rows + tree + COMPILER_BYTES

    def functions_bytes(self, n_samples: int) -> int:
        return 0

    def covariance_bytes(self, n_rows: int) -> int:
        return 0
