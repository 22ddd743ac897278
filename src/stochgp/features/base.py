"""The base class of feature maps, simple feature maps, their sums and compositions."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.kernels import AbstractKernel
from stochgp.kernels.base import as_amplitude, as_kernel
from stochgp.numerics import seeds
from stochgp.numerics.arrays import filled_up, full_precision, on_device
from stochgp.parameters import AbstractParameter, Frozen, frozen, value_of

BLOCK = 256  # rows per call of the compiled program in `on_host`


class AbstractFeatureMap(eqx.Module):
    """A map of rows X [N, D] to features Φ [N, M] with φ(x)·φ(z) ≈ k(x, z).

    The features have the dtype of X. The features of a row do not depend on other rows.
    """

    @property
    @abc.abstractmethod
    def n_features(self) -> int:
        """The number M of features."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """Return the features of each row."""


def check_rows(X: Array, n_inputs: int) -> None:
    """Raise ValueError unless X has a floating dtype and the shape [N, n_inputs]."""
    if X.ndim != 2 or X.shape[1] != n_inputs or not jnp.issubdtype(X.dtype, jnp.floating):
        got = f"X has the dtype {X.dtype} and the shape {X.shape}"
        raise ValueError(f"the feature map needs a floating-point array [N, {n_inputs}], but {got}")


class Linear(AbstractFeatureMap):
    """Features φ(x) = (1, x₁, …, x_D)/√(D + 1) of Bayesian linear regression.

    Parameters
    ----------
    n_inputs : int
        D, the number of inputs.
    """

    n_inputs: int

    @property
    def n_features(self) -> int:
        return self.n_inputs + 1

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        return jnp.concatenate([jnp.ones_like(X[:, :1]), X], axis=1) / self.n_features**0.5


def on_host(features: AbstractFeatureMap, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N M"]:
    """Return φ in float64 on the host. Nonlinear features are computed in blocks of rows."""
    if isinstance(features, Linear):  # needs no compiled program
        return np.column_stack([np.ones(len(X)), np.asarray(X, np.float64)]) / features.n_features**0.5
    blocks = [filled_up(X[i : i + BLOCK], BLOCK) for i in range(0, len(X), BLOCK)]
    parts = [np.asarray(_block(features, block), np.float64) for block in blocks]
    return np.concatenate([np.zeros((0, features.n_features)), *parts])[: len(X)]


@quick_jit
def _block(features: AbstractFeatureMap, X: Any) -> Array:
    return features(jnp.asarray(X))


class Network(AbstractFeatureMap):
    """Features φ(x) = network(x), where the network is an Equinox module or a function.

    Raises ValueError if the number D of inputs is unknown, or if the network does not map a row to a vector.

    Parameters
    ----------
    network : callable
        A function of one row, or an Equinox module whose floating-point arrays are learned, unless `frozen`.
    n_inputs : int or None
        The number D of inputs. None: read it from the attribute `n_inputs`, `in_size` or `in_features`.
    """

    network: Callable[[Array], Array]
    n_inputs: int = eqx.field(static=True)
    size: int = eqx.field(static=True)  # M

    def __init__(self, network: Callable[[Array], Array], n_inputs: int | None = None):
        self.network = network
        if n_inputs is None:
            content, names = value_of(network), ("n_inputs", "in_size", "in_features")
            sizes = [size for name in names if isinstance(size := getattr(content, name, None), int)]
            if not sizes:
                what = type(content).__name__
                raise ValueError(f"{what} has no attribute n_inputs, in_size or in_features: pass n_inputs")
            n_inputs = sizes[0]
        self.n_inputs = n_inputs
        self.size = _output_size(network, n_inputs)

    @property
    def n_features(self) -> int:
        return self.size

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        with full_precision():
            return jax.vmap(self.network)(X)


def _output_size(network: Callable[[Array], Array], n_inputs: int) -> int:
    """Return the length M of the output. Raise ValueError unless the output is a vector."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(network) if eqx.is_inexact_array(leaf)]
    row = jax.ShapeDtypeStruct((n_inputs,), dtypes[0] if dtypes else jnp.float32)
    try:
        output = eqx.filter_eval_shape(network, row)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the network cannot map one row of shape ({n_inputs},): {error}") from error
    shape = getattr(output, "shape", None)
    if shape is None or len(shape) != 1 or not jnp.issubdtype(output.dtype, jnp.floating):
        wanted = f"one row [{n_inputs}] to a floating-point vector [M]"
        raise ValueError(f"the network must map {wanted}, but returns {output}")
    return shape[0]


def _as_map(features: Any) -> AbstractFeatureMap:
    return features if isinstance(features, AbstractFeatureMap) else Network(features)


class Scaled(AbstractFeatureMap):
    """Features √variance · φ(x), so that the trainable `variance` multiplies the kernel.

    Parameters
    ----------
    features : feature map or callable
        A feature map φ or a network (see `Network`).
    variance : number or parameter
        The factor of the kernel, in squared units of f.
    """

    features: AbstractFeatureMap = eqx.field(converter=_as_map)
    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.sqrt(value_of(self.variance, X.dtype)) * self.features(X)


class Composed(AbstractFeatureMap):
    """Features φ(g(x)) of the output of a network g. Both φ and g train.

    Parameters
    ----------
    network : feature map or callable
        The network or map g.
    features : feature map
        The map φ. The number of inputs of φ must equal the number of outputs of g.
    """

    network: AbstractFeatureMap = eqx.field(converter=_as_map)
    features: AbstractFeatureMap

    def __check_init__(self) -> None:
        n_inputs = getattr(self.features, "n_inputs", self.network.n_features)
        if n_inputs != (M := self.network.n_features):
            raise ValueError(f"the network returns {M} values, but the features take {n_inputs} inputs")

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self.features(self.network(X))


class Sum(AbstractFeatureMap):
    """Concatenated features [left(x), right(x)] of the sum of two kernels.

    Parameters
    ----------
    left, right : feature map
        Feature maps of the same rows, or networks (see `Network`).
    """

    left: AbstractFeatureMap = eqx.field(converter=_as_map)
    right: AbstractFeatureMap = eqx.field(converter=_as_map)

    @property
    def n_features(self) -> int:
        return self.left.n_features + self.right.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.concatenate([self.left(X), self.right(X)], axis=1)


class Nystrom(AbstractFeatureMap):
    """Nyström features φ(x) = L⁻¹ k(U, x) with landmarks U [M, D] and LLᵀ = k(U, U) + εI.

    φ(x)·φ(z) = k(x, U) (k(U, U) + εI)⁻¹ k(U, z) approximates k(x, z). The landmarks are fixed.

    Parameters
    ----------
    kernel : kernel
        The kernel k, which is learned unless it is `frozen`.
    landmarks : array [M, D]
        The landmarks U in the units of the inputs.
    jitter : float or None
        ε divided by the mean diagonal of k(U, U). None: 4 M times the machine epsilon of the rows' dtype.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    landmarks: Frozen = eqx.field(converter=frozen)
    jitter: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        shape = self.landmarks.shape
        if len(shape) != 2 or shape[0] == 0:
            raise ValueError(f"landmarks must be an array [M, D] with M ≥ 1, but have the shape {shape}")

    @classmethod
    def init(
        cls, kernel: AbstractKernel | Frozen, X: Float[Array, "N D"], n_features: int, *, key: PRNGKeyArray
    ) -> "Nystrom":
        """Draw `n_features` rows of X uniformly, without replacement, as landmarks."""
        _check_enough(X, n_features)
        return cls(kernel, X[jax.random.choice(key, X.shape[0], (n_features,), replace=False)])

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


def kmeans_landmarks(X: Float[Array, "N D"], n_landmarks: int, *, key: PRNGKeyArray) -> Float[Array, "M D"]:
    """Return the centres of M = `n_landmarks` k-means clusters of X."""
    from sklearn.cluster import KMeans  # slow to import

    _check_enough(X, n_landmarks)
    seed = seeds.seed_of(seeds.split(key, 2)[1])[0] % (2**31 - 1)
    centres = KMeans(n_landmarks, n_init="auto", random_state=seed).fit(np.asarray(X)).cluster_centers_
    return on_device(centres, X.dtype)


def _check_enough(X: Array, n_landmarks: int) -> None:
    if not 1 <= n_landmarks <= X.shape[0]:
        n = X.shape[0]
        raise ValueError(f"n_landmarks must be between 1 and the {n} rows of X, but is {n_landmarks}")
