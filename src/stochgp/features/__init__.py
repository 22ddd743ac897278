"""Feature maps φ with φ(x)·φ(z) ≈ k(x, z). With M features, a fit costs O(N M²)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp import kernels, networks
from stochgp.names import lookup
from stochgp.numerics.seeds import split_key
from stochgp.parameters import value_of

from .base import AbstractFeatureMap, Composed, Linear, Network, Nystrom, Scaled, Sum
from .base import kmeans_landmarks as kmeans_landmarks
from .base import on_host as on_host
from .fourier import Extrapolation, RandomFourier
from .hashing import TanimotoHashes

__all__ = [
    "AbstractFeatureMap", "Composed", "Extrapolation", "Linear", "Network", "Nystrom", "RandomFourier", "Scaled", "Sum", "TanimotoHashes", "resolve",
]  # fmt: skip

NETWORKS = ("mlp", "attention")
NAMES = (*NETWORKS, "linear", "rff", "orf", "nystrom", "tanimoto")
N_NETWORK, N_ATTENTION, N_FOURIER, N_NYSTROM = 128, 32, 1000, 512  # the sizes in the papers
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
    """Return the feature map for `spec` and rows of `n_inputs` standardised inputs.

    | spec | features φ | `kernel` | default `n_features` (M) |
    |---|---|---|---|
    | "linear" | 1 and the inputs | None | D + 1 |
    | "rff", "orf" | random Fourier features ("orf": orthogonal) | stationary, None = "rbf" | 1000 |
    | "nystrom" | Nyström features, with landmarks from `X_sample` | any, None = "rbf" | 512, at most N |
    | "tanimoto" | random hashes of fingerprints | Tanimoto, None = "tanimoto" | 1000 |
    | "mlp" | two layers of 128 units with ReLU | None or "linear" | 128 |
    | "attention" | the attention network | None or "linear" | 32 |
    | a network | its output z [M] for a row | None or "linear" | length of z |
    | any of these networks | random Fourier features of z | stationary, one lengthscale | 1000 |
    | a feature map | unchanged | None | its M |

    Raises ValueError for an unknown name or contradictory options, and TypeError for other objects.

    Parameters
    ----------
    spec : str, feature map or callable
        A row of the table, or a name added with `stochgp.register`. A network maps a row [D] to z.
    kernel, n_features : str, kernel or None; int or None
        The kernel to approximate, and M. A network with a linear kernel has one feature per output.
    n_inputs, key, dtype : int, PRNG key, dtype
        The number D of inputs, the key for random draws, and the dtype of draws and new parameters.
    X_sample, limits : array [N, D] or None, array [2, D] or None
        Rows for landmarks ("nystrom"), and input ranges. With both, "mlp" and "attention" bound their inputs.
    """
    if isinstance(spec, AbstractFeatureMap):
        if kernel is not None or n_features is not None:
            raise ValueError("a feature map already has a kernel and n_features: leave both None")
        return spec
    if not isinstance(spec, str) and not callable(value_of(spec)):
        names = ", ".join(NAMES)
        raise TypeError(f"features must be a name ({names}), a feature map or a network, but is {spec!r}")
    network_key, feature_key = split_key(key)
    if not isinstance(spec, str):
        return _on_network(Network(spec, n_inputs), kernel, n_features, feature_key, dtype)
    name = lookup(spec, {name: name for name in NAMES}, "features")
    if not isinstance(name, str):  # a class registered by a user
        return name.init(n_inputs, n_features, key=feature_key, dtype=dtype)
    if name not in NETWORKS:
        return _of_kernel(name, kernel, n_features, n_inputs, feature_key, X_sample, dtype)
    width = n_features if _is_linear(kernel) else None
    width = (N_NETWORK if name == "mlp" else N_ATTENTION) if width is None else width
    if name == "mlp":
        network = networks.mlp(n_inputs, (N_NETWORK, width), key=network_key, dtype=dtype)
    else:
        network = networks.attention(n_inputs, width=width, key=network_key, dtype=dtype)
    if limits is not None and X_sample is not None:
        network = networks.within(network, np.asarray(X_sample), limits, dtype=dtype)
    return _on_network(Network(network), kernel, n_features, feature_key, dtype)


def is_network(spec: Any) -> bool:
    """Return True if `spec` is the name of a network."""
    return isinstance(spec, str) and spec in NETWORKS


def _of_kernel(
    name: str, kernel: Any, M: int | None, n_inputs: int, key: PRNGKeyArray, X: Array | None, dtype: DTypeLike
) -> AbstractFeatureMap:
    """Return the feature map for a name that is not the name of a network."""
    if name == "linear":
        if kernel is not None or M is not None:
            raise ValueError("linear features need no kernel and no n_features: leave both None")
        return Linear(n_inputs)
    default = "tanimoto" if name == "tanimoto" else "rbf"
    kernel = default if kernel is None else kernel
    kernel = kernels.resolve(kernel, n_inputs, dtype=dtype) if isinstance(kernel, str) else kernel
    if name == "tanimoto":
        return TanimotoHashes.init(kernel, n_inputs, N_HASHES if M is None else M, key=key, dtype=dtype)
    if name == "nystrom":
        if X is None:
            raise ValueError("Nyström features need rows for their landmarks: pass X_sample")
        return Nystrom.init(kernel, X, min(N_NYSTROM, X.shape[0]) if M is None else M, key=key)
    M = N_FOURIER if M is None else M
    return RandomFourier.init(kernel, n_inputs, M, key=key, orthogonal=name == "orf", dtype=dtype)


def _is_linear(kernel: Any) -> bool:
    return kernel is None or kernel == "linear" or isinstance(kernel, kernels.Linear)


def _on_network(
    network: Network, kernel: Any, n_features: int | None, key: PRNGKeyArray, dtype: DTypeLike
) -> AbstractFeatureMap:
    """Return the features of `kernel` for the output of the network."""
    n_outputs = network.n_features
    if not _is_linear(kernel):
        if isinstance(kernel, str):
            kernel = kernels.resolve(kernel, n_outputs, ard=False, dtype=dtype)
        M = N_FOURIER if n_features is None else n_features
        return Composed(network, RandomFourier.init(kernel, n_outputs, M, key=key, dtype=dtype))
    if n_features not in (None, n_outputs):
        raise ValueError(f"n_features is {n_features}, but the network returns {n_outputs} values")
    if not isinstance(kernel, kernels.Linear):
        return network
    if kernel.active_dims is not None:
        raise ValueError("a linear kernel on a network's output cannot have active_dims")
    return Scaled(network, kernel.variance)
