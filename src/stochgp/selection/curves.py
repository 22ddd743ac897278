"""Whether the probabilities of left-out rows want a correction, and which."""

import numpy as np
from jaxtyping import Float, Int

from stochgp.choosing import prefer, too_few
from stochgp.distributions import SplineCurve

CURVED = ", recalibrated"  # after the name of a distribution whose probabilities are corrected
CORRECTION = "a correction"
FEWEST = 2000  # rows: fewer do not show where the shares of tails begin
LEAST_GAIN = 0.001  # nats a row: a correction costs neither steps nor time, and means stay as they are
DISTINCT = 0.9  # of the probabilities


def chosen_curve(
    u: Float[np.ndarray, " n"],
    cell: Int[np.ndarray, " n"],
    seed: int,
    before: Float[np.ndarray, " n"] | float = 0.0,
    weight: Float[np.ndarray, " n"] | None = None,
) -> tuple[SplineCurve | None, str]:
    """(The spline through the shares of u = F(y) of left-out rows, or None where there is no clear gain, why).

    The gain is the mean of log R'(u) over each half of the cells by the spline of the other half: 2 standard errors, by the sums of cells,
    and 0.001 nats are wanted, and 2,000 rows of different u. `before` are gains of F itself over the distribution that it would replace.
    A row of weight ρ counts as ρ equal ones, but as one of the rows that are wanted.
    """
    n = len(u)
    if few := too_few(n, cell, FEWEST):
        return None, few
    if len(np.unique(u)) < DISTINCT * n:
        return None, "targets are tied, and their probabilities no continuous numbers"
    numbers = np.random.default_rng(seed).permutation(int(cell.max()) + 1)
    first = numbers[cell] % 2 == 0
    gains, count = np.empty(n), np.ones(n) if weight is None else weight
    for fit in (first, ~first):
        gains[~fit] = SplineCurve.of(u[fit], count[fit]).log_slope(u[~fit], 1 - u[~fit])
    gains += before
    found = prefer(np.zeros(n), {CORRECTION: gains}, cell, count, least=LEAST_GAIN, fewest=FEWEST)
    return None if found.name is None else SplineCurve.of(u, count), f"half by half {found.why}"
