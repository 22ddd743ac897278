"""Save fitted estimators to files and pickles, and load saved estimators."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stochgp.choosing import Decisions
from stochgp.names import REGISTERED
from stochgp.storage.trees import decode, encode, load_tree, save_tree
from stochgp.warning import warn

EMPTY: Mapping[str, type] = {}
LARGEST_LABELS = 1 << 26  # maximum bytes of all class labels in a file


def save(estimator: Any, path: Any) -> None:
    """Write the settings, attributes and fitted model of an estimator to one file."""
    tree, metadata, left_out = _parts(estimator)
    save_tree(path, tree, metadata)
    if left_out:
        warn(
            f"the setting(s) {', '.join(left_out)} cannot be saved: after loading {path}, these settings have default values. "
            "Predictions do not depend on these settings",
            UserWarning,
            stacklevel=3,
        )


def load(path: Any) -> Any:
    """Load the estimator from a file that `save` wrote. Predictions equal those before saving.

    Raises ValueError if the file is damaged, has a newer format, or was not written by stochgp.

    Parameters
    ----------
    path : str, path or binary file object
        The file that `save` wrote.
    """
    from stochgp import families, pools  # they import this module

    kinds = {name: getattr(room, name) for room in (families, pools) for name in room.__all__}
    kinds |= {kind.__name__: kind for kind in REGISTERED.get("model", {}).values()}
    tree, metadata = load_tree(path)
    name = metadata.get("estimator")
    if name not in kinds:
        raise ValueError(f"{path} does not contain an estimator that this version of stochgp can load")
    try:
        return restored(tree, metadata, kinds[name], kinds)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} does not contain a valid {name}: {type(error).__name__} {error}") from error


def stored(estimator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a tree for `save_tree` and JSON values for an estimator. Inverse of `restored`."""
    return _parts(estimator)[:2]


def restored(
    tree: dict[str, Any], metadata: dict[str, Any], kind: type, kinds: Mapping[str, type] = EMPTY
) -> Any:
    """Return the estimator stored in these parts. `kinds`: classes of pool members by name."""
    estimator = kind(**tree["settings"])
    for name, value in metadata["attributes"].items():
        setattr(estimator, name, Decisions(value) if name == "plan_" else value)
    if metadata["feature_names"] is not None:
        estimator.feature_names_in_ = np.array(metadata["feature_names"], dtype=object)
    classes = metadata.get("classes")
    if classes is not None:
        values, dtype = classes["values"], np.dtype(classes["dtype"])
        if dtype.itemsize * len(values) > LARGEST_LABELS:
            raise ValueError(f"the {len(values)} labels would take {dtype.itemsize:,} bytes each")
        estimator.classes_ = np.array(values, dtype=dtype)
    if "members" in tree:
        of_members = metadata["members"]
        estimator.estimators_ = {
            name: restored(part, of_members[name], kinds[of_members[name]["estimator"]], kinds)
            for name, part in tree["members"].items()
        }
    setattr(estimator, "_pooling" if "members" in tree else "_fitted", tree["fitted"])
    return estimator


def _parts(estimator: Any) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the tree, the metadata, and the names of settings that cannot be saved."""
    settings, left_out = _storable(estimator.get_params(deep=False))
    attributes = {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and not name.startswith("_")
    }
    names, classes, members = (
        attributes.pop(name, None) for name in ("feature_names_in_", "classes_", "estimators_")
    )
    metadata = {
        "estimator": type(estimator).__name__,
        "attributes": attributes,
        "feature_names": None if names is None else [str(name) for name in names],
        "classes": None if classes is None else {"dtype": classes.dtype.str, "values": classes.tolist()},
    }
    tree = {"settings": settings} | ({"fitted": estimator._fitted} if members is None else {})
    if members is not None:
        parts = {name: _parts(member) for name, member in members.items()}
        metadata["members"] = {name: part[1] for name, part in parts.items()}
        tree |= {"fitted": estimator._pooling, "members": {name: part[0] for name, part in parts.items()}}
    return tree, metadata, left_out


def pack(state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes for pickle, with the fitted model as plain arrays if possible."""
    if "_fitted" not in state:
        return state
    tensors: dict[str, np.ndarray] = {}
    try:
        structure = encode(state["_fitted"], tensors)
    except ValueError:  # a user-defined network, which pickle may support
        return state
    return {name: value for name, value in state.items() if name != "_fitted"} | {
        "_packed": (structure, tensors)
    }


def unpack(state: dict[str, Any]) -> dict[str, Any]:
    """Restore the attributes from the result of `pack`."""
    if "_packed" not in state:
        return state
    structure, tensors = state["_packed"]
    fitted = decode(structure, dict(tensors))
    return {name: value for name, value in state.items() if name != "_packed"} | {"_fitted": fitted}


def _storable(settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that can be saved, and the names of the others."""
    kept, left_out = {}, []
    for name, value in settings.items():
        if hasattr(value, "get_params"):  # a pool member, which is saved with its fit
            continue
        try:
            encode(value, {}, name)
        except ValueError:
            left_out.append(name)
        else:
            kept[name] = value
    return kept, left_out
