"""The distribution of standardised prediction errors, Gaussian or Student-t."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64
from scipy.optimize import minimize
from scipy.special import digamma

from stochgp import deadline
from stochgp.choosing import FEWEST_GROUPS, Preference, prefer, too_few
from stochgp.data.rows import Data
from stochgp.distributions import AbstractDistribution, Normal, Student
from stochgp.distributions.normal import LOG_2PI, log_student
from stochgp.numerics.clustered import clusters, folds, median
from stochgp.numerics.trees import Trees
from stochgp.observations.boosting import Boosting

GAUSSIAN, STUDENT = "gaussian", "student-t"
SCALED = "gaussian, scale of the input"  # alternative to the Student-t, if its mean may not exist
MIN_ROWS_SCALED = 500  # minimum number of rows for a scale that depends on the inputs
PARTS = 4
MANY = 8000  # with at least as many rows, one part is enough to compare models
TREE_DF = 4.0  # degrees of freedom of the loss for trees, which makes them robust to outliers
MIN_DF, MAX_DF = 2.1, 1000.0  # bounds for which the standard deviation exists
MAX_LOG_SCALE = 60.0  # bound of |log κ|
MAX_OF_TREES = 16.0  # bound of |log s|
MIN_SQUARE = 1e-280
ROUNDED = 1e-4  # if the median squared error is smaller, in variances, errors may be rounding errors
TIED = 0.1  # maximum share of errors that are exactly 0
BOOSTING = Boosting()

Squares = Float[np.ndarray, " N"]
Eta = Float[np.ndarray, "#N"]
OnHost = Float64[np.ndarray, " N"]


class Dispersion(eqx.Module):
    """The distribution of an observation y = m + √(κ s(x) V) T with the predicted mean m.

    The predicted variance V includes the noise. T is standard normal or Student-t with the density p_T.
    With z² = (y − m)²/V and η = log s(x),

        log p(y) = −½ log V − ½(η + log κ) + log p_T(√(z² e^(−η)/κ)).

    The variances of f and of the noise are multiplied by c s(x), where c = κ var T. The mean remains m.

    Parameters
    ----------
    factor : float
        The factor κ of variances.
    df : float or None
        The degrees of freedom ν of a Student-t. None means that T is standard normal.
    trees : Trees or None
        The function log s(x). None means log s(x) = 0.
    """

    factor: float = 1.0
    df: float | None = None
    trees: Trees | None = None

    @property
    def variance(self) -> float:
        """The factor c = κ var T, with var T = ν/(ν − 2) for a Student-t."""
        return self.factor * (1.0 if self.df is None else self.df / (self.df - 2))

    @property
    def is_scaling(self) -> bool:
        """True if predicted variances change."""
        return self.variance != 1.0 or self.trees is not None

    def log_scale(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return η = log s(x) on the host."""
        if self.trees is None:
            return np.zeros(len(X))
        return np.clip(self.trees.on_host(np.asarray(X, np.float64)), -MAX_OF_TREES, MAX_OF_TREES)

    def log_density(self, squares: OnHost, eta: Eta) -> OnHost:
        """Return log p(y) + ½ log V of each row, for z² = `squares`."""
        zeta = squares * np.exp(-eta) / self.factor
        log_f = -0.5 * (LOG_2PI + zeta) if self.df is None else log_student(zeta, self.df)
        return -0.5 * (eta + math.log(self.factor)) + log_f

    @property
    def scale(self) -> eqx.Partial:
        """The function c s(x) of rows x, in JAX."""
        with jax.enable_x64(True):
            return eqx.Partial(_scales, jnp.asarray(self.variance), self.trees)

    def observed(self, mean: OnHost, std: OnHost) -> AbstractDistribution:
        """Return the distribution of observations; `std` includes the noise and c s(x)."""
        if self.df is None:
            return Normal(mean, std)
        return Student(mean, std * math.sqrt(1 - 2 / self.df), self.df)


def _scales(variance: Array, trees: Trees | None, X: Float[Array, "N D"]) -> Float[Array, " N"]:
    eta = jnp.zeros(len(X), X.dtype) if trees is None else trees(X)
    return variance.astype(X.dtype) * jnp.exp(jnp.clip(eta, -MAX_OF_TREES, MAX_OF_TREES))


def choose(rows: Data, seed: int, *, heavy_tails: bool = True) -> tuple[Preference, Dispersion | None]:
    """Compare the Student-t of `fit` with a constant Gaussian by cross-validation.

    If `heavy_tails` is False, the alternative is a Gaussian with a scale that depends on the inputs; it needs
    500 rows. The result names the alternative if it is clearly better (`prefer`), otherwise None. With fewer
    than 100 rows or 10 groups, and for tied or rounded targets, the result is None without a comparison.

    Each round uses two quarters of the rows for trees, one to stop boosting and to fit κ and ν, and one to
    compare log densities. With 8,000 rows or more, one round is enough if it compares at least 10 groups. If
    an eighth contains 10 groups, this round uses three quarters of the rows for trees, and an eighth for each
    of the other purposes. After one round, the second result is its alternative, with κ and ν of all rows
    that are not used for trees.
    """
    name, fewest = (STUDENT, {}) if heavy_tails else (SCALED, {"fewest": MIN_ROWS_SCALED})
    if why := too_few(len(rows), rows.group, **fewest):
        return Preference(None, {}, why), None
    squares = rows.y**2
    if np.average(squares == 0, weights=rows.weight) > TIED:
        why = "targets are tied: predictions of more than a tenth of the left-out rows are exact"
    elif median(squares, rows.weight) < ROUNDED and squares.max() <= 1:
        why = "left-out errors are rounding errors: half of them are below 0.01 standard deviations, and all below 1"
    if why:
        return Preference(None, {}, why), None
    scaled, n_scored, n_parts = len(rows) >= MIN_ROWS_SCALED, PARTS, PARTS
    if len(rows) >= MANY:
        n_groups = len(rows) if rows.group is None else len(np.unique(rows.group))
        n_parts = 2 * PARTS if n_groups >= 2 * PARTS * FEWEST_GROUPS else PARTS
        n_scored = min(PARTS, -(-n_parts * FEWEST_GROUPS // n_groups))
    part = folds(len(rows), rows.group, n_parts, seed)
    scored, gaussian, rival, trees = [], [], [], list[Trees | None]()
    for k in range(n_scored):
        is_tested, is_other = part == k, part == (k + 1) % n_parts
        first, others, tested = (rows.take(where) for where in (~is_tested & ~is_other, is_other, is_tested))
        shape = _fit(first, others, seed, scaled, heavy_tails)
        base = _fit(first, others, seed, False, False)
        scored.append(np.flatnonzero(is_tested))
        trees.append(shape.trees)
        gaussian.append(base.log_density(tested.y**2, np.zeros(1)))
        rival.append(shape.log_density(tested.y**2, shape.log_scale(tested.X)))
    tested, (gaussian, rival) = rows.take(np.concatenate(scored)), map(np.concatenate, (gaussian, rival))
    preference = prefer(gaussian, {name: rival}, clusters(tested.X, tested.group), tested.weight)
    if preference.name is None or n_scored > 1:
        return preference, None
    return preference, _with_tails(trees[0], rows.take(part > 1), rows.take(part < 2), heavy_tails)


def fit(
    rows: Data, seed: int, *, heavy_tails: bool = True, scaled: bool = True, df: float | None = None
) -> Dispersion:
    """Fit a Student-t or a Gaussian, with a scale that depends on the inputs.

    Trees are fitted to three quarters of the rows. The last quarter determines the number of trees, κ and ν.
    The scale is constant with fewer than 500 rows, if `scaled` is False, or if no tree improves the density.
    A number `df` fixes ν.
    """
    part = folds(len(rows), rows.group, PARTS, seed)
    scaled = scaled and len(rows) >= MIN_ROWS_SCALED
    return _fit(rows.take(part != 0), rows.take(part == 0), seed, scaled, heavy_tails, df)


def gaussian_dispersion(squares: Squares, weight: Squares | None = None) -> Dispersion:
    """Fit κ of a Gaussian: the mean of z², with one additional z² = 1."""
    weight = np.ones(len(squares)) if weight is None else weight
    return Dispersion(float((1 + (weight * squares).sum()) / (1 + weight.sum())))


def student_dispersion(
    squares: Squares, df: float | None = None, weight: Squares | None = None
) -> Dispersion:
    """Fit κ of a Student-t by maximum likelihood, and 2.1 ≤ ν ≤ 1000 unless `df` fixes ν."""
    start = math.log(max(median(squares, weight), MIN_SQUARE) / 0.55)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        zeta, nu = squares * math.exp(-x[0]), 2 + math.exp(x[1])
        tail, pull = np.log1p(zeta / nu), (nu + 1) * zeta / (nu + zeta)
        of_nu = (1 / nu + digamma(nu / 2) - digamma((nu + 1) / 2)) / 2
        parts = 0.5 * x[0] - log_student(zeta, nu), 0.5 * (1 - pull), 0.5 * (tail - pull / nu) + of_nu
        value, by_scale, by_df = np.average(parts, axis=1, weights=weight)
        return value, np.array([by_scale, by_df * (nu - 2)])

    first = math.log((4.0 if df is None else df) - 2)
    ends = (math.log(MIN_DF - 2), math.log(MAX_DF - 2)) if df is None else (first, first)
    x0 = np.array([np.clip(start, -MAX_LOG_SCALE, MAX_LOG_SCALE), first])
    found = minimize(loss, x0, jac=True, method="L-BFGS-B", bounds=((-MAX_LOG_SCALE, MAX_LOG_SCALE), ends))
    return Dispersion(math.exp(found.x[0]), 2 + math.exp(found.x[1]) if df is None else df)


def slopes(squares: Squares, eta: Eta, shape: Dispersion) -> tuple[Squares, Squares]:
    """Return first and expected second derivatives of −log p with respect to η, per row.

    With ζ = z² e^(−η)/κ, these are ½(1 − (ν + 1)ζ/(ν + ζ)) and ν/(2(ν + 3)) for a Student-t.
    For a Gaussian, these are ½(1 − ζ) and ½.
    """
    zeta = squares * np.exp(-eta) / shape.factor
    if shape.df is None:
        return 0.5 * (1 - zeta), np.full_like(zeta, 0.5)
    nu = shape.df
    return 0.5 * (1 - (nu + 1) * zeta / (nu + zeta)), np.full_like(zeta, 0.5 * nu / (nu + 3))


def _fit(
    rows: Data, others: Data, seed: int, scaled: bool, heavy_tails: bool, df: float | None = None
) -> Dispersion:
    """Fit trees to `rows`, and κ and ν to `others` (see `_with_tails`)."""
    return _with_tails(_trees(rows, others, seed) if scaled else None, rows, others, heavy_tails, df)


def _with_tails(
    trees: Trees | None, rows: Data, others: Data, heavy_tails: bool, df: float | None = None
) -> Dispersion:
    """Fit κ and ν to `others`; without trees, to all rows."""
    eta = Dispersion(trees=trees).log_scale(others.X)
    squares, count = others.y**2 * np.exp(-eta), others.weights
    if trees is None:
        squares, count = np.append(rows.y**2, squares), np.append(rows.weights, count)
    shape = student_dispersion(squares, df, count) if heavy_tails else gaussian_dispersion(squares, count)
    return dataclasses.replace(shape, trees=trees)


def _trees(rows: Data, others: Data, seed: int) -> Trees | None:
    """Boost log s with mean 0, starting from a constant Student-t; None if no tree helps."""
    start = Dispersion(student_dispersion(rows.y**2, TREE_DF, rows.weight).factor, TREE_DF)
    loss = lambda eta: -float(np.average(start.log_density(others.y**2, eta), weights=others.weight))
    of_rows = lambda eta: tuple(rows.weights * part for part in slopes(rows.y**2, eta, start))
    found = BOOSTING.fit(rows.X, of_rows, others.X, loss, seed, rows.weight, lambda: deadline.left() > 0)
    if found is None:
        return None
    return found.plus(-float(np.average(found.on_host(rows.X), weights=rows.weight)))
