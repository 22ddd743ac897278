"""A noise variance that is large enough for iterative solvers, in place of a learned one that is too small to matter."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from stochgp.models import KernelGP
from stochgp.numerics.seeds import random_rows
from stochgp.objectives.kernel import mean_variance
from stochgp.parameters import frozen, value_of
from stochgp.posteriors import LocalPosterior
from stochgp.solvers.sizes import SMALL
from stochgp.training_data.units import TrainingData

ROWS = 500
SHARE = 0.05
ROUNDINGS = 3.0
FEW = 0.05  # of the rows, whose variance may be smaller than what counts beside rounding


class Raised(NamedTuple):
    """A model with a σ² for which systems can be solved, the choice and its reason, and by which share typical variances of observations grow."""

    gp: KernelGP
    choice: dict[str, Any]
    growth: float


def raised_for_solving(gp: KernelGP, data: TrainingData) -> Raised:
    """The model with a σ² for which systems can be solved.

    If the targets have no noise, the likelihood makes σ² as small as it may be. The condition number of A = K + Σ is then large, and
    iterative solvers take more steps. σ² is therefore raised to the larger of two values, where it is smaller than that:
    - 5 % of the median variance of f at 500 training rows, each predicted from its 256 nearest other rows. So much is uncertain anyway:
      standard deviations of observations grow by at most about 2.5 %.
    - 3 times the rounding error of K, which is eps √N times the mean variance, less the variance of f that 95 % of these rows have given
      their neighbours: so much a rough kernel's own small eigenvalues lie above rounding.
    Up to 3,000 rows σ² stays as it is: there the solve is direct, in float64.
    """
    learned = float(gp.noise_variance)
    if len(data.y) <= SMALL:
        return Raised(gp, {"choice": learned, "why": "learned, of what the kernel sees"}, 0.0)
    local = LocalPosterior(gp=gp, X=data.X, y=data.y, weight=data.weight)
    usual, least_usual = np.quantile(local.left_out(random_rows(len(data.y), ROWS, 0)).variance, (0.5, FEW))
    kernel = value_of(gp.kernel)
    signal = float(mean_variance(kernel, data.X[:: max(1, len(data.y) // ROWS)][:ROWS]))
    rounding = float(jnp.finfo(data.X.dtype).eps) * len(data.y) ** 0.5 * signal
    least = float(max(SHARE * usual, ROUNDINGS * rounding - least_usual))
    if learned >= least:
        why = f"learned, of what the kernel sees; solvable from {least:.3g} on"
        return Raised(gp, {"choice": learned, "why": why}, 0.0)
    raised = frozen(np.asarray(least, gp.noise_variance.dtype))
    why = (
        f"{learned:.3g} was learned; raised so that it can be solved for, to the larger of {SHARE:.0%} of the median variance "
        f"{usual:.3g} of left-out rows and {ROUNDINGS:g} times the rounding error of K, {rounding:.3g}, less the variance {least_usual:.3g} of nearly all of them"
    )
    growth = (least - learned) / float(usual + learned)
    return Raised(eqx.tree_at(lambda g: g.noise.level, gp, raised), {"choice": least, "why": why}, growth)
