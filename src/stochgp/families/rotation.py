"""Rotation of the inputs: lengthscales along the eigenvectors of the average gradient outer product, kept if left-out rows gain."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.choosing import AS_ASKED
from stochgp.context import OPTIONAL_SECONDS, FitContext
from stochgp.data.memory import MemorySource
from stochgp.families.default_learners import ROW_BY_ROW
from stochgp.families.left_out import SOME, JudgingRows, beside_others
from stochgp.kernels import dense
from stochgp.kernels.rotated import Metric
from stochgp.learners import FullBatch
from stochgp.learners.base import AbstractLearner
from stochgp.learners.conditionals import AbstractConditionals
from stochgp.learning.fit import DONE, continued, fit, unless_ended
from stochgp.learning.run import Report
from stochgp.models import KernelGP
from stochgp.neighbours import neighbours_bytes
from stochgp.objectives.conditionals import PAIRS, is_small
from stochgp.objectives.kernel import outer_products, outer_products_of_few
from stochgp.results import RESULTS, FitResult
from stochgp.solvers.sizes import SMALL

AUTO = "auto"  # `rotate_inputs=`: True if the kernel is given by name
MIN_ROWS = 1000  # half of which judge, and D² numbers are learned
MAX_ROUNDS = 5
# Share of ‖M‖² off its diagonal from which on a rotation is tried. Of 0.02 and 0.03, rotations lost 0.31 nats on bike and gained 0.05 on kin40k.
MIN_CORRELATED = 0.01
# Neighbourhoods, rows of each where slopes are taken, and rows beside its centre.
NEIGHBOURHOODS, SLOPES, NEIGHBOURS = 256, 16, 255
# Neighbourhoods and slopes if rows have groups: the rows beside a centre are of other groups.
IN_GROUPS = 2048, 1
SCORED = 4096  # other rows, by which two rotations are compared
MAX_REFITTING = 5  # steps of the exact likelihood after a rotation
SEED = 1


def rotate_inputs(
    setting: bool | str,
    is_named: bool,
    first: FitResult,
    learner: AbstractLearner,
    source: MemorySource,
    report: Report,
    context: FitContext,
) -> FitResult:
    """The run, continued with rotated inputs if left-out rows prefer that; else `first`. `is_named`: the kernel was given by its name.

    A round takes M, the average gradient outer product of the fitted mean in units of the lengthscales, rotates the coordinates to its eigenvectors, at which
    the kernel is still the same, and learns on by leave-one-out on few rows. It is kept if the log density of rows given their neighbours improves
    (`prefer`), and another one follows. The learner itself follows once, from the last rotation. Ctrl-C ends the rounds, and `first` stays.
    """
    if refusal := context.refusal(*_refusal(setting, is_named, first, learner, source)):
        context.record("rotation", 0, refusal)
        return first
    reasons = list[str]()
    try:
        best, n_rounds = _rotated_run(first, learner, source, report, context, reasons)
    except KeyboardInterrupt:
        best, n_rounds = first._replace(result=RESULTS.interrupted, converged=False), 0
        reasons.append("Ctrl-C ended the rounds")
    if best.result is RESULTS.interrupted:
        context.end(RESULTS.interrupted, "Ctrl-C ended the rounds of rotation")
    axes = "rotated inputs" if n_rounds else "the inputs"
    context.record(
        "rotation", n_rounds, f"lengthscales are along {axes}, by left-out rows: {'; '.join(reasons)}"
    )
    return best


def _rotated_run(
    first: FitResult,
    learner: AbstractLearner,
    source: MemorySource,
    report: Report,
    context: FitContext,
    reasons: list[str],
) -> tuple[FitResult, int]:
    """(The run with the last rotation that left-out rows prefer, the number of rotations); `first` and 0 if there is none. Adds to `reasons`.

    A round whose gain is positive but not clear is followed by another, which is compared with the last rotation that was kept.
    """
    drawn = np.random.default_rng(SEED).permutation(source.size).astype(np.int32)
    n = min(IN_GROUPS[0] if source.in_groups else NEIGHBOURHOODS, source.size // 2)
    judges, sloping = JudgingRows.of(source, np.sort(drawn[n : n + SCORED])), np.sort(drawn[:n])
    kept = gp = first.gp
    n_rounds, doubted = 0, False
    before = scores = judges.scores(gp)
    for number in range(1, MAX_ROUNDS + 1):
        if deadline.left() < max(2 * first.seconds, OPTIONAL_SECONDS):
            reasons.append("no time was left for another round")
            break
        M = _outer_products(gp, source, judges, sloping)
        off = 1 - np.sum(np.square(np.diagonal(M))) / max(np.sum(np.square(M)), np.finfo(float).tiny)
        if off < MIN_CORRELATED:
            reasons.append("slopes along the directions are uncorrelated")
            break
        trial = _trial(_rotated(gp, M), number, learner, source, context)
        if trial.result not in DONE:
            return first._replace(result=unless_ended(first, trial)), 0
        gp, name = trial.gp, f"round {number}"
        preferred = judges.preferred(scores, {name: (new := judges.scores(gp))})
        reasons.append(preferred.why)
        if preferred.name is not None:
            kept, scores, n_rounds, doubted = gp, new, number, False
        elif doubted or name not in preferred.gains or preferred.gains[name].mean <= 0:
            break
        else:
            doubted = True
    if n_rounds == 0:
        return first, 0
    last = _refitted(first, kept, learner, source, report, context)
    if last.result not in DONE:
        return first._replace(result=unless_ended(first, last)), 0
    preferred = judges.preferred(before, {"all of it": judges.scores(last.gp)})
    reasons.append(preferred.why)
    return (first, 0) if preferred.name is None else (last, n_rounds)


def _refusal(
    setting: bool | str, is_named: bool, first: FitResult, learner: AbstractLearner, source: MemorySource
) -> tuple[str | None, int]:
    """(The reason why no rotation is tried, None if one can be; the bytes of the rounds)."""
    stays, reason = "lengthscales stay along the inputs: ", None
    if setting is False:
        reason = AS_ASKED
    elif setting == AUTO and not is_named:
        reason = f"{stays}the kernel was given; rotate_inputs=True tries a rotation"
    elif source.size < MIN_ROWS:
        reason = f"{stays}fewer than {MIN_ROWS:,} rows tell too little of a rotation"
    elif not isinstance(learner, AbstractConditionals | FullBatch):
        reason = f"{stays}{type(learner).__name__} does not learn a rotation"
    elif Metric.of(first.gp.kernel) is None or dense.terms_of(first.gp.kernel) is None:
        reason = f"{stays}the kernel is not RBF or Matérn with one lengthscale for each of several inputs"
    elif first.result not in DONE:
        reason = "the run was ended before a rotation could be tried"
    m = min(NEIGHBOURS + 1, source.size)
    search = neighbours_bytes(first.gp.kernel, source.size, source.n_inputs, max(IN_GROUPS[0], SCORED), m)
    return reason, search + 2 * 8 * 8 * PAIRS * (1 + source.n_inputs // m)


def _outer_products(
    gp: KernelGP, source: MemorySource, judges: JudgingRows, rows: Int[np.ndarray, " R"]
) -> Float[np.ndarray, "A A"]:
    """M of these rows: of the mean given all rows, if they are few, else given the rows nearest to each."""
    if source.size <= SMALL and not source.in_groups:
        return outer_products_of_few(gp, source.on_host(np.arange(source.size)), rows)
    near = beside_others(gp, source, judges.X, rows, NEIGHBOURS)
    near = np.concatenate([near[:, -2::-1], near[:, -1:]], axis=1)  # the nearest beside the row
    n_slopes = IN_GROUPS[1] if source.in_groups else SLOPES
    return outer_products(gp, source, near, is_small(gp, source.on_host(rows[:SOME])), n_slopes)


def _trial(
    gp: KernelGP, number: int, learner: AbstractLearner, source: MemorySource, context: FitContext
) -> FitResult:
    """A short run from `gp`, whose kernel is that which another ended with."""
    trial = (learner if isinstance(learner, AbstractConditionals) else ROW_BY_ROW).trial()
    checkpoint = context.checkpoint_of(f"rotation{number}")
    return fit(trial, gp, source, key=context.learn_key, checkpoint=checkpoint)


def _refitted(
    first: FitResult,
    gp: KernelGP,
    learner: AbstractLearner,
    source: MemorySource,
    report: Report,
    context: FitContext,
) -> FitResult:
    """`first`, continued from the rotated model by its own learner."""
    if isinstance(learner, AbstractConditionals):
        learner = learner.refitting()
    else:
        learner = dataclasses.replace(learner, warm_rows=None, epochs=MAX_REFITTING)
    return continued(
        first, gp, learner, source, key=context.learn_key, progress=report,
        checkpoint=context.checkpoint_of("rotation"),
    )  # fmt: skip


def _rotated(gp: KernelGP, M: Float[np.ndarray, "A A"]) -> KernelGP:
    """The same model, its lengthscales along the eigenvectors of M."""
    metric = Metric.of(gp.kernel)
    assert metric is not None
    return KernelGP(metric.turned(np.linalg.eigh(M)[1]), gp.noise)
