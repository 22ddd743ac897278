"""kernel="auto": the kernel that predicts rows best from their neighbours; and where lengthscales start."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from stochgp import kernels
from stochgp.data import TableEncoder
from stochgp.data.memory import MemorySource
from stochgp.families.default_learners import FULL_BATCH_ROWS
from stochgp.families.left_out import JudgingRows, some_rows
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
SCORED = 2048  # rows
# Lengthscale of dates, in their standard deviations, where rows are judged one by one: from √D rows an hour apart are never found to be alike. Random fifths,
# unit variance, NLPD and RMSE from √D and from here: traffic −0.82 and −3.63, .194 and .130; flights .290 and .258, .409 and .428; Tetouan −2.10 and −2.11;
# steel −7.92 and −7.94; San Francisco the same.
NEAR_IN_TIME = 0.05


def kernel_called(name: str, n_inputs: int, *, variance: float, dtype: Any) -> kernels.AbstractKernel:
    """The kernel of that name; of "a + b" the sum of a broad and a short term, lengthscales 2√D and √D/2, of half the variance each."""
    first, _, second = name.partition(" + ")
    start = lambda part, share: kernels.resolve(part, n_inputs, variance=share * variance, dtype=dtype)
    if not second:
        return start(first, 1.0)
    broad, short = start(first, 0.5), start(second, 0.5)
    return _with_length(broad, 2 * n_inputs**0.5, dtype) + _with_length(short, n_inputs**0.5 / 2, dtype)


def short_days(encoder: Any, n_rows: int, groups: Any) -> list[int]:
    """Which columns are the days of dates, of rows that are judged one by one and by their neighbours: not up to 3,000, whose likelihood knows all pairs."""
    if groups is not None or n_rows <= FULL_BATCH_ROWS or not isinstance(encoder, TableEncoder):
        return []
    dates = {f"{rule.name}.days" for rule in encoder.columns if rule.kind == "time"}
    return [j for j, name in enumerate(encoder.output_names) if name in dates]


def near_in_time(kernel: Any, days: list[int]) -> Any:
    """The kernel with lengthscales of NEAR_IN_TIME in these columns; as it is where it has no lengthscale for each column of all."""
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
    """The name of the kernel, and the reason: Matérn 3/2, unless a rival is preferred to it.

    Scores are log p(y_i | its neighbours) of 2,048 rows after a short leave-one-out fit of each candidate; not finite where the trial was lost.
    """
    judges, scores = JudgingRows.of(source, some_rows(source.size, SCORED)), {}
    for name in CANDIDATES:
        found = fit(TRIAL, start(name), source, key=key)
        if found.result is RESULTS.interrupted:  # nothing is learned yet, so nothing is lost
            raise KeyboardInterrupt
        scores[name] = judges.scores(found.gp)
    preferred = judges.preferred(scores.pop(USUAL), scores)
    return preferred.name or USUAL, f"by left-out rows, over {USUAL!r}: {preferred.why}"


def _with_length(kernel: Any, length: float, dtype: Any) -> Any:
    lengthscale = positive(np.full(kernel.lengthscale.shape, length), dtype=dtype)
    return type(kernel)(lengthscale, kernel.variance)


def inputs_of(kernel: Any, smiles: Any = None, missing: str = "auto") -> Inputs:
    """By the name or the kernel: fingerprints where nothing but Tanimoto kernels of all columns look at the inputs.

    Raises ValueError for molecules, named by `smiles`, without the Tanimoto kernel, and for `missing="skip"` without molecules.
    """
    if smiles is None and missing == "skip":
        raise ValueError(
            'missing="skip" leaves molecules out that cannot be read: name their column by `smiles`'
        )
    if isinstance(kernel, str):
        found = Inputs.FINGERPRINTS if kernel == "tanimoto" else Inputs.NUMBERS
    elif not any(map(_is_tanimoto, jax.tree.leaves(kernel, is_leaf=_is_tanimoto))):
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
    """k + c, from c = `variance`. T is positive for almost all pairs, so that functions have a level that the average of their values is not."""
    return kernel + Constant(positive(variance, dtype=dtype))


def with_packing(kernel: AbstractKernel, packed: bool) -> AbstractKernel:
    """The kernel whose Tanimoto kernels take packed rows, or others."""

    def convert(node: Any) -> Any:
        return Tanimoto(node.variance, packed, node.active_dims) if _is_tanimoto(node) else node

    return jax.tree.map(convert, kernel, is_leaf=_is_tanimoto)


def _is_tanimoto(node: Any) -> bool:
    return isinstance(node, Tanimoto)


def _sees_sets_alone(kernel: Any) -> bool:
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return _sees_sets_alone(kernel.left) and _sees_sets_alone(kernel.right)
    return isinstance(kernel, Constant) or (_is_tanimoto(kernel) and kernel.active_dims is None)
