"""Lengthscales along the inputs, or along directions that the rows choose: rounds of average gradient outer products, kept where left-out rows gain."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_ASKED, Preference, choice
from stochgp.data.streams import AbstractSource, Batch
from stochgp.kernels.dense import TILE
from stochgp.kernels.rotated import Metric
from stochgp.learners import FullBatch
from stochgp.learners.conditionals import AbstractConditionals
from stochgp.learners.leave_one_out import ROW_BY_ROW
from stochgp.learning.base import AbstractLearner
from stochgp.learning.fit import fit
from stochgp.learning.going_on import DONE, gone_on, unless_ended
from stochgp.learning.log import Report
from stochgp.models import KernelGP
from stochgp.neighbours import neighbours_bytes
from stochgp.objectives.conditionals import is_small
from stochgp.objectives.kernel import left_out
from stochgp.objectives.outer_products import TOGETHER, outer_products, outer_products_of_few
from stochgp.results import FitResult
from stochgp.selection.choices import SPREAD
from stochgp.selection.left_out import OVERHEAD, SOME, JudgingRows, Scores, beside_others
from stochgp.solvers.sizes import SMALL
from stochgp.training_data.run import Run

AUTO, COMPARE, INPUTS = "auto", "compare", "inputs"  # `metric=`
FEWEST_ROWS = 1000  # half of which judge, and D² numbers are learned
MOST_ROUNDS = 5
# Share of ‖M‖² off its diagonal from which on a rotation is tried. Of 0.02 and 0.03, rotations lost 0.31 nats on bike and gained 0.05 on kin40k.
LEAST_APART = 0.01
# Neighbourhoods whose slopes are averaged, rows of each where they are taken, and rows beside its centre. With 47 in place of 255, RMSE .0731 for .0683 on kin40k,
# .352 for .350 on elevators, .564 for .560 on protein. 2,048 with one slope each took four times as long, for NLPD +.004, −.003, −.003, +.006 on kin40k, protein, pol, elevators.
NEIGHBOURHOODS, SLOPES, NEIGHBOURS = 512, 8, 255
IN_GROUPS = 2048, 1  # neighbourhoods and slopes: the rows beside a centre are of other groups than its own
SCORED = 4096  # other rows, by which two metrics are compared
SEED = 1
STAYS = "lengthscales stay along the inputs: "
CLOSING = "metricclosing"  # of its checkpoint


def with_metric(
    asked: str,
    first: FitResult,
    learner: AbstractLearner,
    source: AbstractSource,
    run: Run,
    report: Report,
) -> tuple[FitResult, dict[str, Any]]:
    """(The run, gone on with lengthscales along the directions that left-out rows prefer; how often they were turned, for `plan_`).

    A round takes M, the average gradient outer product of the fitted mean in units of the lengthscales, turns the coordinates to its eigenvectors, where
    the kernel is still the same, and learns on. It is kept where rows given their neighbours gain in log density (`prefer`), and another one follows.
    Rounds are short: they learn from few rows, and by leave-one-out where the learner is slow. The learner itself follows once, from where they end.
    Up to 3,000 rows slopes and scores are given all other rows.
    """
    if refusal := _refusal(asked, first, learner, source, run.budget):
        return first, {"metric": choice(0, refusal)}
    rounds, said = _Rounds.of(learner, source, run, report), list[str]()
    before = rounds.scores(first.gp)
    best, n_turns = rounds.turned(first, before, said)
    if n_turns:
        best, n_turns = rounds.closed(first, before, best, n_turns, said)
    where = "along turned directions" if n_turns else "along the inputs"
    return best, {"metric": choice(n_turns, f"lengthscales are {where}, by left-out rows: {'; '.join(said)}")}


def _refusal(
    asked: str, first: FitResult, learner: AbstractLearner, source: AbstractSource, budget: Budget
) -> str | None:
    """Why no other metric is tried; None where one can be."""
    if asked == INPUTS:
        return AS_ASKED
    if asked == AUTO:
        return f"{STAYS}the kernel was given; metric='compare' tries others"
    if source.size < FEWEST_ROWS:
        return f"{STAYS}of fewer than {FEWEST_ROWS:,} rows too few would tell"
    if not isinstance(learner, AbstractConditionals | FullBatch):
        return f"{STAYS}{type(learner).__name__} learns no others"
    if Metric.of(first.gp.kernel) is None:
        return f"{STAYS}others are learned for a stationary kernel with one lengthscale for each of several inputs"
    if first.result not in DONE:
        return "the run was ended before others could be tried"
    if _need_bytes(first.gp, source) > budget.free():
        return f"{STAYS}no memory to try others"
    return None


def _need_bytes(gp: KernelGP, source: AbstractSource) -> int:
    """Of the search of neighbours, and of slopes: six matrices of each neighbourhood in float64; of few rows, a matrix of all."""
    if _are_few(source):
        return 8 * source.size * (source.size + 4 * TILE + 8 * source.n_inputs)
    m = min(NEIGHBOURS + 1, source.size)
    search = neighbours_bytes(gp.kernel, source.size, source.n_inputs, max(IN_GROUPS[0], SCORED), m)
    return search + 6 * 8 * TOGETHER * m * (m + source.n_inputs)


@dataclasses.dataclass(frozen=True)
class _Rounds:
    """What rounds have in common: how they learn, rows whose slopes are averaged, and other ones that judge."""

    learner: AbstractLearner
    source: AbstractSource
    run: Run
    report: Report
    sloping: Int[np.ndarray, " R"]
    judges: JudgingRows
    n_slopes: int  # of each neighbourhood

    @classmethod
    def of(cls, learner: AbstractLearner, source: AbstractSource, run: Run, report: Report) -> "_Rounds":
        drawn = np.random.default_rng(SEED).permutation(source.size).astype(np.int32)
        most, n_slopes = IN_GROUPS if source.in_groups else (NEIGHBOURHOODS, SLOPES)
        n = min(most, source.size // 2)
        sloping, judging = np.sort(drawn[:n]), np.sort(drawn[n : n + SCORED])
        return cls(learner, source, run, report, sloping, JudgingRows.of(source, judging), n_slopes)

    def turned(self, first: FitResult, before: Scores, said: list[str]) -> tuple[FitResult, int]:
        """(The trial whose metric is kept, how many rounds it took; `first` for none); adds what each gained to `said`.

        `before` are the scores of `first`. A round whose gain is in doubt is followed by one more, which is compared with what was kept before both.
        """
        best = last = first
        n_turns, scores, doubted = 0, before, False
        for number in range(1, MOST_ROUNDS + 1):
            if deadline.left() < 2 * first.seconds + OVERHEAD:
                said.append("no time was left for another round")
                break
            M = self._outer_products(last.gp)
            if _apart(M) < LEAST_APART:
                said.append("slopes along the directions are uncorrelated")
                break
            rival = self._trial(_turned(last.gp, M), number)
            if rival.result not in DONE:
                return best._replace(result=unless_ended(best, rival)), n_turns
            last = rival
            name, new = f"turn {number}", self.scores(rival.gp)
            found = self.judges.preferred(scores, new, name)
            said.append(found.why)
            if found.name is None:
                if doubted or not _is_in_doubt(found, name):
                    break
                doubted = True
                continue
            best, n_turns, scores, doubted = rival, number, new, False
        return best, n_turns

    def closed(
        self, first: FitResult, before: Scores, turned: FitResult, n_turns: int, said: list[str]
    ) -> tuple[FitResult, int]:
        """(`first` gone on from the turned model by its own learner, its turns), where left-out rows prefer it; else `first`, without turns."""
        if turned.result not in DONE:
            return first._replace(result=turned.result), 0
        found = self._closing(first, turned.gp)
        if found.result not in DONE:
            return first._replace(result=unless_ended(first, found)), 0
        preferred = self.judges.preferred(before, self.scores(found.gp), "all of it")
        said.append(preferred.why)
        return (first, 0) if preferred.name is None else (found, n_turns)

    def _trial(self, gp: KernelGP, number: int) -> FitResult:
        """A run from `gp`, whose kernel is that which another ended with; by leave-one-out where the learner is slow."""
        learner = self.learner
        if not isinstance(learner, AbstractConditionals):
            learner = dataclasses.replace(ROW_BY_ROW, spread=SPREAD)
        trial = learner.near_optimum(self.source.size)
        return fit(
            trial, gp, self.source, key=self.run.learn_key, checkpoint=self.run.beside(f"metric{number}")
        )

    def _closing(self, first: FitResult, gp: KernelGP) -> FitResult:
        """One run of `first` and of what its learner makes of `gp`."""
        if isinstance(self.learner, AbstractConditionals):
            learner = self.learner.closing()
        else:
            learner = dataclasses.replace(self.learner, warm_rows=None)
        return gone_on(first, gp, learner, self.source, self.run.going(self.report, CLOSING), closes=True)

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


def _apart(M: Float[np.ndarray, "A A"]) -> float:
    """The share of ‖M‖² off the diagonal: 0 where the coordinates are eigenvectors already."""
    return 1 - float(np.sum(np.square(np.diagonal(M))) / max(np.sum(np.square(M)), np.finfo(float).tiny))


def _turned(gp: KernelGP, M: Float[np.ndarray, "A A"]) -> KernelGP:
    """The same model, its lengthscales along the eigenvectors of M."""
    metric = Metric.of(gp.kernel)
    if metric is None:
        raise ValueError(f"a {type(gp.kernel).__name__} has no metric that could be turned")
    return KernelGP(metric.turned(np.linalg.eigh(M)[1]), gp.noise)
