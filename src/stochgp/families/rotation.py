"""Rotation of the inputs: lengthscales along the eigenvectors of the average gradient outer product, kept if left-out rows gain."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_ASKED, Preference
from stochgp.context import FitContext
from stochgp.data.streams import AbstractSource, Batch
from stochgp.families.default_learners import SPREAD
from stochgp.families.left_out import OVERHEAD, SOME, JudgingRows, Scores, beside_others
from stochgp.kernels.dense import TILE
from stochgp.kernels.rotated import Metric
from stochgp.learners import FullBatch
from stochgp.learners.base import AbstractLearner
from stochgp.learners.conditionals import AbstractConditionals
from stochgp.learners.leave_one_out import ROW_BY_ROW
from stochgp.learning.fit import DONE, continued, fit, unless_ended
from stochgp.learning.run import Report
from stochgp.models import KernelGP
from stochgp.neighbours import neighbours_bytes
from stochgp.objectives.conditionals import is_small
from stochgp.objectives.kernel import left_out
from stochgp.objectives.outer_products import TOGETHER, outer_products, outer_products_of_few
from stochgp.results import RESULTS, FitResult
from stochgp.solvers.sizes import SMALL

AUTO = "auto"  # `rotate_inputs=`: True if the kernel is given by name
MIN_ROWS = 1000  # half of which judge, and D² numbers are learned
MAX_ROUNDS = 5
# Share of ‖M‖² off its diagonal from which on a rotation is tried. Of 0.02 and 0.03, rotations lost 0.31 nats on bike and gained 0.05 on kin40k.
MIN_CORRELATED = 0.01
# Neighbourhoods whose slopes are averaged, rows of each where they are taken, and rows beside its centre. With 47 in place of 255, RMSE .0731 for .0683 on kin40k,
# .352 for .350 on elevators, .564 for .560 on protein. 2,048 with one slope each took four times as long, for NLPD +.004, −.003, −.003, +.006 on kin40k, protein, pol, elevators.
NEIGHBOURHOODS, SLOPES, NEIGHBOURS = 512, 8, 255
IN_GROUPS = (
    2048,
    1,
)  # neighbourhoods and slopes if rows have groups: the rows beside a centre are of other groups than its own
SCORED = 4096  # other rows, by which two rotations are compared
SEED = 1


def rotate_inputs(
    setting: bool | str,
    is_named: bool,
    first: FitResult,
    learner: AbstractLearner,
    source: AbstractSource,
    report: Report,
    context: FitContext,
) -> FitResult:
    """The run, continued with rotated inputs if left-out rows prefer that; else `first`. `is_named`: the kernel was given by its name.

    A round takes M, the average gradient outer product of the fitted mean in units of the lengthscales, rotates the coordinates to its eigenvectors, at which
    the kernel is still the same, and learns on. It is kept if the log density of rows given their neighbours improves (`prefer`), and another one follows.
    Rounds are short: they learn from few rows, and by leave-one-out if the learner is slow. The learner itself follows once, from the last rotation.
    Up to 3,000 rows slopes and scores are given all other rows. Ctrl-C ends the rounds, and `first` stays.
    """
    if refusal := _refusal(setting, is_named, first, learner, source, context.budget):
        context.record("rotation", 0, refusal)
        return first
    rounds, reasons = _Rounds.of(learner, source, report, context), list[str]()
    best, n_rounds = first, 0
    try:
        before = rounds.scores(first.gp)
        best, n_rounds = rounds.rotated(first, before, reasons)
        if n_rounds:
            best, n_rounds = rounds.learned_on(first, before, best, n_rounds, reasons)
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


def _refusal(
    setting: bool | str,
    is_named: bool,
    first: FitResult,
    learner: AbstractLearner,
    source: AbstractSource,
    budget: Budget,
) -> str | None:
    """The reason why no rotation is tried; None if one can be."""
    stays = "lengthscales stay along the inputs: "
    if setting is False:
        return AS_ASKED
    if setting == AUTO and not is_named:
        return f"{stays}the kernel was given; rotate_inputs=True tries a rotation"
    if source.size < MIN_ROWS:
        return f"{stays}fewer than {MIN_ROWS:,} rows tell too little of a rotation"
    if not isinstance(learner, AbstractConditionals | FullBatch):
        return f"{stays}{type(learner).__name__} does not learn a rotation"
    if Metric.of(first.gp.kernel) is None:
        return f"{stays}the kernel is not stationary with one lengthscale for each of several inputs"
    if first.result not in DONE:
        return "the run was ended before a rotation could be tried"
    if _peak_bytes(first.gp, source) > budget.free():
        return f"{stays}there is no memory to try a rotation"
    return None


def _peak_bytes(gp: KernelGP, source: AbstractSource) -> int:
    """Of the search of neighbours, and of slopes: six matrices of each neighbourhood in float64; of few rows, a matrix of all."""
    if _are_few(source):
        return 8 * source.size * (source.size + 4 * TILE + 8 * source.n_inputs)
    m = min(NEIGHBOURS + 1, source.size)
    search = neighbours_bytes(gp.kernel, source.size, source.n_inputs, max(IN_GROUPS[0], SCORED), m)
    return search + 6 * 8 * TOGETHER * m * (m + source.n_inputs)


@dataclasses.dataclass(frozen=True)
class _Rounds:
    """What rounds have in common: how they learn, rows whose slopes are averaged, and other rows that judge."""

    learner: AbstractLearner
    source: AbstractSource
    report: Report
    context: FitContext
    sloping: Int[np.ndarray, " R"]
    judges: JudgingRows
    n_slopes: int  # of each neighbourhood

    @classmethod
    def of(
        cls, learner: AbstractLearner, source: AbstractSource, report: Report, context: FitContext
    ) -> "_Rounds":
        drawn = np.random.default_rng(SEED).permutation(source.size).astype(np.int32)
        most, n_slopes = IN_GROUPS if source.in_groups else (NEIGHBOURHOODS, SLOPES)
        n = min(most, source.size // 2)
        sloping, judging = np.sort(drawn[:n]), np.sort(drawn[n : n + SCORED])
        return cls(learner, source, report, context, sloping, JudgingRows.of(source, judging), n_slopes)

    def rotated(self, first: FitResult, before: Scores, reasons: list[str]) -> tuple[FitResult, int]:
        """The trial whose rotation is kept, and how many rounds it took; `first` and 0 for none. `reasons` get what each round gained.

        `before` are the scores of `first`. A round whose gain is in doubt is followed by one more, which is compared with what was kept before both.
        """
        best = last = first
        n_rounds, scores, doubted = 0, before, False
        for number in range(1, MAX_ROUNDS + 1):
            if deadline.left() < 2 * first.seconds + OVERHEAD:
                reasons.append("no time was left for another round")
                break
            M = self._outer_products(last.gp)
            if _correlated(M) < MIN_CORRELATED:
                reasons.append("slopes along the directions are uncorrelated")
                break
            trial = self._trial(_rotated(last.gp, M), number)
            if trial.result not in DONE:
                return best._replace(result=unless_ended(best, trial)), n_rounds
            last = trial
            name, new = f"round {number}", self.scores(trial.gp)
            found = self.judges.preferred(scores, new, name)
            reasons.append(found.why)
            if found.name is None:
                if doubted or not _is_in_doubt(found, name):
                    break
                doubted = True
                continue
            best, n_rounds, scores, doubted = trial, number, new, False
        return best, n_rounds

    def learned_on(
        self, first: FitResult, before: Scores, rotated: FitResult, n_rounds: int, reasons: list[str]
    ) -> tuple[FitResult, int]:
        """`first` continued from the rotated model by its own learner, and the rounds; `first` and 0 if left-out rows do not prefer it."""
        if rotated.result not in DONE:
            return first._replace(result=rotated.result), 0
        if isinstance(self.learner, AbstractConditionals):
            learner = self.learner.closing()
        else:
            learner = dataclasses.replace(self.learner, warm_rows=None)
        found = continued(
            first, rotated.gp, learner, self.source, key=self.context.learn_key, progress=self.report,
            checkpoint=self.context.checkpoint_of("rotation"), devices=self.context.devices,
        )  # fmt: skip
        if found.result not in DONE:
            return first._replace(result=unless_ended(first, found)), 0
        preferred = self.judges.preferred(before, self.scores(found.gp), "all of it")
        reasons.append(preferred.why)
        return (first, 0) if preferred.name is None else (found, n_rounds)

    def _trial(self, gp: KernelGP, number: int) -> FitResult:
        """A run from `gp`, whose kernel is that which another ended with; by leave-one-out if the learner is slow."""
        learner = self.learner
        if not isinstance(learner, AbstractConditionals):
            learner = dataclasses.replace(ROW_BY_ROW, spread=SPREAD)
        trial = learner.near_optimum(self.source.size)
        checkpoint = self.context.checkpoint_of(f"rotation{number}")
        return fit(trial, gp, self.source, key=self.context.learn_key, checkpoint=checkpoint)

    def scores(self, gp: KernelGP) -> Scores:
        """log p of each judging row given its neighbours."""
        if _are_few(self.source):
            return -left_out(gp, _all_of(self.source)).loss[self.judges.rows]
        return -np.asarray(self.judges.predicted(gp).loss, np.float64)

    def _outer_products(self, gp: KernelGP) -> Float[np.ndarray, "A A"]:
        """M of the other rows."""
        if _are_few(self.source):
            return outer_products_of_few(gp, _all_of(self.source), self.sloping)
        with jax.enable_x64(True):
            near = beside_others(gp, self.source, self.judges.X, self.sloping, NEIGHBOURS)
            near = np.concatenate([near[:, -2::-1], near[:, -1:]], axis=1)  # the nearest beside the row
            wide = is_small(gp, self.source.take(self.sloping[:SOME]))
            return outer_products(gp, self.source, near, wide, self.n_slopes)


def _are_few(source: AbstractSource) -> bool:
    """Whether each row can be predicted from all others at once, one by one."""
    return source.size <= SMALL and not source.in_groups


def _all_of(source: AbstractSource) -> Batch:
    return source.on_host(np.arange(source.size))


def _is_in_doubt(found: Preference, name: str) -> bool:
    """Whether a rival that is not preferred gains all the same."""
    return name in found.gains and found.gains[name].mean > 0


def _correlated(M: Float[np.ndarray, "A A"]) -> float:
    """The share of ‖M‖² off the diagonal: 0 if the coordinates are eigenvectors already."""
    return 1 - float(np.sum(np.square(np.diagonal(M))) / max(np.sum(np.square(M)), np.finfo(float).tiny))


def _rotated(gp: KernelGP, M: Float[np.ndarray, "A A"]) -> KernelGP:
    """The same model, its lengthscales along the eigenvectors of M."""
    metric = Metric.of(gp.kernel)
    if metric is None:
        raise ValueError(f"a {type(gp.kernel).__name__} has no metric that could be rotated")
    return KernelGP(metric.turned(np.linalg.eigh(M)[1]), gp.noise)
