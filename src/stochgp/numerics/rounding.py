"""Variances and covariances that rounding cannot make negative.

The predictor bᵀy of f(x) has the variance hᵀA⁺h = bᵀΣb + hᵀK⁺h, h = [−b; 1], with K⁺ the prior covariance of the training rows and x. It is never
below that of the best predictor, whatever b is. The first term, that of the noise, is a sum of squares. The second is the difference of large
numbers: where it is below its own rounding error, that error stands for it.
"""

from typing import Any

import numpy as np
import scipy.linalg
from jax.typing import DTypeLike
from jaxtyping import Float

# The error of hᵀK⁺h in eps k(x, x) ‖h‖²: rounding of K's entries and of a factor acts like independent noise. Against long double, in 7
# systems with k(x, x)/σ² from 10³ to 10¹⁴, its root mean square was 2 to 5 of these, and its largest value 4 to 9.
ROUNDINGS = 4.0


def rounding_error(prior: Any, weight: Any, dtype: DTypeLike) -> Any:
    """The estimated rounding error 4 eps k(x, x) (1 + ‖b‖²) of hᵀK⁺h, per row: `prior` is k(x, x), `weight` ‖b‖²."""
    return ROUNDINGS * float(np.finfo(dtype).eps) * prior * (1 + weight)


def safe_variance(
    of_noise: Float[np.ndarray, " N"],
    rest: Float[np.ndarray, " N"],
    prior: Float[np.ndarray, " N"],
    rounding: Float[np.ndarray, " N"],
) -> Float[np.ndarray, " N"]:
    """bᵀΣb + max(hᵀK⁺h, its rounding error), and at most the prior variance, that of predicting 0."""
    return np.minimum(of_noise + np.maximum(rest, rounding), prior)


def safe_covariance(
    of_noise: Float[np.ndarray, "N N"], rest: Float[np.ndarray, "N N"], rounding: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "N N"]:
    """BᵀΣB + HᵀK⁺H + diag(rounding error): the second term as the nearest matrix without negative eigenvalues, if rounding gave it any
    beyond its error. In the memory of `rest`."""
    rest += rest.T.copy()
    rest *= 0.5
    rest[np.diag_indices(len(rest))] += rounding
    if not _has_factor(rest):
        values, vectors = scipy.linalg.eigh(rest, overwrite_a=True, check_finite=False)
        vectors *= np.sqrt(np.maximum(values, 0))
        rest = vectors @ vectors.T
        rest[np.diag_indices(len(rest))] += rounding
    rest += of_noise
    return rest


def _has_factor(C: Float[np.ndarray, "N N"]) -> bool:
    (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), (C,))
    return potrf(C, lower=True, clean=False)[1] == 0
