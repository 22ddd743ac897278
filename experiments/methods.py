"""The learners of the UCI tables by name: as published, and as they are here."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import optax

from stochgp.learners import (
    BSGD,
    SCGD,
    SVGP,
    AbstractLearner,
    ByEvidence,
    ByLoss,
    Minimax,
    constant,
    muon,
)
from stochgp.models import FeatureGP
from stochgp.parameters import frozen

# No rows are held out: the criterion is the exact NLML of the training rows, with or without a refit of the two variances.
REFITTED, NOT_REFITTED = (ByEvidence(refit=refit, validation_fraction=0.0) for refit in (True, False))
ADADELTA, ADAM, MUON = (0.3, 1.0, 3.0), (1e-3, 3e-3, 1e-2), (3e-3, 1e-2, 3e-2)


class Method(NamedTuple):
    """A learner but for batch size, epochs and rate; the rates to try; whether the kernel's scale is fixed, as in the papers; whether it is of inducing

    points (`inducing`).
    """

    make: Callable[..., AbstractLearner]
    rates: tuple[float, ...]
    fixed_scale: bool = False
    settings: dict = {}  # noqa: RUF012 (read only)
    sparse: bool = False

    def learner(self, batch: int, epochs: int, rate: float) -> AbstractLearner:
        settings = {"evaluator": REFITTED} | self.settings
        return self.make(batch_size=batch, epochs=epochs, learning_rate=rate, **settings)

    def prepared(self, gp: FeatureGP) -> FeatureGP:
        """`gp` with its variance frozen where the method does not learn one."""
        return eqx.tree_at(lambda g: g.variance, gp, frozen(gp.variance)) if self.fixed_scale else gp


_PUBLISHED = {"optimizer": optax.adadelta, "decay": constant, "anchored": False, "evaluator": NOT_REFITTED}

METHODS = {
    "scgd-published": Method(SCGD, ADADELTA, True, {**_PUBLISHED, "tracking": 0.9}),
    "scgd-adam": Method(SCGD, ADAM, settings={"optimizer": optax.adam}),
    "scgd-muon": Method(SCGD, MUON, settings={"optimizer": muon}),
    "minimax-published": Method(Minimax, ADADELTA, True, {**_PUBLISHED, "penalty": 1.0}),
    "minimax-muon": Method(Minimax, MUON, settings={"optimizer": muon}),
    "bsgd-adam": Method(BSGD, ADAM, settings={"optimizer": optax.adam}),
    "svgp": Method(SVGP, ADAM, settings={"evaluator": ByLoss()}, sparse=True),
}

# Microseconds on one core of 2020s server CPU: of a step, of a row of it; only their order matters.
STEP_COST = {
    "scgd-published": (400, 4),
    "scgd-adam": (150, 4),
    "scgd-muon": (1200, 4),
    "minimax-published": (900, 8),
    "minimax-muon": (3000, 8),
    "bsgd-adam": (150, 8),
    "svgp": (500, 20),
}
