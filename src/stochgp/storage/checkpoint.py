"""Checkpoints: files from which the same call continues after a crash."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.exceptions import CheckpointError
from stochgp.numerics.seeds import as_key
from stochgp.storage.trees import is_key, load_tree, save_tree
from stochgp.warning import warn


def fingerprint(*parts: Any) -> str:
    """Return a digest of settings and arrays, which must be equal to continue a run."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(parts):
        content = jax.random.key_data(leaf) if is_key(leaf) else leaf
        digest.update(
            np.asarray(content).tobytes() if eqx.is_array_like(content) else _text(content).encode()
        )
    digest.update(_text(jax.tree.structure(parts)).encode())
    return digest.hexdigest()


def write(
    path: str | os.PathLike, tree: Any, facts: dict[str, Any], mark: str, notes: dict[str, Any]
) -> None:
    """Write arrays of `tree`, JSON values `facts` and `notes`, and the fingerprint `mark`."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array_like))
    _save(path, leaves, {"facts": facts, "fingerprint": mark, "notes": notes})


def read(path: str | os.PathLike, like: Any, mark: str) -> tuple[Any, dict[str, Any]] | None:
    """Return a tree with the structure of `like`, and the facts; None if the file has no run.

    Raises CheckpointError for a damaged file or another fingerprint.
    """
    leaves, metadata = _loaded(path)
    if "fingerprint" not in metadata:
        return None
    if metadata["fingerprint"] != mark:
        why = "belongs to another run (other data, settings, seed or version)"
        raise CheckpointError(f"the checkpoint {path} {why}: name another file or remove it")
    dynamic, static = eqx.partition(like, eqx.is_array_like)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(dynamic), leaves), static), metadata["facts"]


def notes(path: str | os.PathLike) -> dict[str, Any]:
    """Return the notes of a checkpoint, such as the seed."""
    return _loaded(path)[1].get("notes", {})


def key_of_run(path: str | os.PathLike, random_state: Any) -> PRNGKeyArray:
    """Return the random key; for `random_state` None, from the seed in the checkpoint."""
    if random_state is not None:
        return as_key(random_state)
    leaves, metadata = _loaded(path)
    kept = metadata.get("notes", {})
    if "seed" not in kept:
        kept = {"seed": int(np.random.SeedSequence().generate_state(1)[0])}
        _save(path, leaves, metadata | {"notes": kept})
    return as_key(kept["seed"])


def _loaded(path: str | os.PathLike) -> tuple[list[Any], dict[str, Any]]:
    """Return arrays and metadata, both empty if there is no file."""
    if not Path(path).exists():
        return [], {}
    try:
        leaves, metadata = load_tree(path)
        if "notes" not in metadata:
            raise ValueError(f"{path} contains a model")
    except ValueError as error:
        what = f"the checkpoint cannot be used: {error}; name another file or remove it"
        raise CheckpointError(what) from error
    return leaves, metadata


def _save(path: str | os.PathLike, leaves: list[Any], metadata: dict[str, Any]) -> None:
    """Write the file. After an error, such as a full disk, keep the old file and warn."""
    try:
        save_tree(path, leaves, metadata)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        warn(f"the checkpoint {path} cannot be written ({why}); the fit continues without it")


def _text(value: Any) -> str:
    """Return the repr without memory addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
