"""Probabilities of classes."""

import numpy as np
from jaxtyping import Float64
from scipy.special import logsumexp

from stochgp.distributions.base import AbstractDistribution, PerRow, Points


class Categorical(AbstractDistribution):
    """P(Y = c) for the classes c = 0, …, C − 1, in logarithms.

    `logpdf` of another number is −inf. `mean`, `std`, `cdf`, `quantile` and `crps` (the ranked probability score) are those of the
    number of the class: of two classes the probability of the second, of more only meaningful where their order is.

    Parameters
    ----------
    log_probabilities : array [N, C]
        log P(Y = c) of each row and class.
    """

    log_probabilities: Float64[np.ndarray, "N C"]

    @property
    def probabilities(self) -> Float64[np.ndarray, "N C"]:
        return np.exp(self.log_probabilities)

    @property
    def mean(self) -> PerRow:
        return self.probabilities @ self._classes

    @property
    def std(self) -> PerRow:
        from_mean = self._classes - self.mean[:, None]
        return np.sqrt(np.sum(self.probabilities * from_mean**2, axis=1))

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def _held(self) -> int:
        return self.log_probabilities.shape[1]

    @property
    def _classes(self) -> np.ndarray:
        return np.arange(self.log_probabilities.shape[1], dtype=np.float64)

    def _logpdf(self, y: Points) -> Points:
        known = np.isin(y, self._classes)
        at = np.where(known, y, 0).astype(np.int64)
        return np.where(known, np.take_along_axis(self.log_probabilities, at, axis=1), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        reached = self._classes <= y[..., None]  # [N, Q, C]
        log_p = np.broadcast_to(self.log_probabilities[:, None], reached.shape)
        with np.errstate(divide="ignore"):
            masked = (np.where(where, log_p, -np.inf) for where in (reached, ~reached))
            below, above = (np.exp(np.asarray(logsumexp(part, axis=-1))) for part in masked)
        return below, above

    def _quantile(self, p: Points) -> Points:
        reached = np.cumsum(self.probabilities, axis=1)[:, None, :-1] < p[..., None]
        return np.count_nonzero(reached, axis=-1).astype(np.float64)

    def _crps(self, y: Points) -> Points:
        """Σ_c (F(c) − 1[c ≥ y])² for classes y."""
        F = np.cumsum(self.probabilities, axis=1)[:, None, :-1]
        return np.sum((F - (self._classes[:-1] >= y[..., None])) ** 2, axis=-1)
