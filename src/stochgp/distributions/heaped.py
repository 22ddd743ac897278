"""Targets that were rounded, or that end at a limit: some values are recorded far more often than those beside them."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float64, Int

from stochgp.distributions.base import OF_PIECE, AbstractDistribution, PerRow, Points
from stochgp.distributions.point_mass import recorded_width
from stochgp.distributions.roots import solve_quantile

# A value is a heap from so many rows on, and so many standard errors above the number that the rows around it, within NEAR standard deviations, let expect there.
# Of prices of computers (5,008 rows) NLPD of new rows was -0.88 with 3 rows, -1.02 with 5 and -1.01 with 10; NEAR from 0.03 to 0.3 is the same to 0.02.
FEWEST, ERRORS, NEAR = 5, 3.0, 0.1
REACH = 0.1  # standard deviations that a value is rounded by, at most: from 0.03 on of no consequence, but where all values stand on a coarse grid
MOST = 256  # heaps, those of the most rows above what is expected
SUREST = 1 - 1e-9  # share of a cell that is w
SAME = 1e-6  # standard deviations: targets as near as that are one value, which rounding or another type of numbers changed

Heaps = Float64[np.ndarray, " J"]


class Heaping(eqx.Module):
    """What would be recorded in [low_j, high_j), the cell of the value v_j, is recorded as v_j with probability q_j (heaping: Heitjan and Rubin 1990).

    With F the distribution function without it, and H_j = F(high_j) − F(low_j),

        p(y) = (1 − q_j) f(y) + q_j H_j [|y − v_j| ≤ w/2]/w   in the cell of v_j,   p(y) = f(y) elsewhere:

    v_j is known to the width w, as all targets are, so that the density compares with that of continuous distributions. Probabilities of cells stay what
    they were, and so does the mean but for the width of a cell, or for what lies beyond a limit. Draws are v_j itself.

    Parameters
    ----------
    value, low, high, share : array [J]
        v_j, increasing, low_j, high_j and q_j; cells do not overlap, and hold v_j ± w/2. `low_0` may be −∞ and `high_J` ∞.
    width : float
        w, positive.
    curve
        A correction of F that comes first (`PITRecalibration`), or None.
    """

    value: Heaps
    low: Heaps
    high: Heaps
    share: Heaps
    width: float
    curve: Any = None

    @classmethod
    def of(
        cls, y: Float64[np.ndarray, " N"], weight: Float64[np.ndarray, " N"], above: float = -np.inf
    ) -> "Heaping | None":
        """By these targets, of which one of weight ρ counts as ρ equal ones; None where no value stands out. Of predictions that are `above` a number all v_j ± w/2 are.

        With n rows in the cell, n_j of them of the value, and a share e of the cell's length that is w, q_j = (n_j/(n + 1) − e)/(1 − e): what would be there by
        chance does not count, nor is a value sure that few rows say (Laplace).
        """
        scale = float(np.sqrt(np.cov(y, aweights=weight, ddof=0)))
        values, count = _counted(y, weight, SAME * scale)
        if len(values) < 2:
            return None
        width = recorded_width(values, scale)
        chosen = _standing_out(values, count, width, NEAR * scale)
        if not len(chosen):
            return None
        v = values[chosen]
        middle = (v[1:] + v[:-1]) / 2
        reach = (np.floor(REACH * scale / width) + 0.5) * width  # which holds whole steps of a grid
        low = np.maximum(np.concatenate([[-np.inf], middle]), v - reach)
        high = np.minimum(np.concatenate([middle, [np.inf]]), v + reach)
        if chosen[0] == 0:  # a limit, which larger errors are cut at
            low[0] = -np.inf
        if chosen[-1] == len(values) - 1:
            high[-1] = np.inf
        n = _within(values, count, low, high)
        length = np.minimum(high, values[-1] + width / 2) - np.maximum(low, values[0] - width / 2)
        by_chance = np.minimum(width / length, SUREST)
        share = (count[chosen] / (n + 1) - by_chance) / (1 - by_chance)
        kept = (share > 0) & (length > 1.5 * width)  # else it holds no other value
        kept &= v - width / 2 > above
        return cls(v[kept], low[kept], high[kept], share[kept], width) if kept.any() else None

    def __call__(
        self, found: AbstractDistribution, strength: Float64[np.ndarray, " N"] | None = None
    ) -> AbstractDistribution:
        """Of each row; `strength` is that of the curve."""
        corrected = found if self.curve is None else self.curve(found, strength)
        return Heaped(corrected, self, np.zeros(found.n_rows))


class Heaped(AbstractDistribution):
    """What is recorded of a draw of the base (`Heaping`).

    Parameters
    ----------
    base : distribution
        A continuous one, of N rows.
    heaping : Heaping
        The values, their cells and shares, in the units of y.
    origin : array [N]
        y at which these values are 0.
    """

    base: AbstractDistribution
    heaping: Heaping
    origin: PerRow

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def tail_index(self) -> float:
        return self.base.tail_index

    @property
    def mean(self) -> PerRow:
        """That of the base and −∫ (G − F) dt over the cells, G this distribution function; what stands for it where the base has none."""
        return self.base.mean if self.tail_index <= 1 else self.base.mean + self._moved()[0]

    @property
    def std(self) -> PerRow:
        if self.tail_index <= 2:
            return np.full(self.n_rows, np.inf)
        first, second = self._moved()
        return np.sqrt(np.maximum(self.base.std**2 + second - first**2, 0.0))

    def __getitem__(self, rows: Any) -> "Heaped":
        return Heaped(self.base[rows], self.heaping, self.origin[rows])

    def affine(self, scale: float, shift: float | PerRow) -> "Heaped":
        of = self.heaping
        scaled = {name: scale * getattr(of, name) for name in ("value", "low", "high", "width")}
        heaping = dataclasses.replace(of, **scaled, curve=None)
        return Heaped(self.base.affine(scale, shift), heaping, scale * self.origin + shift)

    @property
    def _held(self) -> int:
        return self.base._held

    @property
    def _pieces(self) -> int:
        return self.base._pieces + 4 * len(self.heaping.value)

    def _bulk(self) -> "Heaped":
        return Heaped(self.base._bulk(), self.heaping, self.origin)

    def _breaks(self, p: Points) -> Float64[np.ndarray, "N B"]:
        return self._with(self.base._breaks(p), self._edges(ramps=True))

    def _crps(self, y: Points) -> Points:
        return self._crps_in_pieces(y)

    def _logpdf(self, y: Points) -> Points:
        return self._moved_density(self._cell(y), self.base._logpdf(y))

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = self.base._tails(y)
        return self._moved_tails(self._cell(y), below, above)

    def _quantile(self, p: Points) -> Points:
        """That of the base, or on its side of v: before v − w/2 G is at most F, and beyond v + w/2 at least F."""
        found = self.base._quantile(p)
        cell, w = self._cell(found), self.heaping.width
        if not cell.inside.any():
            return found
        v = self.heaping.value[cell.number] + self.origin[:, None]
        there = lambda y: cell.at(y - self.origin[:, None])
        tails = lambda y: self._moved_tails(there(y), *self.base._tails(y))
        density = lambda y: self._moved_density(there(y), self.base._logpdf(y))
        low = np.where(cell.inside, np.minimum(found, v - w / 2), found)
        high = np.where(cell.inside, np.maximum(found, v + w / 2), found)
        return np.where(cell.inside, solve_quantile(tails, density, p, low, high, found), found)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        drawn = self.base._draw(generator, n)
        of, (number, inside) = self.heaping, self._numbers(drawn - self.origin[:, None])
        rounded = inside & (generator.uniform(size=drawn.shape) < of.share[number])
        return np.where(rounded, of.value[number] + self.origin[:, None], drawn)

    def _cell(self, y: Points) -> "_Cells":
        """The cells of these points, and F at their ends."""
        of, at = self.heaping, y - self.origin[:, None]
        number, inside = self._numbers(at)
        if y.shape[1] < len(of.value):
            ends = [part for end in (of.low, of.high) for part in self._base_at(end[number])]
        else:  # once for each cell
            everywhere = [part for end in (of.low, of.high) for part in self._base_at(end[None])]
            ends = [np.take_along_axis(part, number, axis=1) for part in everywhere]
        return _Cells(at, number, inside, *ends)

    def _numbers(self, y: Points) -> tuple[Int[np.ndarray, "N Q"], Bool[np.ndarray, "N Q"]]:
        """(The first cell that ends after these points from the origin on, or the last one; whether they are in it)."""
        of = self.heaping
        number = np.minimum(np.searchsorted(of.high, y, "right"), len(of.high) - 1)
        return number, (of.low[number] <= y) & (y < of.high[number])

    def _base_at(self, ends: Float64[np.ndarray, "_ Q"]) -> tuple[Points, Points]:
        """(F, 1 − F) at ends of cells."""
        below, above = self.base._tails(np.where(np.isfinite(ends), ends, 0.0) + self.origin[:, None])
        return (
            np.where(np.isposinf(ends), 1.0, np.where(np.isneginf(ends), 0.0, below)),
            np.where(np.isposinf(ends), 0.0, np.where(np.isneginf(ends), 1.0, above)),
        )

    def _moved_density(self, at: "_Cells", log_density: Points) -> Points:
        """log g at points of these cells, from log f there."""
        q, near = self.heaping.share[at.number], np.abs(at.y - self.heaping.value[at.number])
        is_heap = at.inside & (near <= self.heaping.width / 2 * (1 + 1e-9))
        found = log_density + np.where(at.inside, np.log1p(-q), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            heap = np.where(is_heap, np.log(q * at.mass / self.heaping.width), -np.inf)
        return np.logaddexp(found, heap)

    def _moved_tails(self, at: "_Cells", below: Points, above: Points) -> tuple[Points, Points]:
        """(G, 1 − G) at points of these cells, from F and 1 − F there."""
        q, v = self.heaping.share[at.number], self.heaping.value[at.number]
        passed = np.clip((at.y - v) / self.heaping.width + 0.5, 0.0, 1.0)
        under = at.low + (1 - q) * (below - at.low) + q * at.mass * passed
        over = at.over_high + (1 - q) * (above - at.over_high) + q * at.mass * (1 - passed)
        return np.where(at.inside, under, below), np.where(at.inside, over, above)

    def _edges(self, *, ramps: bool) -> Float64[np.ndarray, " E"]:
        of = self.heaping
        sides = [of.value - of.width / 2, of.value + of.width / 2] if ramps else []
        edges = np.concatenate([of.low, of.high, *sides])
        return edges[np.isfinite(edges)]

    def _with(self, breaks: Float64[np.ndarray, "N B"], edges: Heaps) -> Float64[np.ndarray, "N C"]:
        """These points in the units of y too, in order."""
        return np.sort(np.concatenate([breaks, edges + self.origin[:, None]], axis=1), axis=1)

    def _moved(self) -> tuple[PerRow, PerRow]:
        """(−∫ (G − F) dt, −∫ 2 (t − m) (G − F) dt), m the base's mean: what mean and mean square of t − m gain."""
        evaluate = lambda part, m: part._moved_from(m)
        both = self._by_parts(evaluate, self.base.mean[:, None], OF_PIECE * self._pieces)
        return both[:, 0], both[:, 1]

    def _moved_from(self, m: Points) -> Float64[np.ndarray, "N 2"]:
        """In the cell [a, b) of v it is q (∫ F dt − F(a) (v − a) − F(b) (b − v)), or with S = 1 − F q (S(a) (v − a) + S(b) (b − v) − ∫ S dt).

        Likewise with the weight 2 (t − m). The first is that of cells without a lower end, the second of those without an upper one.
        """
        of = self.heaping
        breaks = self._with(self.base._own_breaks(), self._edges(ramps=False))
        number, inside = self._numbers((breaks[:, 1:] + breaks[:, :-1]) / 2 - self.origin[:, None])
        weighted = lambda t, below, above: [
            part * weight for weight in (1.0, 2 * (t - m[..., None])) for part in (below, above)
        ]
        parts = self.base._integrals(breaks[:, :-1], breaks[:, 1:], weighted)
        a, b = (
            np.clip(ends + self.origin[:, None], breaks[:, :1], breaks[:, -1:]) - m
            for ends in (of.low[None], of.high[None])
        )
        v = of.value + self.origin[:, None] - m
        (Fa, Sa), (Fb, Sb) = self._base_at(of.low[None]), self._base_at(of.high[None])
        is_upper = np.where(np.isfinite(of.high), np.isfinite(of.low) & (Fa >= 0.5), True)
        q = np.where(inside, of.share[number], 0.0)
        upper = np.take_along_axis(is_upper, number, axis=1)
        square, sides = v**2 + of.width**2 / 12, []
        for below, above, before, after in (
            (*parts[:2], v - a, b - v),
            (*parts[2:], square - a**2, b**2 - square),
        ):
            ends = np.where(is_upper, Sa * before + Sb * after, -Fa * before - Fb * after)
            sides.append(np.sum(q * np.where(upper, -above, below), axis=1) + ends @ of.share)
        return np.stack(sides, axis=1)


class _Cells(eqx.Module):
    """Points y [N, Q] from the origin on, the cell that each is in or beside, whether it is inside, and F and 1 − F at both ends."""

    y: Points
    number: Int[np.ndarray, "N Q"]
    inside: Bool[np.ndarray, "N Q"]
    low: Points
    over_low: Points
    high: Points
    over_high: Points

    def at(self, y: Points) -> "_Cells":
        """Other points, by the same cells."""
        return dataclasses.replace(self, y=y)

    @property
    def mass(self) -> Points:
        """Of the cell, accurate in both tails."""
        found = np.where(self.low < 0.5, self.high - self.low, self.over_low - self.over_high)
        return np.maximum(found, 0.0)


def _counted(
    y: Float64[np.ndarray, " N"], weight: Float64[np.ndarray, " N"], same: float
) -> tuple[Heaps, Heaps]:
    """(The values, increasing, how many rows have each): such as are nearer than `same` to one another are one, the first."""
    values, number = np.unique(y, return_inverse=True)
    is_first = np.diff(values, prepend=-np.inf) > same
    return values[is_first], np.bincount((np.cumsum(is_first) - 1)[number.ravel()], weight)


def _standing_out(values: Heaps, count: Heaps, width: float, near: float) -> Int[np.ndarray, " J"]:
    """Which values have clearly more rows than those within `near` let expect; of two closer than the width the more frequent one."""
    reach = max(near, 1.5 * width)
    around = _within(values, count, values - reach, np.nextafter(values + reach, np.inf)) - count
    expected = around * width / (2 * reach - width)
    excess = np.where(count >= FEWEST, count - expected - ERRORS * np.sqrt(expected), 0.0)
    chosen: list[int] = []
    for k in np.argsort(-excess, kind="stable")[:MOST]:
        if excess[k] <= 0:
            break
        if all(abs(values[k] - values[j]) >= width * (1 - 1e-9) for j in chosen):
            chosen.append(int(k))
    return np.sort(np.array(chosen, np.int64))


def _within(values: Heaps, count: Heaps, low: Heaps, high: Heaps) -> Heaps:
    """Rows of values from `low` to below `high`."""
    total = np.concatenate([[0.0], np.cumsum(count)])
    return total[np.searchsorted(values, high)] - total[np.searchsorted(values, low)]
