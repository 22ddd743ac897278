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
    """Random features φ such that φ(x)·φ(z) has the mean k(x, z) (Rahimi and Recht 2007).

    Let ℓ and v be the lengthscale and the variance of k. Feature j is φ_j(x) = √(2v/M) cos(ω_jᵀ(x/ℓ) + b_j),
    where b_j ~ U(0, 2π) is a random phase. If `paired`, the features are √(2v/M) cos(ω_jᵀ(x/ℓ)) and
    √(2v/M) sin(ω_jᵀ(x/ℓ)) for M/2 frequencies ω_j. The frequencies are drawn from the spectral density of k
    at ℓ = 1. For the RBF kernel, this density is standard normal; for a Matérn-ν kernel, it is a Student-t
    density with 2ν degrees of freedom. The parameters of k are trained. `init` creates features.

    Parameters
    ----------
    kernel : stationary kernel
        The kernel k, which may be frozen. It uses A of the D inputs.
    n_inputs : int
        The number D of inputs.
    frequencies : frozen array [A, F]
        The F frequencies ω for ℓ = 1.
    phases : frozen array [F] or None
        The phases b in radians; None for paired features.
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
    """Features φ(x) = ψ(x) − ψ(c(x)), which are 0 inside a given box.

    The features ψ are Fourier features of a kernel k, and c(x) is the point of the box that is nearest to x.
    With weights w ~ N(0, I), the function φ(x)·w has the variance 2(k(0) − k(x − c(x))), which is 2k(0) far
    from the box. No parameter is trained. `init` creates φ.

    Parameters
    ----------
    fourier : RandomFourier
        The paired features ψ of the frozen kernel k.
    low, high : frozen array [D]
        The lowest and the highest corner of the box.
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

    Each frequency has the distribution of an independent draw.
    """
    direction_key, length_key = seeds.split_key(key)
    scale_key, normal_key = seeds.split_key(length_key)
    drawn = np.asarray(scales(CANDIDATES * n, key=scale_key, dtype=dtype))
    lengths = _lengths(_normal_rows(CANDIDATES * n, n_inputs, normal_key, dtype) * drawn[:, None])
    kept = np.sort(np.argsort(lengths).reshape(n, CANDIDATES).min(axis=1))
    return orthogonal_directions(n, n_inputs, direction_key, dtype) * lengths[kept][:, None]


def _lengths(rows: Float[Any, "n D"]) -> Float[Any, " n"]:
    return (rows * rows).sum(axis=1) ** 0.5
