"""Estimators from the files that `save` wrote."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stochgp.estimators.fitted import Fitted
from stochgp.estimators.saving import restored
from stochgp.families import FeatureGPRegressor, KernelGPRegressor, SparseGPClassifier, SparseGPRegressor
from stochgp.names import REGISTERED
from stochgp.pools import GPClassifier, GPRegressor, HurdleRegressor
from stochgp.pools.hurdle import Hurdle
from stochgp.pools.weights import PoolWeights
from stochgp.storage.files import load_tree

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        FeatureGPRegressor,
        GPClassifier,
        GPRegressor,
        HurdleRegressor,
        KernelGPRegressor,
        SparseGPClassifier,
        SparseGPRegressor,
    )
}


def load(path: str | os.PathLike) -> Any:
    """The estimator that `save` wrote to `path`; it predicts the same, to the last bit.

    Raises ValueError in one line for a file that is not of stochgp, truncated, changed since it was written, or of a newer format.

    Parameters
    ----------
    path : str or path
        The file.
    """
    kinds = _KINDS | {kind.__name__: kind for kind in REGISTERED.get("model", {}).values()}
    tree, metadata = load_tree(Path(path))
    kind = kinds.get(str(metadata.get("estimator")))
    if kind is None or not _is_whole(tree):
        raise ValueError(f"{path} holds no fitted estimator of this version of stochgp")
    _refuse_nan(path, tree)
    try:
        return restored(tree, metadata, kind, kinds)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} holds no whole {kind.__name__}: {type(error).__name__} {error}") from error


def _is_whole(tree: Any) -> bool:
    """Whether the tree holds a fit, or a pool and the fits of its members."""
    if isinstance(tree, dict) and isinstance(tree.get("fitted"), PoolWeights | Hurdle):
        members = tree.get("members")
        return isinstance(members, dict) and len(members) > 0 and all(map(_is_whole, members.values()))
    return isinstance(tree, dict) and isinstance(tree.get("fitted"), Fitted)


def _refuse_nan(path: str | os.PathLike, tree: dict[str, Any]) -> None:
    """Raises ValueError, naming the array, for numbers that no fit leaves behind, of each member: predictions would blame the rows given to them."""
    for member in tree.get("members", {}).values():
        _refuse_nan(path, member)
    for part in () if "members" in tree else ("inputs", "targets", "posterior"):
        for where, leaf in jax.tree_util.tree_leaves_with_path(vars(getattr(tree["fitted"], part))):
            is_float = isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
            if is_float and np.isnan(np.asarray(leaf)).any():
                raise ValueError(f"{path} is damaged: its {part}{jax.tree_util.keystr(where)} holds NaN")
