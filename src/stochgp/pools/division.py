"""Divisions of the rows of pools: held-out rows, blocks of time, and folds."""

import numpy as np
from jaxtyping import Int

from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.numerics import clustered

MIN_ROWS_FOLDS, MIN_ROWS_HELD_OUT, N_FOLDS = 100, 1_000, 5
MAX_FEW_ROWS = 5_000  # with at most this many rows, classifiers hold out the first of five folds
# Held-out rows: share, maximum, and minimum (or a quarter of the rows, if that is fewer).
SHARE, MOST, LEAST = 0.1, 2_000, 800
MAX_SHARE_OF_GROUPS = 0.6  # maximum share of rows in held-out groups
MIN_SINGLES = 400  # minimum number of single rows held out in addition to blocks of time
# If rows have times: held-out shares of the last rows and of earlier rows, in blocks.
LAST, BEFORE = 0.15, 0.05

LEARNED, SINGLE, BLOCK, UNSCORED = range(4)
Roles = Int[np.ndarray, " N"]
"""Roles of rows: learned from, held out singly or by group, held out by block of time, or not used."""


def held_out(rows: Data, generator: np.random.Generator, share: float = SHARE) -> Roles:
    """Hold out a share of the rows. Held-out groups are whole, with at most 60 % of the rows."""
    N = len(rows)
    if rows.group is None:
        n = int(np.clip(share * N, min(LEAST, N // 4), MOST))
        return SINGLE * np.isin(np.arange(N), generator.permutation(N)[:n])
    number = clustered.divisible(rows.group)
    sizes = np.bincount(number)
    order = generator.permutation(len(sizes))
    enough = clustered.reaching(sizes[order], max(share * N, min(LEAST, N / 4)))
    some = order[: min(enough, len(sizes) // 2)]
    if sizes[some].sum() > MAX_SHARE_OF_GROUPS * N:  # hold out the last group alone, or the groups before it
        some = some[-1:] if sizes[some[-1]] > N / 4 else some[:-1]
    return SINGLE * np.isin(number, some)


def held_out_in_time(rows: Data, singles: bool, generator: np.random.Generator) -> Roles:
    """Hold out the last blocks of time (15 % of the rows) and earlier blocks (5 %).

    Groups are blocks, in order of time. With `singles`, also hold out 5 % of the rows, from other blocks.
    """
    N, group = len(rows), np.asarray(rows.group)
    labels, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    before = len(labels) - max(1, min(clustered.reaching(sizes[::-1], LAST * N), len(labels) // 3))
    order = generator.permutation(before)
    order = order[sizes[order] <= 2 * BEFORE * N]  # excludes very large blocks
    earlier = order[: min(clustered.reaching(sizes[order], BEFORE * N), before // 2)]
    blocks = np.isin(number, np.concatenate([earlier, np.arange(before, len(labels))]))
    scored = np.isin(np.arange(N), generator.permutation(np.flatnonzero(blocks))[:MOST])
    n = int(min(np.clip(SHARE / 2 * N, MIN_SINGLES, MOST), (~blocks).sum() / 4)) if singles else 0
    single = np.isin(np.arange(N), generator.permutation(np.flatnonzero(~blocks))[:n])
    return np.select([single, scored, blocks], [SINGLE, BLOCK, UNSCORED], LEARNED)


def folds(rows: Data, n_folds: int, generator: np.random.Generator) -> Int[np.ndarray, " N"] | None:
    """Return folds with similar frequencies of the classes `rows.y`, in whole groups.

    Return None for one class, or too few rows or groups. Rare classes are divided with the largest class.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to import

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


def divide_classes(rows: Data, in_time: bool, context: FitContext) -> tuple[Roles, Roles | None]:
    """Return roles and folds. With at most 5,000 rows, hold out the first of five folds."""
    generator, fold, role = np.random.default_rng(context.seed("division")), None, np.zeros(len(rows), int)
    if in_time or len(rows) > MAX_FEW_ROWS:
        if len(rows) >= MIN_ROWS_HELD_OUT:
            role = held_out_in_time(rows, False, generator) if in_time else held_out(rows, generator)
    elif len(rows) >= MIN_ROWS_FOLDS and (fold := folds(rows, N_FOLDS, generator)) is not None:
        role = SINGLE * (fold == 0)
    role = of_known_classes(rows, role)
    return role if (role < UNSCORED)[role > 0].any() else np.zeros_like(role), fold


def of_known_classes(rows: Data, role: Roles) -> Roles:
    """Return roles in which no class is entirely held out; such classes are learned instead."""
    number = rows.y.astype(np.int64)
    return np.where(np.bincount(number, role == LEARNED)[number] == 0, LEARNED, role)
