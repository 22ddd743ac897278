"""Nyström features with fixed landmarks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.features.base import AbstractFeatureMap, check_rows
from stochgp.kernels import AbstractKernel
from stochgp.kernels.base import as_kernel
from stochgp.numerics import seeds
from stochgp.numerics.arrays import on_device
from stochgp.parameters import Frozen, frozen, value_of


class Nystrom(AbstractFeatureMap):
    """φ(x) = L⁻¹ k(U, x) with LLᵀ = k(U, U) + εI, U the landmarks [M, D], for any kernel.

    φ(x)·φ(z) = k(x, U) (k(U, U) + εI)⁻¹ k(U, z) is at most k on the diagonal, and k at the landmarks up to ε. The landmarks are frozen, the kernel trains.

    Parameters
    ----------
    kernel : kernel
        k, of any kind; it may be frozen.
    landmarks : array [M, D]
        U, in the units of the inputs; ValueError for none.
    jitter : float or None
        ε over the mean of the diagonal of k(U, U), without unit; None = 4 M eps of the rows' dtype, above the rounding error of the factorisation.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    landmarks: Frozen = eqx.field(converter=frozen)
    jitter: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if len(self.landmarks.shape) != 2 or self.landmarks.shape[0] == 0:
            raise ValueError(
                f"landmarks are rows [M, D] with M at least 1, but got shape {self.landmarks.shape}"
            )

    @classmethod
    def init(
        cls, kernel: AbstractKernel | Frozen, X: Float[Array, "N D"], n_features: int, *, key: PRNGKeyArray
    ) -> "Nystrom":
        """The map whose landmarks are `n_features` of the rows of X, drawn uniformly."""
        return cls(kernel, choose_landmarks(X, n_features, key=key))

    @property
    def n_features(self) -> int:
        return self.landmarks.shape[0]

    @property
    def n_inputs(self) -> int:
        return self.landmarks.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        kernel, U = value_of(self.kernel), value_of(self.landmarks, X.dtype)
        Kuu, Kux = kernel.matrix(U, U), kernel.matrix(U, X)  # [M, M], [M, N]
        relative = 4 * self.n_features * float(jnp.finfo(X.dtype).eps) if self.jitter is None else self.jitter
        epsilon = relative * jnp.mean(jnp.diagonal(Kuu))
        L = jnp.linalg.cholesky(Kuu + epsilon * jnp.eye(self.n_features, dtype=X.dtype))
        return jax.scipy.linalg.solve_triangular(L, Kux, lower=True).T


def choose_landmarks(X: Float[Array, "N D"], n_landmarks: int, *, key: PRNGKeyArray) -> Float[Array, "M D"]:
    """Draw rows of X uniformly, without replacement. Raises ValueError if X has fewer rows."""
    _check_enough(X, n_landmarks)
    return X[jax.random.choice(key, X.shape[0], (n_landmarks,), replace=False)]


def kmeans_landmarks(X: Float[Array, "N D"], n_landmarks: int, *, key: PRNGKeyArray) -> Float[Array, "M D"]:
    """The centres of k-means clusters of X: slower than a draw, and better for few landmarks. Raises ValueError if X has fewer rows.

    Parameters
    ----------
    X, n_landmarks, key : array [N, D], int, PRNG key
        The rows; M, from 1 to N; the key of the starting centres.
    """
    from sklearn.cluster import KMeans  # half a second to load, for this alone

    _check_enough(X, n_landmarks)
    seed = seeds.seed_of(seeds.split(key, 2)[1])[0] % (2**31 - 1)
    centres = KMeans(n_landmarks, n_init="auto", random_state=seed).fit(np.asarray(X)).cluster_centers_
    return on_device(centres, X.dtype)


def _check_enough(X: Array, n_landmarks: int) -> None:
    if not 1 <= n_landmarks <= X.shape[0]:
        raise ValueError(
            f"n_landmarks is {n_landmarks}; it must be between 1 and the {X.shape[0]} rows given"
        )
