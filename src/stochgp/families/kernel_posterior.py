"""Which posterior a kernel GP has: by a solve of all rows, or from the rows nearest to each point."""

import math
from typing import Any, NamedTuple

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import AS_ASKED, AS_GIVEN, choice
from stochgp.deadline import TimeIsUpError
from stochgp.estimators.settings import DTYPES
from stochgp.families.integrating import integrated
from stochgp.families.solving import Wanted, posterior_of
from stochgp.models import KernelGP
from stochgp.planning.solver import choose
from stochgp.posteriors import AbstractPosterior, LocalPosterior
from stochgp.posteriors.local import NEIGHBOURS, local_search_bytes
from stochgp.results import RESULTS, FitResult, Solution
from stochgp.selection.choices import LOCAL_ROWS
from stochgp.selection.local_choice import calibrated_locally, sharing
from stochgp.selection.raised_noise import raised_for_solving
from stochgp.solvers import Cholesky, SystemSize
from stochgp.solvers.sizes import SMALL
from stochgp.training_data.run import Run
from stochgp.training_data.units import TrainingData

CALIBRATION_ROWS = 2000  # training rows that set the scale of local variances
FEW_CALIBRATION_ROWS = 64  # where time is short: blocks of one size, so one program
LOCAL_SECONDS = 2.5  # that local prediction takes to prepare, compilation included
TYPICAL_TO_BEST = (
    3.0  # an iterative solve, which times itself, is begun with a third of its typical seconds left
)
MOST_GROWTH = 0.25  # of the variances of observations, by raised noise: beyond that prediction is local
WORST = 0.5  # relative residual of a solve that was cut, beyond which local prediction is better


class WantedPosterior(NamedTuple):
    """What the user asked of the posterior."""

    prediction: str  # "auto", "global" or "local"
    solve: Wanted
    keeps_noise: bool  # whether the noise variance was given

    def seconds(self, data: TrainingData, run: Run) -> float:
        """What the solve takes by typical costs, where that is within half of the time; else what local prediction takes."""
        left = deadline.left()
        if not left < math.inf:
            return 0.0
        local = min(LOCAL_SECONDS, left / 2)
        if self._prediction(data)[0] == "local" or data.n_rows <= SMALL:
            return local
        wholly = self._solve_seconds(data, run.budget) + LOCAL_SECONDS
        return wholly if wholly < left / 2 else local

    def of(
        self, gp: KernelGP, learned: FitResult | None, data: TrainingData, run: Run
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """(The posterior, how it was solved for, what `plan_` says of it).

        By a solve of all rows, or from the rows nearest to each point; by what can be had quickly where the solve would end too late.
        """
        prediction, why = self._prediction(data)
        if prediction == "local":
            return self._locally(gp, data, run, why)
        try:
            return self._globally(gp, learned, data, run, why)
        except TimeIsUpError as late:
            return self._at_once(gp, data, run, f"solving for all rows would have taken too long: {late}")

    def require(self, data: TrainingData, run: Run, left_by_learning: int) -> None:
        """Raise MemoryLimitError if the solve of all rows will not fit beside so many bytes that learning leaves in use."""
        if self._prediction(data)[0] == "global":
            self._solve_seconds(data, run.budget.keeping(left_by_learning))

    def _prediction(self, data: TrainingData) -> tuple[str, str]:
        """("global" or "local", why)."""
        if self.prediction != "auto":
            return self.prediction, AS_ASKED
        return "local" if data.n_rows > LOCAL_ROWS else "global", f"global up to {LOCAL_ROWS} rows"

    def _solve_seconds(self, data: TrainingData, budget: Budget) -> float:
        """Of the whole solve, by typical costs."""
        solve, itemsize = self.solve, DTYPES[self.solve.dtype]
        size = SystemSize(
            data.n_rows, data.n_inputs, solve.n_samples, itemsize * (data.n_inputs + 2), itemsize
        )
        return choose(size, budget, solver=solve.solver).seconds

    def _globally(
        self, gp: KernelGP, learned: FitResult | None, data: TrainingData, run: Run, why: str
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """Raises TimeIsUpError where there is no time for the solve, and that or KeyboardInterrupt where it was cut far from the solution."""
        choices = {"prediction": choice("global", why), "posterior_rows": choice(None, "all of them")}
        if data.n_rows > SMALL and deadline.left() < math.inf:
            deadline.require(self._solve_seconds(data, run.budget) / TYPICAL_TO_BEST)
        if learned is not None and not self.keeps_noise:
            raised = raised_for_solving(gp, data)
            if raised.growth > MOST_GROWTH and self.prediction == "auto":
                why = f"a global solve needs a noise variance that makes those of predictions {1 + raised.growth:.3g} times as large"
                return self._locally(gp, data, run, why)
            if raised.gp is not gp:
                learned_noise = float(gp.noise_variance)
                choices["learned_noise_variance"] = choice(learned_noise, "before it was raised")
            gp, choices["noise_variance"] = raised.gp, raised.choice
        else:
            why = "not learned: " + (AS_GIVEN if self.keeps_noise else "the starting value")
            choices["noise_variance"] = choice(float(gp.noise_variance), why)
        wanted = self.solve._replace(
            calibrates=learned is not None and (data.n_rows > SMALL or data.rows.group is not None),
            devices=run.devices,
        )
        posterior, solved, more = posterior_of(gp, data, wanted, run.budget, key=run.solve_key)
        if learned is not None:
            posterior, drawn = integrated(posterior, gp, data.rows.group is not None, run.budget)
            choices |= drawn
        residual = float(solved.residual_norms[0])
        if residual > WORST and data.n_rows > SMALL:
            if solved.result is RESULTS.interrupted:
                raise KeyboardInterrupt
            if solved.result is RESULTS.time_limit:
                raise TimeIsUpError(f"it had come to a relative residual of {residual:.2g}")
        return posterior, solved, choices | more

    def _at_once(
        self, gp: KernelGP, data: TrainingData, run: Run, late: str
    ) -> tuple[AbstractPosterior, Solution | None, dict[str, Any]]:
        """Local prediction; where functions may be wanted, the exact posterior of as many rows as a direct solve is quick for."""
        if self.prediction != "global":
            posterior, solved, choices = self._locally(gp, data, run, "there was no time for a solve")
            return posterior, solved, choices | {"late": f"{late}; prediction is local"}
        some = data.some(run.some(SMALL, data.n_rows))
        wanted = self.solve._replace(solver=Cholesky(), n_samples=0, devices=run.devices)
        posterior, solved, choices = posterior_of(gp, some, wanted, run.budget, key=run.solve_key)
        choices["prediction"] = choice("global", AS_ASKED)
        choices["posterior_rows"] = choice(SMALL, "random ones: there was no time for a solve of all")
        return posterior, solved, choices | {"late": f"{late}; the posterior is that of {SMALL} rows"}

    def _locally(
        self, gp: KernelGP, data: TrainingData, run: Run, why: str
    ) -> tuple[LocalPosterior, None, dict[str, Any]]:
        """From neighbours, calibrated on fewer rows where time is short."""
        N, D = data.n_rows, data.n_inputs
        run.budget.require(
            local_search_bytes(gp.kernel, N, D, CALIBRATION_ROWS, NEIGHBOURS) + 8 * N * (D + 2),
            f"local prediction from {N} rows",
        )
        local = LocalPosterior(gp=gp, X=data.X, y=data.y, weight=data.weight)
        local, shared = sharing(local, run.devices)
        rows = CALIBRATION_ROWS if deadline.left() > LOCAL_SECONDS else FEW_CALIBRATION_ROWS
        try:
            with deadline.granted(LOCAL_SECONDS):
                local, neighbours = calibrated_locally(local, rows, data.rows.group)
        except TimeIsUpError:
            rows, neighbours = 0, choice(local.n_neighbours, "there was no time to compare with fewer")
        scaled = choice(rows, "left out to find the scale of the variances")
        choices = {"prediction": choice("local", why), "calibration_rows": scaled, "neighbours": neighbours}
        return local, None, choices | shared
