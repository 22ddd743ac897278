"""Several fitted classifiers as one: mixtures of their probabilities."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from stochgp.distributions import Categorical, TemperatureScaling
from stochgp.pools.mixed import Members
from stochgp.pools.weights import AbstractPooling
from stochgp.posteriors.base import Request


@dataclass(frozen=True, eq=False)
class ClassPool(Members):
    """P(y = c) = Σ_k w_k P_k(y = c), and then `correction`. The columns of the k-th member are the classes of these numbers, `known[k]`, of `n_classes`."""

    known: tuple[Int[np.ndarray, " C_k"], ...]
    n_classes: int
    pooling: AbstractPooling | None = None
    correction: TemperatureScaling | None = None

    def need_bytes(self, request: Request) -> int:
        """Of one member after the other, and the results of all."""
        each = [member.need_bytes(request) for member in self.members]
        return max(each) + 8 * len(each) * request.n_rows * self.n_classes

    def log_probabilities(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "K N C"]:
        """By each member."""
        found = np.full((len(self.members), len(X), self.n_classes), -np.inf)
        for k, (member, known) in enumerate(zip(self.members, self.known, strict=True)):
            predicted: Any = member.distribution(X)
            found[k][:, known] = predicted.log_probabilities
        return found

    def distribution(self, X: Float[np.ndarray, "N D"]) -> Categorical:
        """Of the class of each row."""
        assert self.pooling is not None
        found = mixed_classes(self.log_probabilities(X), self.pooling.weights(X))
        return found if self.correction is None else self.correction(found)


def mixed_classes(log_p: Float[np.ndarray, "K N C"], weights: Float[np.ndarray, " K"]) -> Categorical:
    """Of members with these weights."""
    with np.errstate(divide="ignore"):
        return Categorical(np.asarray(logsumexp(log_p + np.log(weights)[:, None, None], axis=0)))
