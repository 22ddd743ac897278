"""Default learners of the estimators, by name and for "auto"."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from stochgp.choosing import AS_ASKED, AS_GIVEN
from stochgp.kernels.warped import is_deep
from stochgp.learners import (
    BSGD,
    IVSGPR,
    SCGD,
    SGPR,
    SVDGP,
    SVGP,
    VGP,
    AbstractLearner,
    ByLoss,
    FullBatch,
    InverseRoot,
    LeaveOneOut,
    Minimax,
    Uniform,
    Vecchia,
)
from stochgp.names import lookup

FULL_BATCH_ROWS = 3_000  # with at most this many rows, a step of a kernel GP uses all rows
SUBSET_ROWS = 3_000  # rows of a random subset, if a learner or time limit needs a subset
# Standard deviation of the prior on log lengthscales and log variances around their initial values.
# Without the prior, lengthscales of irrelevant inputs and variances of smooth functions diverge.
SPREAD = 1.0
# For deep kernels. A network does not learn well from batches of neighbours, which are too similar.
DEEP = BSGD(batch_size=256, learning_rate=0.003, sampling=Uniform())
DEEP_STEPS = 8192
# The exact likelihood of a subset, for kernels on a network or if time is short.
OF_SUBSET = FullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD)
FULL_BATCH = FullBatch(spread=SPREAD, tolerance=5e-4)
# The loss predicts rows one by one from their nearest rows, not in blocks.
ROW_BY_ROW = LeaveOneOut(n_neighbours=48, n_scored=1)
MAX_ROW_BY_ROW = 16_384
LOCAL_ROWS = 100_000  # with more rows, solver="auto" predicts from neighbours
HURRIED = 15.0  # with fewer remaining seconds, learners do not search for neighbours among many rows

FEATURE_LEARNERS: dict[str, Any] = {
    "scgd": SCGD(),
    "minimax": Minimax(),
    "bsgd": BSGD(),
    "full-batch": FullBatch(),
}
KERNEL_LEARNERS: dict[str, Any] = {
    "bsgd": BSGD(),
    "full-batch": FullBatch(),
    "loo": LeaveOneOut(),
    "vecchia": Vecchia(),
}
MIRROR = SVDGP(mirror_rate=InverseRoot(1.0, 1.0))  # gradient steps learn the scale of a variance slowly
SPARSE_LEARNERS: dict[str, Any] = {
    "svgp": SVGP(),
    "vgp": VGP(),
    "sgpr": SGPR(),
    "svdgp": MIRROR,
    "ivsgpr": IVSGPR(),
}
COLLAPSED, MAX_COLLAPSED = SGPR(tolerance=1e-6), 4_000
CLASSIFIER = SVGP(steps=2048, spread=SPREAD)
# For few rows and any likelihood of one latent function.
ALL_ROWS, ALL_ROWS_OF_CLASSES = VGP(), VGP(spread=SPREAD)
MAX_SITE_ROWS = 1_000
EACH_ROW = f"with at most {MAX_SITE_ROWS:,} rows, steps that use all rows are fast"

Chosen = tuple[AbstractLearner | None, str]  # a learner and the reason


def uses_all_rows(estimator: Any, n_rows: int, n_latent: int) -> bool:
    """Return True if "auto" uses all rows per step for a non-Gaussian likelihood."""
    few = n_latent == 1 and n_rows <= min(MAX_SITE_ROWS, 2 * estimator.n_inducing)
    return few and not is_deep(estimator.kernel)


def named_learner(
    learner: Any, named: Mapping[str, Any], auto: tuple[AbstractLearner, str] | None = None
) -> tuple[AbstractLearner, str]:
    """Return the learner, from its name or as it is, and the reason."""
    if isinstance(learner, AbstractLearner):
        return learner, AS_GIVEN
    if auto is not None:
        named = {"auto": auto[0]} | dict(named)
    if not isinstance(learner, str):
        raise TypeError(
            f"learner must be one of {', '.join(map(repr, named))} or a learner of stochgp.learners, not {learner!r}"
        )
    found = lookup(learner, named, "learner")
    return found, auto[1] if auto is not None and learner == "auto" else AS_ASKED


def kernel_learner(
    learner: Any, n_rows: int, *, deep: bool = False, hurried: bool = False, grouped: bool = False
) -> Chosen:
    """Return the learner of a kernel GP and the reason; `deep` kernels contain a network."""
    if learner is None:
        return None, "learner=None keeps the given hyperparameters"
    if deep and learner in ("auto", "bsgd"):
        epochs = max(1, DEEP_STEPS // DEEP.plan(n_rows, 1, ByLoss()).steps_per_epoch)
        what = f"then the kernel on the network's output learns from the exact likelihood of at most {SUBSET_ROWS} rows"
        return dataclasses.replace(DEEP, epochs=epochs), f"a network learns from mini-batches; {what}"
    return named_learner(learner, KERNEL_LEARNERS, _automatic(n_rows, hurried, grouped))


def _automatic(n_rows: int, hurried: bool, grouped: bool) -> tuple[AbstractLearner, str]:
    """Return the learner of a kernel without a network."""
    if grouped and not hurried:
        why = "new rows belong to new groups, so learning predicts each row from rows of other groups"
        return ROW_BY_ROW, why
    if n_rows <= FULL_BATCH_ROWS:
        why = f"with at most {FULL_BATCH_ROWS} rows, learning maximises the exact likelihood of all rows, with a weak prior"
        return FULL_BATCH, why
    if hurried:
        why = f"the time limit is too short to search for neighbours, so learning uses {SUBSET_ROWS} random rows"
        return FullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD), why
    found = ROW_BY_ROW if n_rows <= MAX_ROW_BY_ROW else LeaveOneOut()
    m = found.n_neighbours + found.n_scored - 1
    why = f"with more than {FULL_BATCH_ROWS:,} rows, learning maximises the log density of rows given {m} nearby rows each"
    return found, why


def sparse_learner(
    estimator: Any, n_rows: int, is_gaussian: bool, n_latent: int = 1
) -> tuple[AbstractLearner, str]:
    """Return the learner of a sparse GP and the reason."""
    auto = SPARSE_LEARNERS["svgp"], "mini-batches work for any likelihood and any number of rows"
    if is_gaussian and n_rows <= MAX_COLLAPSED:
        why = f"with Gaussian noise and at most {MAX_COLLAPSED:,} rows, the collapsed bound is faster than mini-batches"
        auto = COLLAPSED, why
    if not is_gaussian and uses_all_rows(estimator, n_rows, n_latent):
        auto = ALL_ROWS, EACH_ROW
    return named_learner(estimator.learner, SPARSE_LEARNERS, auto)
