"""Embeddings of numeric inputs: a network's view of a row, instead of its numbers. They are made from some rows of the data."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.numerics.arrays import on_device
from stochgp.numerics.precision import einsum
from stochgp.numerics.seeds import normal, split_key, uniform
from stochgp.parameters import Frozen, frozen, value_of

BOUND = 3.0  # of a smoothly clipped input
FARTHEST = 8.0  # most scales between a smoothly clipped row and the mean
# Standard deviations outside of the range of the rows. RMSE on a fifth year of particulate matter, from four: 0.75 with 0 to 0.1, 0.82 with 0.5, 0.94 unbounded.
REACH = 0.1
QUARTILES = 1.349  # their distance, in standard deviations of a Gaussian
BINS = 8
N_FREQUENCIES, N_COMPONENTS, FREQUENCY = (
    8,
    3,
    0.1,
)  # of a periodic embedding: cosines, outputs, standard deviation


class SmoothClip(eqx.Module):
    """z_d = (c(u) − mean_d)/scale_d, c(u) = u/√(1 + (u/3)²), u = (x_d − center_d) · slope_d: linear near the centre, bounded (Holzmüller et al. 2024).

    Nothing in it trains. `scale` is the standard deviation of c(u), but at least 1/8 of its largest deviation; 1 for a constant input. See `smooth_clip`.
    """

    center: Frozen  # [D], in the units of the inputs
    slope: Frozen  # [D], in 1/units
    mean: Frozen  # [D], without unit
    scale: Frozen

    @property
    def n_inputs(self) -> int:
        return self.center.content.shape[0]

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " D"]:
        parts = self.center, self.slope, self.mean, self.scale
        center, slope, mean, scale = (value_of(part, x.dtype) for part in parts)
        u = (x - center) * slope
        return (u / jnp.sqrt(1 + (u / BOUND) ** 2) - mean) / scale


class Within(eqx.Module):
    """z_d = c_d + w_d tanh((x_d − c_d)/w_d), c_d = min(max(x_d, low_d), high_d): x_d itself from low_d to high_d, and at most w_d outside.

    So a network does not extrapolate linearly. Nothing in it trains; arrays [D], in the units of the inputs. See `within`.
    """

    low: Frozen
    high: Frozen
    width: Frozen

    @property
    def n_inputs(self) -> int:
        return self.low.content.shape[0]

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " D"]:
        low, high, width = (value_of(part, x.dtype) for part in (self.low, self.high, self.width))
        nearest = jnp.minimum(jnp.maximum(x, low), high)
        return nearest + width * jnp.tanh((x - nearest) / jnp.where(width > 0, width, 1))


class PiecewiseLinear(eqx.Module):
    """z = (clipped x, e), e_{d,t} = min(max((x_d − b_{d,t})/(b_{d,t+1} − b_{d,t}), 0), 1) − ½ (Gorishniy et al. 2022).

    Nothing in it trains. See `piecewise_linear`.
    """

    clip: SmoothClip
    edges: Frozen  # b [D, T + 1], rising in each row, in the units of the inputs

    @property
    def n_inputs(self) -> int:
        return self.clip.n_inputs

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " P"]:
        edges = value_of(self.edges, x.dtype)
        share = (x[:, None] - edges[:, :-1]) / (edges[:, 1:] - edges[:, :-1])
        return jnp.concatenate([self.clip(x), jnp.clip(share, 0.0, 1.0).ravel() - 0.5])


class Periodic(eqx.Module):
    """z = (u, v), u the clipped x, v_d = W_dᵀ cos(2π(ω_d u_d + β_d)) + c_d: ω, β, W and c train (Gorishniy et al. 2022; as in Holzmüller et al. 2024)."""

    clip: SmoothClip
    frequencies: Float[Array, "D H"]  # ω, per unit of the clipped input
    phases: Float[Array, "D H"]  # β, in turns
    weight: Float[Array, "D H K"]
    bias: Float[Array, "D K"]

    @property
    def n_inputs(self) -> int:
        return self.clip.n_inputs

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " P"]:
        dtype, u = x.dtype, self.clip(x)
        turns = u[:, None] * self.frequencies.astype(dtype) + self.phases.astype(dtype)
        v = einsum("dh,dhk->dk", jnp.cos(2 * jnp.pi * turns), self.weight.astype(dtype))
        return jnp.concatenate([u, (v + self.bias.astype(dtype)).ravel()])


class Embedded(eqx.Module):
    """z = network(embedding(x)): both map one row to one axis."""

    embedding: Any
    network: Any

    @property
    def n_inputs(self) -> int:
        return self.embedding.n_inputs

    @property
    def n_outputs(self) -> int:
        return self.network.n_outputs

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " P"]:
        return self.network(self.embedding(x))


def smooth_clip(X: Float[Any, "N D"], *, dtype: DTypeLike = jnp.float32) -> SmoothClip:
    """The clip with centres at the medians of the rows X.

    Slopes are 1.349/(distance of the quartiles), which is 1/σ of Gaussian inputs; 2/range of an input whose quartiles are equal, 0 of a constant one.

    Parameters
    ----------
    X, dtype : array [N, D], dtype
        Some rows of the data, and the dtype of the clip's arrays, which are computed in float64.
    """
    X = np.asarray(X, np.float64)
    low, center, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    width = np.where(high > low, (high - low) / QUARTILES, np.ptp(X, axis=0) / 2)
    slope = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)
    u = (X - center) * slope
    clipped = u / np.sqrt(1 + (u / BOUND) ** 2)
    mean = clipped.mean(axis=0)
    scale = np.maximum(clipped.std(axis=0), abs(clipped - mean).max(axis=0) / FARTHEST)
    parts = center, slope, mean, np.where(scale > 0, scale, 1.0)
    return SmoothClip(*(frozen(on_device(part, dtype)) for part in parts))


def within(X: Float[Any, "N D"], limits: Float[Any, "2 D"], *, dtype: DTypeLike = jnp.float32) -> Within:
    """The range from `limits[0]` to `limits[1]`, and REACH standard deviations of the rows X on either side.

    Parameters
    ----------
    X, limits, dtype : array [N, D], array [2, D], dtype
        Some rows of the data, for standard deviations with divisor N; the range of each input; the dtype of the embedding's arrays.
    """
    low, high = np.asarray(limits, np.float64)
    parts = low, high, REACH * np.asarray(X, np.float64).std(axis=0)
    return Within(*(frozen(on_device(part, dtype)) for part in parts))


def piecewise_linear(
    X: Float[Any, "N D"], n_bins: int = BINS, *, dtype: DTypeLike = jnp.float32
) -> PiecewiseLinear:
    """Bins between `n_bins` + 1 distinct quantiles of the rows X; an input with fewer values has idle bins above its largest.

    Raises ValueError for fewer than 1 bin.

    Parameters
    ----------
    X, n_bins, dtype : array [N, D], int, dtype
        Some rows of the data, for the quantiles and the clip; T, for each input; the dtype of the embedding's arrays.
    """
    if n_bins < 1:
        raise ValueError(f"n_bins is {n_bins}; it must be at least 1")
    X = np.asarray(X, np.float64)
    edges = []
    for column in X.T:
        values = np.unique(np.quantile(column, np.linspace(0, 1, n_bins + 1)))
        edges.append(np.concatenate([values, values[-1] + 1 + np.arange(n_bins + 1 - len(values))]))
    return PiecewiseLinear(smooth_clip(X, dtype=dtype), frozen(jnp.asarray(np.array(edges), dtype)))


def periodic(
    X: Float[Any, "N D"],
    n_frequencies: int = N_FREQUENCIES,
    n_components: int = N_COMPONENTS,
    *,
    key: PRNGKeyArray,
    frequency: float = FREQUENCY,
    dtype: DTypeLike = jnp.float32,
) -> Periodic:
    """ω ~ N(0, frequency²) per unit of the clipped input, β ~ U(0, 1), W ~ U(−1/√H, 1/√H), c = 0.

    Parameters
    ----------
    X, n_frequencies, n_components : array [N, D], int, int
        Some rows of the data, for the clip; H, cosines of each input; K, outputs for each input besides the clipped input itself.
    key, frequency, dtype : JAX key, float, dtype
        Of ω, β and W; the standard deviation of ω; the dtype of the embedding's arrays.
    """
    clip, H, K = smooth_clip(X, dtype=dtype), n_frequencies, n_components
    D, reach = clip.n_inputs, H**-0.5
    frequency_key, phase_key, weight_key = split_key(key, 3)
    return Periodic(
        clip=clip,
        frequencies=on_device(frequency * normal(frequency_key, (D, H), dtype)),
        phases=on_device(uniform(phase_key, (D, H), dtype, 0.0, 1.0)),
        weight=on_device(uniform(weight_key, (D, H, K), dtype, -reach, reach)),
        bias=jnp.zeros((D, K), dtype),
    )
