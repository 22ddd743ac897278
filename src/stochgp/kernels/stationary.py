"""Stationary kernels k(x, z) = variance · f(s) with s = Σ_d (x_d − z_d)² / ℓ_d².

The Matérn family follows Rasmussen and Williams (2006), equations 4.14 to 4.17.
"""

import abc
import functools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.kernels.base import (
    AbstractKernel,
    ActiveDims,
    Points,
    as_active_dims,
    as_amplitude,
    per_input,
    points,
    select,
    squared_distances,
)
from stochgp.numerics import seeds
from stochgp.parameters import AbstractParameter, as_positive, partition, value_of

APART = 2  # coordinates of the shortest lengthscales, whose differences are squared directly


class AbstractStationary(AbstractKernel):
    """Base class of kernels k = variance · f(s), where s is a squared scaled distance.

    A subclass implements f as `profile`, with f(0) = 1, and random frequencies as `frequency_scales`.
    Fields accept numbers, arrays and parameters, such as `lengthscale=bounded(1.0, 0.1, 10.0)` or
    `variance=frozen(1.0)`.

    Parameters
    ----------
    lengthscale : number, array [A] or parameter
        ℓ in s = Σ_d (x_d − z_d)²/ℓ_d², in the units of the inputs: one number, or one per active input.
    variance : number or parameter
        The variance k(x, x).
    active_dims : iterable of int or None
        The A columns that the kernel uses; None = all columns.
    """

    lengthscale: AbstractParameter = eqx.field(converter=as_positive, default=1.0)
    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)
    active_dims: ActiveDims = eqx.field(static=True, converter=as_active_dims, default=None)

    @abc.abstractmethod
    def profile(self, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return f(s) for squared scaled distances s."""

    @abc.abstractmethod
    def frequency_scales(
        self, n: int, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32
    ) -> Float[Any, " n"]:
        """Draw n random scales a of frequencies, such that f(s) = E exp(−a² s / 2)."""

    def scaled(self, x: Float[Array, "... D"]) -> Float[Array, "... A"]:
        """Return the active inputs divided by the lengthscale."""
        x = select(x, self.active_dims)
        return x / per_input("lengthscale", self.lengthscale, x)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> Points:
        """Scale the coordinates, and keep those with the shortest lengthscales apart."""
        shifted = select(X, self.active_dims) - select(centre, self.active_dims)[None, :]
        scaled = shifted / per_input("lengthscale", self.lengthscale, shifted)
        lengthscale = value_of(self.lengthscale, X.dtype)
        if lengthscale.size == 1:
            return points(scaled)
        order = jnp.argsort(jax.lax.stop_gradient(lengthscale))
        return points(scaled[:, order], APART)

    def between(self, rows: Points, columns: Points) -> Float[Array, "N P"]:
        variance = value_of(self.variance, rows.norms.dtype)
        return variance * self.profile(squared_distances(rows, columns))

    def diag(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        self.scaled(X[:1])  # raises the same errors as `matrix`
        return jnp.broadcast_to(value_of(self.variance, X.dtype), X.shape[:1])

    @property
    def radial(self) -> "AbstractStationary":
        return self

    def places(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N _"], ...]:
        """Return x/ℓ, because f decreases with the distance."""
        return (self.scaled(X),)


class RBF(AbstractStationary):
    """The RBF kernel k = variance · exp(−r²/2) at scaled distance r.

    Parameters
    ----------
    lengthscale, variance, active_dims
        See `AbstractStationary`.
    """

    def profile(self, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return jnp.exp(-0.5 * s)

    def frequency_scales(
        self, n: int, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32
    ) -> Float[Any, " n"]:
        return np.ones(n, dtype)


class AbstractMatern(AbstractStationary):
    """The Matérn kernel with smoothness ν = `degrees`/2."""

    degrees: ClassVar[int]

    def profile(self, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return _matern(self.degrees // 2, self.degrees * s)

    def frequency_scales(
        self, n: int, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32
    ) -> Float[Any, " n"]:
        """Draw √(2ν/u), where u has a χ² distribution with 2ν degrees of freedom."""
        normal = seeds.normal(key, (n, self.degrees), dtype)
        u = (normal * normal).sum(axis=1) + float(jnp.finfo(dtype).tiny)
        return (self.degrees / u) ** 0.5


class Matern12(AbstractMatern):
    """The Matérn-1/2 kernel k = variance · exp(−r) at scaled distance r.

    Functions are continuous, but rough. At r = 0, the derivative of k does not exist; it is set to 0.

    Parameters
    ----------
    lengthscale, variance, active_dims
        See `AbstractStationary`.
    """

    degrees: ClassVar[int] = 1


class Matern32(AbstractMatern):
    """The Matérn-3/2 kernel k = variance · (1 + √3 r) exp(−√3 r) at scaled distance r.

    Parameters
    ----------
    lengthscale, variance, active_dims
        See `AbstractStationary`.
    """

    degrees: ClassVar[int] = 3


class Matern52(AbstractMatern):
    """The Matérn-5/2 kernel k = variance · (1 + √5 r + 5r²/3) exp(−√5 r) at scaled distance r.

    Parameters
    ----------
    lengthscale, variance, active_dims
        See `AbstractStationary`.
    """

    degrees: ClassVar[int] = 5


class RationalQuadratic(AbstractStationary):
    """The rational quadratic kernel k = variance · (1 + r²/(2α))^(−α) at scaled distance r.

    Parameters
    ----------
    lengthscale, variance, active_dims
        See `AbstractStationary`.
    alpha : number or parameter
        The exponent α > 0; k tends to the RBF kernel as α grows. `features.RandomFourier` needs a frozen α.
    """

    alpha: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)

    def profile(self, s: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        alpha = value_of(self.alpha, s.dtype)
        return jnp.exp(-alpha * jnp.log1p(s / (2 * alpha)))

    def frequency_scales(
        self, n: int, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32
    ) -> Float[Any, " n"]:
        """Draw scales a with a² ~ Gamma(α, mean 1). Raises ValueError unless α is frozen."""
        if jax.tree.leaves(partition(self.alpha)[0]):
            what = "frequencies of a rational quadratic kernel"
            raise ValueError(f"{what} need a fixed alpha: pass alpha=frozen(...)")
        alpha = value_of(self.alpha, dtype)
        return jnp.sqrt(jax.random.gamma(key, alpha, (n,), dtype) / alpha)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern(k: int, t: Array) -> Array:
    """Return f₀ = exp(−a), f₁ = (1 + a) f₀ or f₂ = (1 + a + a²/3) f₀ for t = a² = 2νs.

    The derivatives f₁' = −f₀/2 and f₂' = −f₁/6 are correct at t = 0. There f₀' is set to 0.
    """
    a = jnp.sqrt(t)
    return (1.0, 1 + a, 1 + a + t / 3)[k] * jnp.exp(-a)


@_matern.defjvp
def _matern_jvp(k: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (t,), (dt,) = primals, tangents
    value = _matern(k, t)
    if k > 0:
        return value, -_matern(k - 1, t) / (2 if k == 1 else 6) * dt
    positive = t > 0
    root = jnp.sqrt(jnp.where(positive, t, jnp.ones_like(t)))
    # The value does not use `root`. Compiled programs compute t twice, and `positive` may differ if t is only
    # rounding error. The value would then be exp(−1).
    return value, jnp.where(positive, -value / (2 * root), jnp.zeros_like(t)) * dt
