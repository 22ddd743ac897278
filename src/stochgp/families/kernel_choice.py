"""The choice of kernel="auto" by predictions of rows from their neighbours; kernel starts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from stochgp import kernels
from stochgp.choosing import prefer
from stochgp.data import TableEncoder
from stochgp.data.memory import MemorySource
from stochgp.families.default_learners import FULL_BATCH_ROWS
from stochgp.families.left_out import clusters_of, left_out_scores, some_rows
from stochgp.kernels import AbstractKernel, Constant, Product, Sum, Tanimoto
from stochgp.learners import LeaveOneOut
from stochgp.learning import fit
from stochgp.models import KernelGP
from stochgp.parameters import positive, value_of
from stochgp.results import RESULTS
from stochgp.tables.molecules import Inputs

USUAL = "matern32"
CANDIDATES = (USUAL, "matern12", "matern52", "rbf", "matern32 + matern12")
TRIAL = LeaveOneOut(n_neighbours=48, n_scored=1, n_centres=1024, epochs=4, searches=1)
SCORED = 2048  # scored rows
# Lengthscale of dates, in their standard deviations, if rows are scored one by one: from √D, rows an hour apart are never found to be alike. Random fifths,
# unit variance, NLPD and RMSE from √D and from here: traffic −0.82 and −3.63, .194 and .130; flights .290 and .258, .409 and .428; Tetouan −2.10 and −2.11;
# steel −7.92 and −7.94; San Francisco the same.
NEAR_IN_TIME = 0.05


def kernel_called(name: str, n_inputs: int, *, variance: float, dtype: Any) -> kernels.AbstractKernel:
    """Return the named kernel; "a + b" has a broad (ℓ = 2√D) and a short term (√D/2)."""
    first, _, second = name.partition(" + ")
    start = lambda part, share: kernels.resolve(part, n_inputs, variance=share * variance, dtype=dtype)
    if not second:
        return start(first, 1.0)
    broad, short = start(first, 0.5), start(second, 0.5)
    return _with_length(broad, 2 * n_inputs**0.5, dtype) + _with_length(short, n_inputs**0.5 / 2, dtype)


def short_days(encoder: Any, n_rows: int, groups: Any) -> list[int]:
    """Return the columns with days of dates, for more than 3,000 rows without groups."""
    if groups is not None or n_rows <= FULL_BATCH_ROWS or not isinstance(encoder, TableEncoder):
        return []
    dates = {f"{rule.name}.days" for rule in encoder.columns if rule.kind == "time"}
    return [j for j, name in enumerate(encoder.output_names) if name in dates]


def near_in_time(kernel: Any, days: list[int]) -> Any:
    """Return the kernel with lengthscales of NEAR_IN_TIME in these columns, if it has ARD."""
    if not days or not isinstance(kernel, kernels.AbstractStationary) or kernel.active_dims is not None:
        return kernel
    lengthscale = np.array(value_of(kernel.lengthscale))
    if lengthscale.ndim == 0:
        return kernel
    lengthscale[days] = NEAR_IN_TIME
    return dataclasses.replace(kernel, lengthscale=positive(lengthscale, dtype=lengthscale.dtype))


def best_kernel(
    start: Callable[[str], KernelGP], source: MemorySource, *, key: PRNGKeyArray
) -> tuple[str, str]:
    """Return the name of the kernel and the reason: Matérn 3/2, unless another is preferred.

    Scores are log p(y_i | its neighbours) of 2,048 rows after a short leave-one-out fit of each candidate; not finite if the trial failed.
    """
    X, rows, scores = source.inputs(), some_rows(source.size, SCORED), {}
    for name in CANDIDATES:
        found = fit(TRIAL, start(name), source, key=key)
        if found.result is RESULTS.interrupted:  # nothing is learned yet, so nothing is lost
            raise KeyboardInterrupt
        scores[name] = left_out_scores(found.gp, source, X, rows)
    preferred = prefer(scores.pop(USUAL), scores, *clusters_of(source, X, rows))
    return preferred.name or USUAL, f"by left-out rows, over {USUAL!r}: {preferred.why}"


def _with_length(kernel: Any, length: float, dtype: Any) -> Any:
    lengthscale = positive(np.full(kernel.lengthscale.shape, length), dtype=dtype)
    return type(kernel)(lengthscale, kernel.variance)


def inputs_of(kernel: Any, smiles: Any = None, missing: str = "auto") -> Inputs:
    """Return fingerprints as inputs if only Tanimoto kernels of all columns use them.

    Raises ValueError for molecules, named by `smiles`, without the Tanimoto kernel, and for `missing="skip"` without molecules.
    """
    if smiles is None and missing == "skip":
        raise ValueError(
            'missing="skip" leaves molecules out that cannot be read: name their column by `smiles`'
        )
    if isinstance(kernel, str):
        found = Inputs.FINGERPRINTS if kernel == "tanimoto" else Inputs.NUMBERS
    elif not _has_tanimoto(kernel):
        found = Inputs.NUMBERS
    else:
        found = Inputs.FINGERPRINTS if _sees_sets_alone(kernel) else Inputs.AS_GIVEN
    if smiles is not None and found is not Inputs.FINGERPRINTS:
        raise ValueError(
            f"smiles={smiles!r} makes fingerprints of molecules, which the Tanimoto kernel takes, and nothing else: "
            'kernel="tanimoto", or features="tanimoto" (--set kernel=tanimoto)'
        )
    return found


def with_level(kernel: AbstractKernel, variance: float, dtype: DTypeLike) -> AbstractKernel:
    """Return k + c, c = `variance` at the start: T > 0, so the level of f is not its average."""
    return kernel + Constant(positive(variance, dtype=dtype))


def with_packing(kernel: AbstractKernel, packed: bool) -> AbstractKernel:
    """Return the kernel with Tanimoto kernels for packed or unpacked rows."""
    if not _has_tanimoto(kernel):
        return kernel

    def convert(node: Any) -> Any:
        return Tanimoto(node.variance, packed, node.active_dims) if _is_tanimoto(node) else node

    return jax.tree.map(convert, kernel, is_leaf=_is_tanimoto)


def _is_tanimoto(node: Any) -> bool:
    return isinstance(node, Tanimoto)


def _has_tanimoto(kernel: Any) -> bool:
    return any(map(_is_tanimoto, jax.tree.leaves(kernel, is_leaf=_is_tanimoto)))


def _sees_sets_alone(kernel: Any) -> bool:
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return _sees_sets_alone(kernel.left) and _sees_sets_alone(kernel.right)
    return isinstance(kernel, Constant) or (_is_tanimoto(kernel) and kernel.active_dims is None)
