"""Random Fourier features of stationary kernels."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.features.base import AbstractFeatureMap, check_rows
from stochgp.kernels import RBF, AbstractStationary
from stochgp.numerics import seeds
from stochgp.numerics.arrays import matmul, on_device
from stochgp.parameters import Frozen, frozen, value_of

CANDIDATES = 8  # lengths drawn for each length kept
N_EXTRAPOLATION = 128


class RandomFourier(AbstractFeatureMap):
    """Random features whose product φ(x)·φ(z) has the mean k(x, z) (Rahimi and Recht 2007).

    With x̃ = x/ℓ,
        cosine:  φ_j(x) = √(2 variance/M) cos(ω_jᵀx̃ + b_j), b_j ~ U(0, 2π), M frequencies
        paired:  φ(x) = √(2 variance/M) [cos(ω_jᵀx̃) …, sin(ω_jᵀx̃) …], M/2 frequencies

    The frequencies ω_j are drawn from the spectral density of k at ℓ = 1. For the RBF kernel, this density is
    standard normal; for Matérn-ν, it is a Student-t with 2ν degrees of freedom. k trains. `init` creates
    features.

    Parameters
    ----------
    kernel, n_inputs : stationary kernel, int
        The kernel k, which may be frozen and uses A of the D inputs, and the number D.
    frequencies, phases : frozen array [A, F], frozen array [F] or None
        The F frequencies ω for ℓ = 1, and the phases b in radians. Paired features need no phases (None).
    """

    kernel: Any
    frequencies: Frozen
    phases: Frozen | None
    n_inputs: int = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        kernel: AbstractStationary | Frozen,
        n_inputs: int,
        n_features: int,
        *,
        key: PRNGKeyArray,
        paired: bool = False,
        orthogonal: bool = False,
        dtype: DTypeLike = jnp.float32,
    ) -> "RandomFourier":
        """Draw frequencies and phases; `orthogonal` reduces the error (Yu et al. 2016).

        Raises TypeError unless the kernel is stationary, and ValueError for an invalid `n_features`.
        """
        plain = value_of(kernel)
        if not isinstance(plain, AbstractStationary):
            kinds = "an RBF, Matérn or rational quadratic kernel"
            raise TypeError(f"random Fourier features need {kinds}, but got {kernel!r}")
        if n_features < 1 or (paired and n_features % 2):
            least = "an even number, at least 2" if paired else "at least 1"
            raise ValueError(f"n_features must be {least}, but is {n_features}")
        direction_key, scale_key, phase_key = seeds.split_key(key, 3)
        n_active = jax.eval_shape(plain.scaled, jax.ShapeDtypeStruct((n_inputs,), dtype)).shape[0]
        n = n_features // 2 if paired else n_features
        directions = (orthogonal_rows if orthogonal else _normal_rows)(n, n_active, direction_key, dtype)
        scales = plain.frequency_scales(n, key=scale_key, dtype=dtype)
        phases = None
        if not paired:
            phases = frozen(on_device(seeds.uniform(phase_key, (n,), dtype, 0.0, 2 * np.pi)))
        frequencies = (np.asarray(directions) * np.asarray(scales)[:, None]).T
        return cls(kernel, frozen(on_device(frequencies)), phases, n_inputs)

    @property
    def n_features(self) -> int:
        n_frequencies = self.frequencies.shape[1]
        return 2 * n_frequencies if self.phases is None else n_frequencies

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        kernel = value_of(self.kernel)
        angles = matmul(kernel.scaled(X), value_of(self.frequencies, X.dtype))  # [N, F]
        if self.phases is None:
            waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
        else:
            waves = jnp.cos(angles + value_of(self.phases, X.dtype)[None, :])
        return jnp.sqrt(2 * value_of(kernel.variance, X.dtype) / self.n_features) * waves


class Extrapolation(AbstractFeatureMap):
    """Differences φ(x) = ψ(x) − ψ(c(x)) of Fourier features ψ, which are 0 inside a box.

    The point of the box nearest to x is c(x). Outside the box, a function φ(x)·w with w ~ N(0, I) has the
    variance 2(k(0) − k(x − c(x))), which is 2k(0) far from the box. No parameter trains. `init` creates φ.

    Parameters
    ----------
    fourier, low, high : RandomFourier, frozen array [D], frozen array [D]
        Paired features ψ of the frozen kernel k, and the lowest and highest corner of the box.
    """

    fourier: RandomFourier
    low: Frozen
    high: Frozen

    @classmethod
    def init(
        cls,
        limits: Float[np.ndarray, "2 D"],
        variance: float,
        slopes: Float[np.ndarray, " D"],
        *,
        longest: Any = np.inf,
        n_features: int = N_EXTRAPOLATION,
        key: PRNGKeyArray,
        dtype: DTypeLike = jnp.float32,
    ) -> "Extrapolation":
        """Create features with `variance` far from the box and root mean square `slopes` near it.

        `limits` holds two corners of the box. k is an RBF kernel whose lengthscales are at most `longest`.
        """
        lengthscale = np.sqrt(variance / 2) / np.maximum(slopes, np.finfo(np.float32).tiny)
        kernel = RBF(on_device(np.minimum(lengthscale, longest), dtype), on_device(variance / 2, dtype))
        low, high = (frozen(on_device(side, dtype)) for side in limits)
        size = len(lengthscale), n_features
        return cls(RandomFourier.init(frozen(kernel), *size, key=key, paired=True, dtype=dtype), low, high)

    @property
    def n_features(self) -> int:
        return self.fourier.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.fourier.n_inputs)
        low, high = (value_of(side, X.dtype)[None, :] for side in (self.low, self.high))
        nearest = jnp.minimum(jnp.maximum(X, low), high)
        outside = jnp.any(nearest != X, axis=1, keepdims=True)
        return jnp.where(outside, self.fourier(X) - self.fourier(nearest), 0)


def orthogonal_rows(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Any, "n D"]:
    """Draw standard normal rows that are orthogonal within each block of D rows."""
    direction_key, length_key = seeds.split_key(key)
    lengths = _lengths(seeds.normal(length_key, (n, n_inputs), dtype))
    return lengths[:, None] * orthogonal_directions(n, n_inputs, direction_key, dtype)


def orthogonal_directions(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Any, "n D"]:
    """Draw uniform unit vectors that are orthogonal within each block of D rows."""
    block = min(n, n_inputs)
    Q, R = np.linalg.qr(np.asarray(seeds.normal(key, (-(-n // block), n_inputs, block), dtype)))
    Q = Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]
    return Q.swapaxes(1, 2).reshape(-1, n_inputs)[:n]


def _normal_rows(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Any, "n D"]:
    return np.asarray(seeds.normal(key, (n, n_inputs), dtype))


def stratified_frequencies(
    n: int, n_inputs: int, scales: Callable[..., Any], key: PRNGKeyArray, dtype: DTypeLike
) -> Float[Any, "n D"]:
    """Draw frequencies with orthogonal directions and stratified lengths.

    Each frequency has the distribution of an independent draw. The function sorts `CANDIDATES` · n lengths
    and cuts them into n parts. From each part, the function keeps the length that was drawn first.
    """
    direction_key, length_key = seeds.split_key(key)
    scale_key, normal_key = seeds.split_key(length_key)
    drawn = np.asarray(scales(CANDIDATES * n, key=scale_key, dtype=dtype))
    lengths = _lengths(_normal_rows(CANDIDATES * n, n_inputs, normal_key, dtype) * drawn[:, None])
    kept = np.sort(np.argsort(lengths).reshape(n, CANDIDATES).min(axis=1))
    return orthogonal_directions(n, n_inputs, direction_key, dtype) * lengths[kept][:, None]


def _lengths(rows: Float[Any, "n D"]) -> Float[Any, " n"]:
    """Return the norm of each row."""
    return (rows * rows).sum(axis=1) ** 0.5
