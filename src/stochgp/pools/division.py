"""Which rows of a pool no member sees before members are compared."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from stochgp.data.rows import Rows
from stochgp.numerics import clustered

# Of the rows that are held out, at most, and at least but for a quarter, without groups. With 200 in place of 800 CRPS was up to 3 % higher on tables of 1,600 to 3,500 rows.
SHARE, MOST, LEAST = 0.1, 2_000, 800
MOST_OF_GROUPS = 0.6  # of the rows, in groups that are held out
SINGLES = 400  # beside blocks of time, at least, or a quarter: by 100 the coverage of 95 % intervals is known to 2 %
# Of tables with a time, the last rows and blocks before them: new rows come after all of these. By 5 % of each the pool did worse on the last fifth of CO2 (1.85
# for -0.27 nats), Seattle (0.50, 0.46), metro (-0.26, -0.42), Tetouan (1.11, 1.03) and flights (0.44, 0.42), better on San Francisco (1.75, 2.08).
LAST, SPREAD = 0.15, 0.05


class HeldOut(NamedTuple):
    """Which rows no member sees before they are compared."""

    single: Bool[np.ndarray, " N"]  # one by one
    blocks: Bool[np.ndarray, " N"]  # with all of their group or block of time
    unscored: Bool[np.ndarray, " N"] | bool = False  # rows of these blocks beyond the 2,000 that are scored
    in_time: bool = False  # whether blocks are of time
    fold: Int[np.ndarray, " N"] | None = (
        None  # of each row, where rows of the other folds are held out later; these are of fold 0
    )

    @property
    def scored(self) -> Bool[np.ndarray, " N"]:
        return self.single | self.blocks

    @property
    def all(self) -> Bool[np.ndarray, " N"]:
        return self.scored | self.unscored

    @property
    def is_by_folds(self) -> bool:
        """Whether members learn from all rows, and each fold is then predicted from the others."""
        return self.fold is not None and not self.all.any()

    def without(self, rows: Bool[np.ndarray, " N"]) -> "HeldOut":
        """Those that are not among these."""
        kept = ~rows
        return self._replace(
            single=self.single & kept, blocks=self.blocks & kept, unscored=self.unscored & kept
        )

    @classmethod
    def of_fold(cls, fold: Int[np.ndarray, " N"], k: int, grouped: bool) -> "HeldOut":
        """The rows of the fold k, of whole groups or single ones."""
        part, nothing = fold == k, np.zeros(len(fold), bool)
        return cls(nothing if grouped else part, part if grouped else nothing, fold=fold)


def held_out(rows: Rows, generator: np.random.Generator, share: float = SHARE) -> HeldOut:
    """A tenth of the rows, or another share: at random, or whole groups (`clustered.divisible`) of at most 60 % of the rows."""
    N = len(rows)
    nothing = np.zeros(N, bool)
    if rows.group is None:
        n = int(np.clip(share * N, min(LEAST, N // 4), MOST))
        return HeldOut(np.isin(np.arange(N), generator.permutation(N)[:n]), nothing)
    number = clustered.divisible(rows.group)
    sizes = np.bincount(number)
    order = generator.permutation(len(sizes))
    enough = clustered.reaching(sizes[order], max(share * N, min(LEAST, N / 4)))
    some = order[: min(enough, len(sizes) // 2)]
    if sizes[some].sum() > MOST_OF_GROUPS * N:  # the last group, or those before it
        some = some[-1:] if sizes[some[-1]] > N / 4 else some[:-1]
    return HeldOut(nothing, np.isin(number, some))


def folds(rows: Rows, n_folds: int, generator: np.random.Generator) -> Int[np.ndarray, " N"] | None:
    """The fold of each row, of all classes `rows.y` alike, whole groups in one; None where no class, or too few groups, can be in all.

    Classes of fewer rows than folds are divided as if they were of the largest class.
    """
    classes, number, sizes = np.unique(rows.y, return_inverse=True, return_counts=True)
    group = None if rows.group is None else clustered.divisible(rows.group)
    n_folds = n_folds if group is None else min(n_folds, len(np.unique(group)))
    if len(classes) < 2 or sizes.max() < n_folds or n_folds < 2:
        return None
    kind = StratifiedKFold if group is None else StratifiedGroupKFold
    parts = kind(n_folds, shuffle=True, random_state=int(generator.integers(2**31)))
    found = np.zeros(len(rows), np.int64)
    alike = np.where(sizes[number] < n_folds, classes[sizes.argmax()], rows.y)
    for k, (_, part) in enumerate(parts.split(rows.X, alike, group)):
        found[part] = k
    return found


def held_out_in_time(rows: Rows, singles: bool, generator: np.random.Generator) -> HeldOut:
    """Of groups that are blocks of time, in their order: the last with 15 % of the rows, and others with 5 %; with `singles` 5 % of the other rows besides.

    At most 2,000 rows of blocks are scored.
    """
    N, group = len(rows), np.asarray(rows.group)
    labels, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    before = len(labels) - max(1, min(clustered.reaching(sizes[::-1], LAST * N), len(labels) // 3))
    order = generator.permutation(before)
    order = order[sizes[order] <= 2 * SPREAD * N]  # not what few large blocks are the most of
    spread = order[: min(clustered.reaching(sizes[order], SPREAD * N), before // 2)]
    blocks = np.isin(number, np.concatenate([spread, np.arange(before, len(labels))]))
    scored = np.isin(np.arange(N), generator.permutation(np.flatnonzero(blocks))[:MOST])
    n = int(min(np.clip(SHARE / 2 * N, SINGLES, MOST), (~blocks).sum() / 4)) if singles else 0
    single = np.isin(np.arange(N), generator.permutation(np.flatnonzero(~blocks))[:n])
    return HeldOut(single, scored, blocks & ~scored, True)
