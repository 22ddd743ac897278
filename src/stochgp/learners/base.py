"""What a learner is: a frozen value with pure `init` and `step`. `fit` owns the loop."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import Rows
from stochgp.learners.descent import Optimizer
from stochgp.learners.schedules import Schedule
from stochgp.models import FeatureGP
from stochgp.objectives.feature import Spectrum


class Planned(NamedTuple):
    """What a learner may know of the run before it starts."""

    n_rows: int
    count: float  # Σρ, the number of rows that the weights stand for
    total_steps: int
    rate: float


class AbstractLearner(eqx.Module):
    """How θ is learned.

    batch_size           B; None = all rows at every step
    epochs               passes over the data; None = chosen by `fit` (see `planning`)
    learning_rate        a number, a rule of the step, or None: `fit` tries a few rates and writes them into the history
    optimizer            any optax rule, as a function of its learning rate: `optax.adam`, `optax.adadelta`, `optax.sgd`, …
    decay                factor on a numeric learning rate, as a function of the fraction of steps taken
    refit                refit the output scale and σ² with the features fixed at every visit and at the end
    validation_fraction  rows held out: 0 = the criterion (which rate, which iterate, the refit) is the exact NLML of the training rows;
                         above 0 = the NLPD of the held-out rows, which join the posterior at the end
    replace              independent draws with replacement instead of shuffled epochs
    """

    batch_size: eqx.AbstractVar[int | None]
    epochs: eqx.AbstractVar[int | None]
    learning_rate: eqx.AbstractVar[float | Schedule | None]
    optimizer: eqx.AbstractVar[Optimizer]
    decay: eqx.AbstractVar[Schedule]
    refit: eqx.AbstractVar[bool]
    validation_fraction: eqx.AbstractVar[float]
    replace: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def init(self, gp: FeatureGP, planned: Planned, *, key: PRNGKeyArray) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def step(self, state: Any, batch: Rows, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        """(State after one step, Info: scalars of which `fit` keeps the mean). Pure; fit for jit and scan."""

    @abc.abstractmethod
    def anchor(
        self, state: Any, gp: FeatureGP, spectrum: Spectrum, variance: float, noise_variance: float
    ) -> Any:
        """The state after a visit, at which the exact moments of all rows are known and `gp` is the refitted model."""

    @abc.abstractmethod
    def model(self, state: Any) -> FeatureGP:
        """θ of the state."""

    @abc.abstractmethod
    def slower(self, state: Any, factor: float) -> Any:
        """The state with its learning rate multiplied by `factor`."""

    @abc.abstractmethod
    def finished(self, info: dict[str, float]) -> bool:
        """Whether the means of Info over the last stretch say that there is nothing left to do."""

    @property
    @abc.abstractmethod
    def batches_per_step(self) -> int:
        """How many independent batches a step takes."""

    @property
    @abc.abstractmethod
    def anchors(self) -> bool:
        """Whether a visit changes the state."""

    def check_common(self) -> None:
        """Raises ValueError, naming the field, for impossible settings."""
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
        rate = self.learning_rate
        if rate is not None and not callable(rate) and not 0 < rate < float("inf"):
            raise ValueError(f"learning_rate is {rate}; it must be positive and finite")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction is {self.validation_fraction}; it must lie in [0, 1)")
