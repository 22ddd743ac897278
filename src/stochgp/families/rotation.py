"""Rotation of the inputs to the eigenvectors of the average gradient outer product."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.choosing import prefer
from stochgp.context import OPTIONAL_SECONDS, FitContext
from stochgp.data.memory import MemorySource
from stochgp.families.default_learners import ROW_BY_ROW
from stochgp.families.left_out import SOME, beside_others, predicted_by_others
from stochgp.kernels import dense
from stochgp.kernels.warped import kernel_and_directions, turned
from stochgp.learners import FullBatch
from stochgp.learners.base import AbstractLearner
from stochgp.learners.conditionals import AbstractConditionals
from stochgp.learning.fit import DONE
from stochgp.models import KernelGP
from stochgp.neighbours import neighbours_bytes
from stochgp.numerics.clustered import clusters
from stochgp.objectives.conditionals import PAIRS, is_small
from stochgp.objectives.kernel import outer_products, outer_products_of_few
from stochgp.results import RESULTS, FitResult
from stochgp.solvers.base import SMALL

MIN_ROWS = 1000  # half of the rows are scored, and a rotation has D² entries
MAX_ROUNDS = 5
# A rotation is tried if the share of ‖M‖² off the diagonal is above this.
MIN_CORRELATED = 0.01
# Numbers of neighbourhoods, of gradients in each, and of neighbours of its centre.
NEIGHBOURHOODS, SLOPES, NEIGHBOURS = 256, 16, 255
# Numbers of neighbourhoods and of gradients in each, if rows have groups.
IN_GROUPS = 2048, 1
SCORED = 4096  # maximum number of other rows on which two models are compared
TRIAL = dataclasses.replace(ROW_BY_ROW, searches=1)
SEED = 1

Kept = tuple[KernelGP | None, Float[np.ndarray, "P P"] | None]
UNCHANGED: Kept = (None, None)


def rotate_inputs(
    estimator: Any, learned: FitResult, learner: AbstractLearner, source: MemorySource,
    context: FitContext,
) -> Kept:  # fmt: skip
    """Return the model with rotated inputs, and the Hessian of its loss, if left-out predictions improve.

    A round rotates the inputs to the eigenvectors of M, the average gradient outer product of the fitted mean
    in units of the lengthscales. Then the round takes leave-one-out steps. If the log density of rows given
    their neighbours improves (`choosing.prefer`), the result is kept, and another round follows.
    """
    rounds: list[tuple[Kept, int, str]] = []
    refusal = context.refusal(*_refusal(estimator, learned, learner, source))
    try:
        if refusal is None:
            rounds = list(_rounds(learned, source))
    except KeyboardInterrupt:
        refusal = "Ctrl-C ended the rotation of the inputs"
        context.end(RESULTS.interrupted, refusal)
    kept, n_rounds, _ = rounds[-1] if rounds else (UNCHANGED, 0, "")
    axes, reasons = "rotated inputs" if n_rounds else "the inputs", "; ".join([why for *_, why in rounds])
    context.record(
        "rotation",
        n_rounds,
        refusal or f"lengthscales are along {axes}; comparisons on left-out rows: {reasons}",
    )
    return kept


def _rounds(learned: FitResult, source: MemorySource) -> Iterator[tuple[Kept, int, str]]:
    """Yield the kept model, the number of rotations and the reason, by round."""
    drawn = np.random.default_rng(SEED).permutation(source.size).astype(np.int32)
    n = min(IN_GROUPS[0] if source.in_groups else NEIGHBOURHOODS, source.size // 2)
    X, sloping, scored = source.inputs(), np.sort(drawn[:n]), np.sort(drawn[n : n + SCORED])
    group = None if source.group is None else source.group[scored]
    judged = clusters(X[scored], group), source.weights()[scored]
    gp: Any = learned.gp
    kept, n_rounds, doubted, scores = UNCHANGED, 0, False, -predicted_by_others(gp, source, X, scored).loss
    for number in range(1, MAX_ROUNDS + 1):
        if deadline.left() < max(2 * learned.seconds, OPTIONAL_SECONDS):
            yield kept, n_rounds, "there was no time for another round"
            return
        M = _outer_products(gp, source, X, sloping)
        off = 1 - np.sum(np.square(np.diagonal(M))) / max(np.sum(np.square(M)), np.finfo(float).tiny)
        if off < MIN_CORRELATED:
            yield kept, n_rounds, "gradients along the current axes are uncorrelated"
            return
        (gp, hessian), name = TRIAL.scored_briefly(_rotated(gp, M), source, (SEED,)), f"round {number}"
        new = -predicted_by_others(gp, source, X, scored).loss
        preferred = prefer(scores, {name: new}, *judged)
        is_better = preferred.name is not None
        if is_better:
            kept, scores, n_rounds = (gp, hessian), new, number
        yield kept, n_rounds, preferred.why
        gains = name in preferred.gains and preferred.gains[name].mean > 0
        if not is_better and (doubted or not gains):
            return
        doubted = not is_better


def _refusal(
    estimator: Any, learned: FitResult, learner: AbstractLearner, source: MemorySource
) -> tuple[str | None, int]:
    """Return the reason against a rotation (None: no reason), and the bytes of the rounds."""
    kernel = learned.gp.kernel
    reasons = {
        "the kernel was given as an object": not isinstance(estimator.kernel, str),
        "pools do not rotate inputs if rows have groups": not estimator._rotates,
        f"a rotation needs at least {MIN_ROWS:,} rows": source.size < MIN_ROWS,
        f"{type(learner).__name__} cannot learn a rotation": not isinstance(
            learner, AbstractConditionals | FullBatch
        ),
        "the kernel is not RBF or Matérn with one lengthscale for each of several inputs": (
            kernel_and_directions(kernel) is None or dense.terms_of(kernel) is None
        ),
        "learning ended before a rotation could be tried": learned.result not in DONE,
    }
    first = next((reason for reason, holds in reasons.items() if holds), None)
    reason = first and f"lengthscales stay along the inputs: {first}"
    m = min(NEIGHBOURS + 1, source.size)
    search = neighbours_bytes(learned.gp.kernel, source.size, source.n_inputs, max(IN_GROUPS[0], SCORED), m)
    return reason, search + 2 * 8 * 8 * PAIRS * (1 + source.n_inputs // m)


def _outer_products(
    gp: KernelGP, source: MemorySource, X: Float[np.ndarray, "N D"], rows: Int[np.ndarray, " R"]
) -> Float[np.ndarray, "A A"]:
    """Return M of `rows`, for the mean given all rows or, if N is large, given nearby rows."""
    if source.size <= SMALL and not source.in_groups:
        return outer_products_of_few(gp, source.on_host(np.arange(source.size)), rows)
    near = beside_others(gp, source, X, rows, NEIGHBOURS)
    near = np.concatenate([near[:, -2::-1], near[:, -1:]], axis=1)  # the nearest, then the row itself, last
    n_slopes = IN_GROUPS[1] if source.in_groups else SLOPES
    return outer_products(gp, source, near, is_small(gp, source.on_host(rows[:SOME])), n_slopes)


def _rotated(gp: KernelGP, M: Float[np.ndarray, "A A"]) -> KernelGP:
    """Return the model with lengthscales along the eigenvectors of M."""
    found = kernel_and_directions(gp.kernel)
    assert found is not None
    return KernelGP(turned(*found, np.linalg.eigh(M)[1]), gp.noise)
