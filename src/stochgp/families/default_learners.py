"""The learners of "auto" and of names: all default settings of the estimators."""

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

FULL_BATCH_ROWS = 3_000  # up to this many rows, every step of a kernel GP uses all
SUBSET_ROWS = 3_000  # rows of a random subset, if a learner or a time limit needs one
# Standard deviation of the prior on logarithms of lengthscales and variances around their start. Without it irrelevant lengthscales and the
# variance of a smooth function diverge, without gain in likelihood and with matrices that cannot be solved.
SPREAD = 1.0
# For deep kernels. Batches of neighbours are too similar: a network would learn only the differences between neighbours.
DEEP = BSGD(batch_size=256, learning_rate=0.003, sampling=Uniform())
DEEP_STEPS = 8192
# Batches fit features, but not the remaining noise: the exact likelihood does. It also serves kernels if time is short.
OF_SUBSET = FullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD)
# With a tolerance of 2e-3 the CRPS of pools was 0.1 to 2.2 % higher on six tables; with 1e-4 it was between 1.1 % lower and 0.1 % higher.
FULL_BATCH = FullBatch(spread=SPREAD, tolerance=5e-4)
# Each row from its nearest rows. With 8,000 rows blocks of 8 rows lost 7 % of the CRPS on protein and 5 % on pol.
ROW_BY_ROW = LeaveOneOut(n_neighbours=48, n_scored=1)
MAX_ROW_BY_ROW = 16_384
LOCAL_ROWS = 100_000  # beyond this many rows, a kernel GP predicts from neighbours
HURRIED = 15.0  # remaining seconds below which no learner that searches neighbours among many rows is used

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
MIRROR = SVDGP(mirror_rate=InverseRoot(1.0, 1.0))  # gradient steps find the scale of a variance slowly
SPARSE_LEARNERS: dict[str, Any] = {
    "svgp": SVGP(),
    "vgp": VGP(),
    "sgpr": SGPR(),
    "svdgp": MIRROR,
    "ivsgpr": IVSGPR(),
}
# Diabetes (340 rows): in 2 s what 4,096 steps of mini-batches take 45 s for.
COLLAPSED, MAX_COLLAPSED = SGPR(tolerance=1e-6), 1_000
# A prior lowers the log loss on digits from .076 to .061.
CLASSIFIER = SVGP(steps=2048, spread=SPREAD)
# For any likelihood of one latent function, with few rows: 400 counts in 2 s instead of 85. Several latent functions need ten times as many steps.
ALL_ROWS, ALL_ROWS_OF_CLASSES = VGP(), VGP(spread=SPREAD)
MAX_SITE_ROWS = 1_000
EACH_ROW = f"up to {MAX_SITE_ROWS:,} rows, steps that use all of them are fast"

Chosen = tuple[AbstractLearner | None, str]  # a learner and the reason


def uses_all_rows(estimator: Any, n_rows: int, n_latent: int) -> bool:
    """Return True if a sparse GP with a likelihood other than Gaussian noise uses all rows in every step by default."""
    few = n_latent == 1 and n_rows <= min(MAX_SITE_ROWS, 2 * estimator.n_inducing)
    return few and not is_deep(estimator.kernel)


def named_learner(
    learner: Any, named: Mapping[str, Any], auto: Chosen | None = None
) -> tuple[AbstractLearner, str]:
    """Return the learner of that name, or a given learner, and the reason; "auto" is the pair `auto`.

    Raises ValueError for an unknown name, with the nearest one, and TypeError for another type.
    """
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
    """Return the learner of a kernel GP and the reason; None for None.

    `deep`: the kernel has a network that trains. `hurried`: a time limit allows no search of many neighbours. `grouped`: rows have groups, which the
    likelihood of all rows ignores. Raises as `named_learner`.
    """
    if learner is None:
        return None, "learner=None: the hyperparameters given are kept"
    if deep and learner in ("auto", "bsgd"):
        epochs = max(1, DEEP_STEPS // DEEP.plan(n_rows, 1, ByLoss()).steps_per_epoch)
        what = f"the kernel on it then learns from the exact likelihood of up to {SUBSET_ROWS} rows"
        return dataclasses.replace(DEEP, epochs=epochs), f"a network learns from mini-batches; {what}"
    return named_learner(learner, KERNEL_LEARNERS, _automatic(n_rows, hurried, grouped))


def _automatic(n_rows: int, hurried: bool, grouped: bool) -> tuple[AbstractLearner, str]:
    """Return the learner of a kernel without a network."""
    if grouped and not hurried:
        why = "new rows are of new groups: each row is predicted from the nearest of other groups"
        return ROW_BY_ROW, why
    if n_rows <= FULL_BATCH_ROWS:
        why = f"up to {FULL_BATCH_ROWS} rows the exact likelihood of all of them, with a weak prior, is fast"
        return FULL_BATCH, why
    if hurried:
        why = f"the time limit allows no search of neighbours: the exact likelihood of {SUBSET_ROWS} random rows"
        return FullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD), why
    found = ROW_BY_ROW if n_rows <= MAX_ROW_BY_ROW else LeaveOneOut()
    m = found.n_neighbours + found.n_scored - 1
    why = f"more than {FULL_BATCH_ROWS:,} rows: the density of left-out rows, each predicted from {m} rows near to it"
    return found, why


def sparse_learner(
    estimator: Any, n_rows: int, is_gaussian: bool, n_latent: int = 1
) -> tuple[AbstractLearner, str]:
    """Return the learner of a sparse GP: for few rows by default SGPR with Gaussian noise, VGP with another likelihood."""
    auto: Chosen = SPARSE_LEARNERS["svgp"], "mini-batches serve any likelihood and any number of rows"
    if is_gaussian and n_rows <= MAX_COLLAPSED:
        why = f"up to {MAX_COLLAPSED:,} rows of Gaussian noise the collapsed bound of all of them is fast"
        auto = COLLAPSED, why
    if not is_gaussian and uses_all_rows(estimator, n_rows, n_latent):
        auto = ALL_ROWS, EACH_ROW
    return named_learner(estimator.learner, SPARSE_LEARNERS, auto)
