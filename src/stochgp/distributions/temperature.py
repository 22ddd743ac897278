"""Temperature scaling: how sure class probabilities are, by rows that neither the fit nor its choices have seen."""

import typing
from typing import Any

import equinox as eqx
import numpy as np
import scipy.optimize
from jaxtyping import Float64
from scipy.special import log_softmax

from stochgp.distributions.calibrating import FEWEST, one_of_each
from stochgp.distributions.categorical import Categorical
from stochgp.numerics.arrays import effective_number

SURE = 6.63  # of twice the log likelihood ratio: the 1 % point of χ² with one degree of freedom
FARTHEST = 2.5  # of |log T|: of classes that no held-out row confuses the likelihood alone has no optimum


class TemperatureScaling(eqx.Module):
    """P(c) → P(c)^(1/T) / Σ_c' P(c')^(1/T): surer for T below 1, less sure above. The most probable class stays (Guo et al. 2017, arXiv 1706.04599).

    Parameters
    ----------
    temperature : float
        T, positive; 1 changes nothing.
    gain : float
        The log probability in nats that a row gains, on average over the rows it was fitted to; 0 where T = 1.
    n_rows : int
        How many rows, or groups, it was fitted to.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp.distributions import Categorical, TemperatureScaling
    >>> found = Categorical(np.log([[0.8, 0.2]]))
    >>> TemperatureScaling(0.5, 0.0, 0)(found).probabilities.round(3).tolist()
    [[0.941, 0.059]]
    """

    temperature: float
    gain: float
    n_rows: int

    @property
    def is_identity(self) -> bool:
        return self.temperature == 1.0

    def __call__(self, found: Categorical) -> Categorical:
        return (
            found if self.is_identity else Categorical(_scaled(found.log_probabilities, 1 / self.temperature))
        )


def temperature_scaling(
    found: Categorical, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
) -> TemperatureScaling:
    """The T of the highest Σ log P_T(y_i) − (log T)²/2 over n held-out rows, if 2 Σ log P_T(y_i)/P(y_i) exceeds 6.63, else T = 1.

    The second term is a log-normal prior of T: where no held-out row is mistaken, T goes as low as that allows.

    Parameters
    ----------
    found : Categorical
        Predicted for the n held-out rows.
    y : array [n]
        The numbers of their classes.
    groups : array [n] or None
        Which rows belong together, by numbers or text: of each group one random row is used. None: every row is.
    seed : int
        Of the choice of rows from groups.
    weight : array [n] or None
        ρ of each row, positive: it counts as ρ equal rows, or is ρ times as likely to be the row of its group. None: 1 for all.

    Returns
    -------
    TemperatureScaling
        Called with a distribution it returns another.

    Raises
    ------
    ValueError
        For fewer than 100 rows (or groups), and where y or weight are not of these rows.
    """
    some, y, weight = one_of_each(found, y, groups, seed, weight)
    n = len(y)
    if n < FEWEST:
        raise ValueError(f"{n} held-out rows are too few to scale by; at least {FEWEST} are needed")
    logs, number = typing.cast(Categorical, some).log_probabilities, effective_number(weight)
    at = np.arange(n), y.astype(np.int64)
    of_true = lambda raw: float(np.average(_scaled(logs, np.exp(-raw))[at], weights=weight))
    as_it_is = TemperatureScaling(1.0, 0.0, n)
    if not np.isfinite(of_true(0.0)):  # a class came that was impossible, and stays so
        return as_it_is
    loss = lambda raw: raw**2 / (2 * number) - of_true(raw)
    best = scipy.optimize.minimize_scalar(loss, bounds=(-FARTHEST, FARTHEST), method="bounded")
    gain = of_true(best.x) - of_true(0.0)
    if 2 * number * gain <= SURE:
        return as_it_is
    return TemperatureScaling(float(np.exp(best.x)), gain, n)


def _scaled(log_probabilities: np.ndarray, factor: float) -> Float64[np.ndarray, "N C"]:
    """What is impossible stays so."""
    return log_softmax(factor * np.asarray(log_probabilities, np.float64), axis=1)
