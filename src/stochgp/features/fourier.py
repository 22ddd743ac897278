"""Random Fourier features of stationary kernels, with independent or orthogonal frequencies."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.features.base import AbstractFeatureMap, check_rows
from stochgp.kernels import AbstractStationary
from stochgp.numerics import draws
from stochgp.numerics.arrays import on_device
from stochgp.numerics.precision import matmul
from stochgp.parameters import Frozen, frozen, value_of

CANDIDATES = 8  # lengths that are drawn for each one that is kept


class RandomFourier(AbstractFeatureMap):
    """Features with E φ(x)·φ(z) = k(x, z) for a stationary kernel k (Rahimi and Recht 2007).

    With x̃ = x/ℓ,

        cosine:  φ_j(x) = √(2 variance/M) cos(ω_jᵀx̃ + b_j), b_j ~ U(0, 2π), M frequencies
        paired:  φ(x) = √(2 variance/M) [cos(ω_jᵀx̃) …, sin(ω_jᵀx̃) …], M/2 frequencies

    ω_j are draws from the spectral density at ℓ = 1: standard normal for the RBF kernel, Student's t with 2ν
    degrees of freedom for Matérn-ν. They and the phases are frozen; lengthscale and variance of the `kernel`
    train. Paired features have φ(x)·φ(x) = variance exactly. Build it with `init`.

    Parameters
    ----------
    kernel : stationary kernel
        k, which sees A of the inputs; it may be frozen.
    frequencies : frozen array [A, F]
        ω at ℓ = 1, without unit, F of them.
    phases : frozen array [F] or None
        b, in radians; None for paired features.
    n_inputs : int
        D, the number of inputs.
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
        """Draws frequencies and phases.

        `orthogonal`: frequencies from `orthogonal_rows` (Yu et al. 2016), less variance for D > 1.

        Raises TypeError unless the kernel is stationary, ValueError for a number of features below 1, or odd
        when paired.
        """
        if not isinstance(value_of(kernel), AbstractStationary):
            raise TypeError(
                f"Fourier features need an RBF, Matérn or rational quadratic kernel, but got {kernel!r}"
            )
        if n_features < 1 or (paired and n_features % 2):
            wanted = "an even number, at least 2" if paired else "at least 1"
            raise ValueError(f"n_features is {n_features}; it must be {wanted}")
        direction_key, scale_key, phase_key = draws.split(key, 3)
        row = jax.ShapeDtypeStruct((n_inputs,), dtype)
        n_active = jax.eval_shape(value_of(kernel).scaled, row).shape[0]
        n_frequencies = n_features // 2 if paired else n_features
        directions = (orthogonal_rows if orthogonal else normal_rows)(
            n_frequencies, n_active, direction_key, dtype
        )
        scales = value_of(kernel).frequency_scales(n_frequencies, key=scale_key, dtype=dtype)
        phases = (
            None
            if paired
            else frozen(on_device(draws.uniform(phase_key, (n_features,), dtype, 0.0, 2 * np.pi)))
        )
        return cls(kernel, frozen(_frequencies(directions, scales)), phases, n_inputs)

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


def orthogonal_rows(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Array, "n D"]:
    """Rows ω_j ~ N(0, I_D), each block of D of them orthogonal: `orthogonal_directions` of lengths χ_D.

    With D = 1 they are independent draws.
    """
    direction_key, length_key = draws.split(key)
    lengths = jnp.linalg.norm(jax.random.normal(length_key, (n, n_inputs), dtype), axis=1)
    return lengths[:, None] * orthogonal_directions(n, n_inputs, direction_key, dtype)


def orthogonal_directions(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Array, "n D"]:
    """Uniform unit rows, each block of D of them the rows of a Haar-orthogonal matrix; fewer than D are a part of one."""
    block = min(n, n_inputs)
    rotations = jax.random.orthogonal(key, block, (-(-n // block),), dtype, m=n_inputs)
    return rotations.reshape(-1, n_inputs)[:n]


def normal_rows(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Array, "n D"]:
    """Rows ω_j ~ N(0, I_D), independent."""
    return on_device(draws.normal(key, (n, n_inputs), dtype))


def independent_directions(n: int, n_inputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Float[Array, "n D"]:
    """Uniform unit rows, independent."""
    rows = normal_rows(n, n_inputs, key, dtype)
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


def independent_frequencies(
    n: int, n_inputs: int, scales: Callable[..., Array], key: PRNGKeyArray, dtype: DTypeLike
) -> Float[Array, "n D"]:
    """Independent ω = a ξ, a from `scales`, ξ ~ N(0, I)."""
    scale_key, normal_key = jax.random.split(key)
    return normal_rows(n, n_inputs, normal_key, dtype) * scales(n, key=scale_key, dtype=dtype)[:, None]


def spread_frequencies(
    n: int, n_inputs: int, scales: Callable[..., Array], key: PRNGKeyArray, dtype: DTypeLike
) -> Float[Array, "n D"]:
    """ω = a ‖ξ‖ q: directions q in orthogonal blocks, lengths a ‖ξ‖ stratified. Each ω is distributed as an independent one.

    `CANDIDATES` · n independent lengths are drawn. Sorted by size they fall into n runs of `CANDIDATES` lengths each. Of every
    run the length that was drawn first is kept. The kept lengths stay in the order in which they were drawn. This order does
    not depend on their sizes, so the choice within a run is uniform, and so is the permutation.
    """
    direction_key, length_key = jax.random.split(key)
    candidates = independent_frequencies(CANDIDATES * n, n_inputs, scales, length_key, dtype)
    lengths = jnp.linalg.norm(candidates, axis=1)
    kept = jnp.sort(jnp.argsort(lengths).reshape(n, CANDIDATES).min(axis=1))
    return orthogonal_directions(n, n_inputs, direction_key, dtype) * lengths[kept][:, None]


@jax.jit
def _frequencies(directions: Float[Array, "F D"], scales: Float[Array, " F"]) -> Float[Array, "D F"]:
    return (directions * scales[:, None]).T
