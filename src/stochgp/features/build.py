"""A feature map from its name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp import kernels
from stochgp.features.base import AbstractFeatureMap
from stochgp.features.compose import Composed, Scaled
from stochgp.features.fourier import RandomFourier
from stochgp.features.hashing import TanimotoHashes
from stochgp.features.linear import Linear
from stochgp.features.network import Network
from stochgp.features.nystrom import Nystrom
from stochgp.names import lookup
from stochgp.networks import Embedded, attention, mlp, periodic, piecewise_linear, smooth_clip, within
from stochgp.numerics import draws
from stochgp.parameters import value_of

MLPS = ("mlp", "robust-mlp", "piecewise-mlp", "periodic-mlp")
NETWORKS = (*MLPS, "attention")
NAMES = (*NETWORKS, "linear", "rff", "orf", "nystrom", "tanimoto")
UNBOUNDED = ("mlp", "attention")  # networks of the inputs as they are
N_NETWORK, N_ATTENTION, N_FOURIER, N_NYSTROM = 128, 32, 1000, 512  # the sizes of the papers
N_HASHES = 1000


def resolve(
    spec: str | AbstractFeatureMap | Callable[[Array], Array],
    kernel: Any = None,
    n_features: int | None = None,
    *,
    n_inputs: int,
    key: PRNGKeyArray,
    X_sample: Float[Array, "N D"] | None = None,
    limits: Float[np.ndarray, "2 D"] | None = None,
    dtype: DTypeLike = jnp.float32,
) -> AbstractFeatureMap:
    """The feature map that `spec` asks for, for rows of `n_inputs` standardised inputs.

    | spec | features φ | `kernel` | M, unless `n_features` says it |
    |---|---|---|---|
    | "linear" | 1 and the inputs | None | D + 1 |
    | "rff", "orf" | (orthogonal) random Fourier features | stationary, None = "rbf" | 1000 |
    | "nystrom" | Nyström features, landmarks from `X_sample` | any, None = "rbf" | 512, or all rows |
    | "tanimoto" | random hashes of fingerprints | Tanimoto, None = "tanimoto" | 1000 |
    | "mlp" | two layers of 128, ReLU | None or "linear" | 128, the second width |
    | "robust-mlp" | the same on smoothly clipped inputs (`networks.smooth_clip`, from `X_sample`) | | |
    | "piecewise-mlp", "periodic-mlp" | the same on `networks.piecewise_linear`, `networks.periodic` | | |
    | "attention" | the attention network | None or "linear" | 32, its width |
    | a network | z of anything that maps one row to one axis | None or "linear" | its own |
    | the networks | random Fourier features of z | stationary, one lengthscale | 1000 |
    | a feature map | as it is | None | its own |

    Raises ValueError for an unknown name (naming the nearest one) and for options that contradict one another, TypeError for a `spec` of another kind.

    Parameters
    ----------
    spec : str, feature map or callable
        As in the table, or a name of `stochgp.register`; a network maps one row [D] to one axis [M].
    kernel : str, kernel or None
        What the features approximate, by its name or as a value: a kernel of the rows, or of the network's output z.
    n_features : int or None
        M; None = as in the table. Of a network given with a linear kernel no other number is possible than that of its outputs.
    n_inputs : int
        D, the number of inputs.
    key : PRNG key
        Of the weights, frequencies, hashes and landmarks drawn here.
    X_sample : array [N, D] or None
        Rows from which "nystrom" takes landmarks, and "robust-mlp", "piecewise-mlp" and "periodic-mlp" make their embeddings: ValueError where it is None.
    limits : array [2, D] or None
        The smallest and the largest value of each input of all rows, which bound what "mlp" and "attention" see of rows beyond (`networks.within`, from
        `X_sample`; None: nothing does). The embeddings of the other names are bounded in any case.
    dtype : dtype
        Of the parameters and draws made here.
    """
    if isinstance(spec, AbstractFeatureMap):
        if kernel is not None or n_features is not None:
            raise ValueError("a feature map brings its own kernel and n_features: leave both None")
        return spec
    if isinstance(spec, str):
        return _named(spec, kernel, n_features, n_inputs, key, X_sample, limits, dtype)
    if callable(value_of(spec)):
        _, feature_key = draws.split(key)
        return _on_network(Network(spec, n_inputs), kernel, n_features, feature_key, dtype)
    raise TypeError(
        f"features must be one of {', '.join(NAMES)}, a feature map or a network, but got {spec!r}"
    )


def _named(
    spec: str,
    kernel: Any,
    n_features: int | None,
    n_inputs: int,
    key: PRNGKeyArray,
    X_sample: Float[Array, "N D"] | None,
    limits: Float[np.ndarray, "2 D"] | None,
    dtype: DTypeLike,
) -> AbstractFeatureMap:
    """The feature map of a name."""
    network_key, feature_key = draws.split(key)
    name = lookup(spec, {name: name for name in NAMES}, "features")
    if not isinstance(name, str):  # a class that a user has registered
        return name.init(n_inputs, n_features, key=feature_key, dtype=dtype)
    if name in NETWORKS:
        width = n_features if _is_linear(kernel) else None
        network = _named_network(name, n_inputs, width, X_sample, network_key, dtype)
        if limits is not None and name in UNBOUNDED and X_sample is not None:
            network = Embedded(within(np.asarray(X_sample), limits, dtype=dtype), network)
        return _on_network(Network(network), kernel, n_features, feature_key, dtype)
    if name == "linear":
        if kernel is not None or n_features is not None:
            raise ValueError("linear features take neither a kernel nor n_features: leave both None")
        return Linear(n_inputs)
    usual = "tanimoto" if name == "tanimoto" else "rbf"
    kernel = _kernel(usual if kernel is None else kernel, n_inputs, ard=True, dtype=dtype)
    if name == "tanimoto":
        M = N_HASHES if n_features is None else n_features
        return TanimotoHashes.init(kernel, n_inputs, M, key=feature_key, dtype=dtype)
    if name == "nystrom":
        return _nystrom(kernel, n_features, X_sample, feature_key)
    n_features = N_FOURIER if n_features is None else n_features
    return RandomFourier.init(
        kernel, n_inputs, n_features, key=feature_key, orthogonal=name == "orf", dtype=dtype
    )


def is_network(spec: Any) -> bool:
    """Whether `resolve` makes a network for it, of inputs that are bounded where it knows their limits.

    Parameters
    ----------
    spec : Any
        What `resolve` takes: True for the names of networks only.
    """
    return isinstance(spec, str) and spec in NETWORKS


def _is_linear(kernel: Any) -> bool:
    return kernel is None or kernel == "linear" or isinstance(kernel, kernels.Linear)


def _kernel(kernel: Any, n_inputs: int, *, ard: bool, dtype: DTypeLike) -> Any:
    """A kernel by name; anything else, frozen kernels too, is for the feature map to judge."""
    return kernels.resolve(kernel, n_inputs, ard=ard, dtype=dtype) if isinstance(kernel, str) else kernel


def _named_network(
    name: str, n_inputs: int, width: int | None, X_sample: Array | None, key: PRNGKeyArray, dtype: DTypeLike
) -> Any:
    if name == "attention":
        return attention(n_inputs, width=N_ATTENTION if width is None else width, key=key, dtype=dtype)
    widths = (N_NETWORK, N_NETWORK if width is None else width)
    if name == "mlp":
        return mlp(n_inputs, widths, key=key, dtype=dtype)
    if X_sample is None:
        raise ValueError(f"the embedding of {name!r} is made from the data: give X_sample")
    embedding_key, key = jax.random.split(key)
    embedding = _embedding(name, np.asarray(X_sample), embedding_key, dtype)
    return Embedded(embedding, mlp(embedding.n_outputs, widths, key=key, dtype=dtype))


def _embedding(name: str, X: np.ndarray, key: PRNGKeyArray, dtype: DTypeLike) -> Any:
    if name == "periodic-mlp":
        return periodic(X, key=key, dtype=dtype)
    return (smooth_clip if name == "robust-mlp" else piecewise_linear)(X, dtype=dtype)


def _on_network(
    network: Network, kernel: Any, n_features: int | None, key: PRNGKeyArray, dtype: DTypeLike
) -> AbstractFeatureMap:
    """The map of `kernel` on the network's output."""
    if not _is_linear(kernel):
        kernel = _kernel(kernel, network.n_features, ard=False, dtype=dtype)
        n_features = N_FOURIER if n_features is None else n_features
        return Composed(
            network, RandomFourier.init(kernel, network.n_features, n_features, key=key, dtype=dtype)
        )
    if n_features not in (None, network.n_features):
        raise ValueError(f"n_features is {n_features}, but the network returns {network.n_features} values")
    if not isinstance(kernel, kernels.Linear):
        return network
    if kernel.active_dims is not None:
        raise ValueError("a linear kernel on a network's output takes no active_dims")
    return Scaled(network, kernel.variance)


def _nystrom(kernel: Any, n_features: int | None, X_sample: Array | None, key: PRNGKeyArray) -> Nystrom:
    if X_sample is None:
        raise ValueError("Nyström features take their landmarks from the data: give X_sample")
    n_features = min(N_NYSTROM, X_sample.shape[0]) if n_features is None else n_features
    return Nystrom.init(kernel, X_sample, n_features, key=key)
