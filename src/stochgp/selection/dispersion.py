"""Which distribution the errors of left-out rows have: constant or of a scale that depends on the input, Gaussian or Student-t."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.choosing import FEWEST_GROUPS, Gain, Preference, prefer, too_few
from stochgp.numerics.clustered import clusters, folds, median
from stochgp.numerics.trees import Boosting, Trees
from stochgp.objectives.dispersion import gaussian_dispersion, slopes, student_dispersion
from stochgp.observations import Dispersion

GAUSSIAN, STUDENT = "gaussian", "student-t"
OF_INPUT = ", scale of the input"
NAMES = (GAUSSIAN, STUDENT, GAUSSIAN + OF_INPUT, STUDENT + OF_INPUT)  # the simplest first
FEWEST_OF_INPUT = 500  # rows, to choose a scale of the input
PARTS = 4
MANY = 8000  # rows from which one part is enough to score
TREE_DF = 4.0  # of the distribution that trees are fitted to: errors far off move them little
BOOSTING = Boosting()
ROUNDED = 1e-4  # median of squared errors, in variances, below which these are bounds by rounding, unless a row is off by more
TIED = 0.1  # share of errors that are exactly 0


class LeftOut(NamedTuple):
    """Rows predicted without themselves, and those of their groups. A row of weight ρ counts as ρ equal ones."""

    X: Float[np.ndarray, "R D"]
    z: Float[np.ndarray, " R"]  # (y − m)/√V
    group: Int[np.ndarray, " R"] | None = None
    weight: Float[np.ndarray, " R"] | None = None  # ρ; None where all are 1

    def some(self, rows: Int[np.ndarray, " P"]) -> "LeftOut":
        group, weight = (None if part is None else part[rows] for part in (self.group, self.weight))
        return LeftOut(self.X[rows], self.z[rows], group, weight)

    @property
    def squares(self) -> Float[np.ndarray, " R"]:
        return np.square(self.z)

    @property
    def count(self) -> Float[np.ndarray, " R"]:
        """ρ."""
        return np.ones(len(self.z)) if self.weight is None else self.weight

    def cells(self) -> Int[np.ndarray, " R"]:
        """Numbers of the parts whose sums are taken as independent: 64 cells of near rows, or the groups."""
        return clusters(self.X, self.group)


def fitted(
    name: str,
    rows: LeftOut,
    others: LeftOut,
    seed: int,
    boosting: Boosting = BOOSTING,
    df: float | None = None,
) -> Dispersion:
    """The dispersion of that name: trees from `rows`, as many as serve the others; shape by the others, by all rows without trees.

    `df` are the degrees of freedom of "student-t"; None = learned.
    """
    if OF_INPUT not in name:
        squares, count = (
            np.concatenate(two) for two in zip(*((r.squares, r.count) for r in (rows, others)), strict=True)
        )
        return _constant(name, squares, count, df)
    return _on_trees(name, _trees(rows, others, seed, boosting), others)


def choose(
    rows: LeftOut, seed: int, boosting: Boosting = BOOSTING, *, heavy_tails: bool = True
) -> Preference:
    """The predictive distribution that held-out rows prefer: from the simplest to the richest, each must clearly beat the best one before it.

    It does where its mean log density, on rows that it was not fitted to, is higher by more than 2 standard errors and 0.01 nats. Differences
    are paired row by row, and weigh ρ. Their errors are those of sums over 64 cells of near rows, or over the groups. With fewer than 100 rows
    or 10 groups the name is None: they say nothing. With fewer than 500 rows no scale depends on the input. Without `heavy_tails` no Student-t is compared.
    """
    R = len(rows.squares)
    if few := too_few(R, rows.group):
        return Preference(None, {}, few)
    if np.average(rows.squares == 0, weights=rows.weight) > TIED:
        return Preference(
            None, {}, "targets are tied: more than a tenth of the left-out rows are predicted exactly"
        )
    if median(rows.squares, rows.weight) < ROUNDED and rows.squares.max() <= 1:
        return Preference(
            None,
            {},
            "errors are a hundredth of their standard deviations, none is above its own: these are of rounding",
        )
    names = NAMES if R >= FEWEST_OF_INPUT else NAMES[:2]
    names = names if heavy_tails else tuple(name for name in names if not name.startswith(STUDENT))
    scored, scores = _scores(names, rows, seed, boosting)
    tested = rows.some(scored)
    cell, chosen, said = tested.cells(), GAUSSIAN, []
    gains: dict[str, Gain] = {}
    for name in names[1:]:
        found = prefer(scores[chosen], {name: scores[name]}, cell, tested.weight)
        gains |= found.gains
        said.append(f"{found.why} over {chosen!r}")
        chosen = found.name or chosen
    return Preference(chosen, gains, "; ".join(said))


def split(rows: LeftOut, seed: int) -> Int[np.ndarray, " R"]:
    """A part 0 … 3 for each row, at random; groups stay whole."""
    return folds(len(rows.squares), rows.group, PARTS, seed)


def _scores(
    names: tuple[str, ...], rows: LeftOut, seed: int, boosting: Boosting
) -> tuple[Int[np.ndarray, " S"], dict[str, Float[np.ndarray, " S"]]]:
    """(Rows that are scored, their log densities under each dispersion): two parts fit, one decides how many trees and the shape, one is scored.

    Every part is scored in turn where rows are few, and as many as have 10 groups where groups are.
    """
    part = split(rows, seed)
    n_scored = PARTS if len(part) < MANY else _parts_scored(rows.group)
    scored, found = [], {name: [] for name in names}
    for k in range(n_scored):
        at, stop = np.flatnonzero(part == k), np.flatnonzero(part == (k + 1) % PARTS)
        fit = np.flatnonzero((part != k) & (part != (k + 1) % PARTS))
        first, others, tested = (rows.some(where) for where in (fit, stop, at))
        trees = _trees(first, others, seed, boosting) if GAUSSIAN + OF_INPUT in names else None
        scored.append(at)
        for name in names:
            dispersion = (
                _on_trees(name, trees, others) if OF_INPUT in name else fitted(name, first, others, seed)
            )
            found[name].append(dispersion.log_density(tested.squares, dispersion.log_scale(tested.X)))
    return np.concatenate(scored), {name: np.concatenate(values) for name, values in found.items()}


def _parts_scored(group: Int[np.ndarray, " R"] | None) -> int:
    """Of many rows: one part, or as many as have enough groups to tell."""
    return 1 if group is None else min(PARTS, -(-PARTS * FEWEST_GROUPS // len(np.unique(group))))


def _trees(rows: LeftOut, others: LeftOut, seed: int, boosting: Boosting) -> Trees | None:
    """By the Student-t distribution of TREE_DF degrees of freedom, from its best constant scale; log s has the mean 0 over the rows."""
    start = Dispersion(student_dispersion(rows.squares, weight=rows.weight).factor, TREE_DF)
    loss = lambda eta: -float(np.average(start.log_density(others.squares, eta), weights=others.weight))

    def of_rows(eta: Float[np.ndarray, " R"]) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
        g, h = slopes(rows.squares, eta, start)
        return rows.count * g, rows.count * h

    found = boosting.fit(rows.X, of_rows, others.X, loss, seed, rows.weight)
    if found is None:
        return None
    return found.plus(-float(np.average(found.on_host(rows.X), weights=rows.weight)))


def _on_trees(name: str, trees: Trees | None, others: LeftOut) -> Dispersion:
    eta = Dispersion(trees=trees).log_scale(others.X)
    found = _constant(name, others.squares * np.exp(-eta), others.weight)
    return dataclasses.replace(found, trees=trees)


def _constant(
    name: str,
    squares: Float[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None,
    df: float | None = None,
) -> Dispersion:
    if name.startswith(STUDENT):
        return student_dispersion(squares, df, weight)
    return gaussian_dispersion(squares, weight)
