"""What "auto" and the names of learners mean for kernel GPs: the one place of these default settings."""

import dataclasses
from typing import Any

from stochgp import learners
from stochgp.estimators.defaults import refuse_batch_size, refuse_twice
from stochgp.learners import AbstractKernelLearner, Chain, Iterative, KernelBSGD, KernelFullBatch, Uniform
from stochgp.names import lookup

FULL_BATCH_ROWS = 3_000  # up to which all rows are used at every step
SUBSET_ROWS = 3_000  # rows of a random subset, beyond that
# Of the prior of the logarithms of lengthscales and variances around their start. Without it idle lengthscales and the variance of a smooth
# function run off by many orders of magnitude, for nothing in likelihood and with matrices that cannot be solved.
SPREAD = 1.0
REFINING_STEPS, REFINING_RATE = 30, 0.03  # of the iterative learner after a subset
# Of deep kernels. Batches of neighbours look alike, and a network that learns from them learns only what tells neighbours apart.
DEEP = KernelBSGD(batch_size=256, learning_rate=0.003, sampling=Uniform())
DEEP_STEPS = 8192
LOCAL_ROWS = 100_000  # beyond which the posterior is that of neighbours

NAMED: dict[str, AbstractKernelLearner] = {
    "bsgd": KernelBSGD(),
    "full-batch": KernelFullBatch(),
    "iterative": Iterative(),  # beyond SUBSET_ROWS rows after a fit of a subset
}
_TWINS = {learners.BSGD: KernelBSGD, learners.FullBatch: KernelFullBatch}
_SHARED = ("batch_size", "epochs", "learning_rate", "optimizer", "decay")


def kernel_learner(
    learner: Any, n_rows: int, *, deep: bool = False, **options: Any
) -> tuple[AbstractKernelLearner | None, str]:
    """(the learner, why) for "auto", a name, or the learner given, with the options that are not None; None for None.

    `deep`: whether the kernel has a network that trains. `learners.BSGD` and `learners.FullBatch` stand for their counterparts for
    kernels. Raises ValueError for an unknown name, with the nearest one, and for an option that the learner given sets too; TypeError
    for something else than a name or a learner.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if learner is None:
        if options:
            raise ValueError(
                f"{next(iter(options))} is given, but learner=None learns nothing: leave it None"
            )
        return None, "learner=None: the hyperparameters given are kept"
    if isinstance(learner, str):
        lookup(learner, dict.fromkeys(("auto", *NAMED)), "learner")
        if deep and learner in ("auto", "bsgd"):
            return _of_deep_kernels(n_rows, options)
        found, why = _automatic(n_rows, options) if learner == "auto" else (NAMED[learner], "as asked")
        refuse_batch_size(found, learner, options)
        if learner == "iterative" and n_rows > SUBSET_ROWS:
            return _in_two_stages(options)
    else:
        found, why = _translated(learner), "as given"
        refuse_twice(learner, options)
    return (dataclasses.replace(found, **options) if options else found), why


def _automatic(n_rows: int, options: dict[str, Any]) -> tuple[AbstractKernelLearner, str]:
    if "batch_size" in options:
        return NAMED["bsgd"], "a batch size was asked for"
    if n_rows <= FULL_BATCH_ROWS:
        return KernelFullBatch(), f"up to {FULL_BATCH_ROWS} rows the exact likelihood of all of them is fast"
    if n_rows <= LOCAL_ROWS:
        subset = KernelFullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD)
        return (
            subset,
            f"the exact likelihood of {SUBSET_ROWS} random rows stands for that of up to {LOCAL_ROWS}",
        )
    return KernelBSGD(), f"beyond {LOCAL_ROWS} rows mini-batches of neighbours see more of the data"


def _of_deep_kernels(n_rows: int, options: dict[str, Any]) -> tuple[AbstractKernelLearner, str]:
    """Batches follow the features, but not the noise that is left over: the exact likelihood does. The options are the batches'."""
    first = dataclasses.replace(DEEP, **options)
    if first.epochs is None:
        first = dataclasses.replace(first, epochs=max(1, DEEP_STEPS // first.plan(n_rows).steps_per_epoch))
    closing = KernelFullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD, hold_networks=True)
    why = f"a network learns from mini-batches; the kernel on it then from the exact likelihood of up to {SUBSET_ROWS} rows"
    return Chain(learners=(first, closing)), why  # pyright: ignore[reportCallIssue]


def _in_two_stages(options: dict[str, Any]) -> tuple[AbstractKernelLearner, str]:
    """A subset's optimum is a cheap start; the options are those of the learner that follows."""
    last = dataclasses.replace(Iterative(epochs=REFINING_STEPS, learning_rate=REFINING_RATE), **options)
    chain = Chain(learners=(KernelFullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD), last))  # pyright: ignore[reportCallIssue]
    return chain, f"as asked, from the optimum of {SUBSET_ROWS} random rows"


def _translated(learner: Any) -> AbstractKernelLearner:
    if isinstance(learner, AbstractKernelLearner):
        return learner
    twin = _TWINS.get(type(learner))
    if twin is None:
        raise TypeError(
            f"learner must be 'auto', one of {', '.join(map(repr, NAMED))}, a learner of kernel GPs, or None, not {learner!r}"
        )
    plain = type(learner)()
    changed = {
        name: getattr(learner, name) for name in _SHARED if getattr(learner, name) is not getattr(plain, name)
    }
    return twin(**changed)
