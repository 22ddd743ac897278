"""Loading of estimators from the files that `save` wrote."""

import os
from pathlib import Path
from typing import Any

from stochgp import families, pools
from stochgp.estimators.saving import restored
from stochgp.names import REGISTERED
from stochgp.storage import load_tree

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        families.FeatureGPRegressor,
        families.KernelGPRegressor,
        families.SparseGPClassifier,
        families.SparseGPRegressor,
        pools.GPClassifier,
        pools.GPRegressor,
        pools.HurdleRegressor,
    )
}


def load(path: str | os.PathLike) -> Any:
    """Return the estimator that `save` wrote to `path`; it predicts the same, to the last bit.

    Raises ValueError in one line for a file that is not from stochgp, truncated, changed since it was written, or of a newer format.

    Parameters
    ----------
    path : str or path
        The file.
    """
    kinds = _KINDS | {kind.__name__: kind for kind in REGISTERED.get("model", {}).values()}
    tree, metadata = load_tree(Path(path))
    kind = kinds.get(str(metadata.get("estimator")))
    if kind is None:
        raise ValueError(f"{path} holds no fitted estimator of this version of stochgp")
    try:
        return restored(tree, metadata, kind, kinds)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} holds no whole {kind.__name__}: {type(error).__name__} {error}") from error
