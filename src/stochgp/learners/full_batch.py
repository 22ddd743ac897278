"""Full-batch descent on the exact marginal likelihood."""

from typing import NamedTuple

import equinox as eqx
import jax
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import Rows
from stochgp.learners.base import AbstractLearner, Planned
from stochgp.learners.descent import Descent, Optimizer, begin, move, slowed, step_size
from stochgp.learners.schedules import Schedule, constant
from stochgp.models import FeatureGP, split
from stochgp.objectives.feature import Spectrum, nlml_of_rows


class FullBatchState(eqx.Module):
    gp: FeatureGP
    descent: Descent


class FullBatchInfo(NamedTuple):
    loss: Float[Array, ""]  # exact NLML per datum before the step
    gradient_norm: Float[Array, ""]  # of the NLML per datum, by the unconstrained parameters


class FullBatch(AbstractLearner):
    """Descent on the exact NLML per datum of all rows; O(N M² + M³) per evaluation, memory for one chunk of features.

    The default rule is L-BFGS with a line search (several evaluations per step); any optax rule serves. `learning_rate` multiplies its
    step on the NLML per datum.

    `converged`: the gradient norm fell below `tolerance`, or all planned steps were taken and the criterion's best value improved by
    less than 0.01 nats per datum over the last tenth of the visits.
    """

    batch_size: int | None = None
    epochs: int | None = 200
    learning_rate: float | Schedule | None = 1.0
    optimizer: Optimizer = optax.lbfgs
    decay: Schedule = constant
    tolerance: float = 1e-5
    refit: bool = True
    validation_fraction: float = 0.1
    replace: bool = False

    def __check_init__(self) -> None:
        self.check_common()
        if self.batch_size is not None:
            raise ValueError(
                f"batch_size is {self.batch_size}; a full-batch learner takes all rows: leave it None"
            )

    @property
    def batches_per_step(self) -> int:
        return 1

    @property
    def anchors(self) -> bool:
        return False

    def init(self, gp: FeatureGP, planned: Planned, *, key: PRNGKeyArray) -> FullBatchState:
        trainable, _ = split(gp)
        return FullBatchState(gp, begin(trainable, self.optimizer, planned.rate, planned.total_steps))

    def step(
        self, state: FullBatchState, batch: Rows, *, key: PRNGKeyArray
    ) -> tuple[FullBatchState, FullBatchInfo]:
        """`batch` is all rows."""
        trainable, rest = split(state.gp)

        def loss(theta: FeatureGP) -> Float[Array, ""]:
            return nlml_of_rows(eqx.combine(theta, rest), batch)

        value, gradient = jax.value_and_grad(loss)(trainable)
        size = step_size(state.descent, self.learning_rate, self.decay)
        theta, descent = move(
            trainable, gradient, state.descent, self.optimizer, size, value=value, value_fn=loss
        )
        info = FullBatchInfo(value, optax.tree.norm(gradient))
        return FullBatchState(eqx.combine(theta, rest), descent), info

    def anchor(
        self,
        state: FullBatchState,
        gp: FeatureGP,
        spectrum: Spectrum,
        variance: float,
        noise_variance: float,
    ) -> FullBatchState:
        return state

    def model(self, state: FullBatchState) -> FeatureGP:
        return state.gp

    def slower(self, state: FullBatchState, factor: float) -> FullBatchState:
        return eqx.tree_at(lambda s: s.descent, state, slowed(state.descent, factor))

    def finished(self, info: dict[str, float]) -> bool:
        return info["gradient_norm"] < self.tolerance
