"""A noise variance that iterative solvers can cope with, where the learned one is too small to matter."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from stochgp.estimators.units import TrainingData
from stochgp.likelihoods.noise import NOISE_FLOOR
from stochgp.models import KernelGP
from stochgp.objectives.kernel import mean_variance
from stochgp.parameters import positive, value_of
from stochgp.posteriors import LocalPosterior
from stochgp.solvers.sizes import SMALL

ROWS = 500
SHARE = 0.05
ROUNDINGS = 3.0


def raised_for_solving(gp: KernelGP, data: TrainingData) -> tuple[KernelGP, dict[str, Any]]:
    """(The model with σ² raised to where it can be solved for, the choice and its reason).

    The likelihood of targets without noise makes σ² as small as it may be, and so the condition number of A = K + Σ, which the steps of
    iterative solvers grow with, as large. σ² becomes at least
    - 5 % of what is uncertain anyway, the median variance of f at 500 training rows, each predicted from its 256 nearest other rows:
      that makes standard deviations of observations larger by at most about 2.5 %;
    - 3 times the error of K by rounding, eps √N times the mean variance.
    Up to 3,000 rows, which are solved for directly in float64, σ² stays.
    """
    learned = float(gp.noise_variance)
    if len(data.y) <= SMALL:
        return gp, {"choice": learned, "why": "learned, of what the kernel sees"}
    local = LocalPosterior(gp, data.X, data.y, data.count)
    usual = float(np.median(local.left_out(ROWS, 0)[1].variance))
    kernel = value_of(gp.kernel)
    signal = float(mean_variance(kernel, data.X[:: max(1, len(data.y) // ROWS)][:ROWS]))
    rounding = float(jnp.finfo(data.X.dtype).eps) * len(data.y) ** 0.5 * signal
    least = max(SHARE * usual, ROUNDINGS * rounding)
    if learned >= least:
        return gp, {
            "choice": learned,
            "why": f"learned, of what the kernel sees; solvable from {least:.3g} on",
        }
    raised = positive(least, lower=NOISE_FLOOR, dtype=jnp.asarray(gp.noise_variance).dtype)
    why = (
        f"{learned:.3g} was learned; raised so that it can be solved for, to the larger of {SHARE:.0%} of the median variance "
        f"{usual:.3g} of rows left out and {ROUNDINGS:g} times the rounding error of K, {rounding:.3g}"
    )
    return eqx.tree_at(lambda g: g.noise.level, gp, raised), {"choice": least, "why": why}
