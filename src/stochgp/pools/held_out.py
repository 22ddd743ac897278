"""Rows that no member of a pool sees before members are compared, and their predictions."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from stochgp import deadline
from stochgp.choosing import prefer
from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.deadline import TimeIsUpError
from stochgp.distributions import AbstractDistribution
from stochgp.numerics import clustered
from stochgp.pools.members import BY_BLOCKS
from stochgp.pools.weights import HeldOutPredictions, PerRow
from stochgp.results import RESULTS

Mask = Bool[np.ndarray, " N"]
# A kernel GP around a linear mean, and its minimum gain in nats a row: a line goes on without bounds. With a gain of 0.018 on held-out rows of CO2 it lost 0.6 on later ones.
LINE, MIN_GAIN_OF_LINE = "kernel_and_line", 0.05
SECONDS_IN_HASTE = 10.0  # to compare members after Ctrl-C
# The share of held-out rows, their largest and least number (or a quarter). With 200 in place of 800 CRPS was up to 3 % higher on tables of 1,600 to 3,500 rows.
SHARE, MOST, LEAST = 0.1, 2_000, 800
MAX_SHARE_OF_GROUPS = 0.6  # of the rows, in groups that are held out
MIN_SINGLES = 400  # beside blocks of time, or a quarter: 100 rows show the coverage of 95 % intervals to 2 %
# The share of the last rows, and of blocks before them, in tables with a time. With 5 % of each the pool did worse on the last fifth of five sets out of six.
LAST, BEFORE = 0.15, 0.05


LEARNED, SINGLE, BLOCK, UNSCORED = range(4)
Roles = Int[np.ndarray, " N"]
"""Of each row: members learn from it; it is held out by itself or with its group; held out with its block of time; held out so, but not scored."""


def held_out(rows: Data, generator: np.random.Generator, share: float = SHARE) -> Roles:
    """Hold out a tenth of the rows, or another share: at random, or whole groups (`clustered.divisible`) of at most 60 % of the rows."""
    N = len(rows)
    if rows.group is None:
        n = int(np.clip(share * N, min(LEAST, N // 4), MOST))
        return SINGLE * np.isin(np.arange(N), generator.permutation(N)[:n])
    number = clustered.divisible(rows.group)
    sizes = np.bincount(number)
    order = generator.permutation(len(sizes))
    enough = clustered.reaching(sizes[order], max(share * N, min(LEAST, N / 4)))
    some = order[: min(enough, len(sizes) // 2)]
    if sizes[some].sum() > MAX_SHARE_OF_GROUPS * N:  # the last group, or those before it
        some = some[-1:] if sizes[some[-1]] > N / 4 else some[:-1]
    return SINGLE * np.isin(number, some)


def folds(rows: Data, n_folds: int, generator: np.random.Generator) -> Int[np.ndarray, " N"] | None:
    """The fold of each row, of all classes `rows.y` alike, whole groups in one; None where no class, or too few groups, can be in all.

    Classes of fewer rows than folds are divided as if they were of the largest class.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to load

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


def held_out_in_time(rows: Data, singles: bool, generator: np.random.Generator) -> Roles:
    """Hold out, of groups that are blocks of time, in their order: the last with 15 % of the rows, and others with 5 %; with `singles` 5 % of the other rows besides.

    At most 2,000 rows of blocks are scored.
    """
    N, group = len(rows), np.asarray(rows.group)
    labels, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
    before = len(labels) - max(1, min(clustered.reaching(sizes[::-1], LAST * N), len(labels) // 3))
    order = generator.permutation(before)
    order = order[sizes[order] <= 2 * BEFORE * N]  # not what few large blocks are the most of
    earlier = order[: min(clustered.reaching(sizes[order], BEFORE * N), before // 2)]
    blocks = np.isin(number, np.concatenate([earlier, np.arange(before, len(labels))]))
    scored = np.isin(np.arange(N), generator.permutation(np.flatnonzero(blocks))[:MOST])
    n = int(min(np.clip(SHARE / 2 * N, MIN_SINGLES, MOST), (~blocks).sum() / 4)) if singles else 0
    single = np.isin(np.arange(N), generator.permutation(np.flatnonzero(~blocks))[:n])
    return np.select([single, scored, blocks], [SINGLE, BLOCK, UNSCORED], LEARNED)


def predict_held_out(
    members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None, context: FitContext
) -> HeldOutPredictions | None:
    """Predictions of held-out rows by the members (`_predict`). None without time."""
    for _ in range(2):
        with deadline.within(SECONDS_IN_HASTE if context.is_interrupted else None):
            try:
                with context.interruptible("the comparison"):
                    return _predict(members, rows, role, fold)
            except TimeIsUpError:
                context.end(RESULTS.time_limit, "there was no time to compare members")
                return None
    return None


def _predict(members: dict[str, Any], rows: Data, role: Roles, fold: Roles | None) -> HeldOutPredictions:
    """Each held-out row is predicted by members that learned from the others, or each fold from the other folds by members that learned from all (`Fitted.fold_out`)."""
    is_scored = np.isin(role, (SINGLE, BLOCK))
    held, far = (rows, None) if fold is not None else (rows.take(is_scored), role[is_scored] == BLOCK)
    mean, distributions = np.empty((len(held), len(members))), []
    for k, member in enumerate(members.values()):
        deadline.require()
        fitted = member._fitted
        distributions.append(fitted.distribution(held.X) if fold is None else fitted.fold_out(rows, fold))
        mean[:, k] = fitted.mean(held.X) if fold is None else distributions[k].mean
    density = np.stack([found.logpdf(held.y) for found in distributions], axis=1)
    if fold is None:
        seen = rows.take(role == LEARNED)
        constant = np.full(len(held), np.average(seen.y, weights=seen.weights))
    else:
        counts, sums = (np.bincount(fold, w) for w in (rows.weights, rows.weights * rows.y))
        constant = ((sums.sum() - sums) / (counts.sum() - counts))[fold]
    weight, cluster = held.weights.astype(np.float64), held_out_clusters(members, held)
    if far is None or far.all() or not far.any():
        far = None
    else:  # single rows and rows of blocks count alike
        totals = weight[~far].sum(), weight[far].sum()
        weight = weight / np.where(~far, *totals) * weight.sum() / 2
    return HeldOutPredictions(
        list(members), held, distributions, mean, density, weight, cluster, constant, far
    )


def without_worse_kernel(predictions: HeldOutPredictions) -> tuple[HeldOutPredictions, str]:
    """In tables with a time: without one of the kernel GPs with a constant and with a linear mean, the second unless held-out rows prefer it; and the reason."""
    plain, line = "kernel" + BY_BLOCKS, LINE + BY_BLOCKS
    if not {plain, line} <= set(predictions.names):
        return predictions, ""
    scores = predictions.scores
    found = prefer(
        scores[plain], {line: scores[line]}, predictions.cluster, predictions.weight, least=MIN_GAIN_OF_LINE
    )
    worse = line if found.name is None else plain
    kept = predictions.of([name for name in predictions.names if name != worse])
    return kept, f"; without {worse!r}: {found.why}"


def widen_for_later_times(
    members: dict[str, Any], predictions: HeldOutPredictions, context: FitContext
) -> HeldOutPredictions:
    """Scale the variances of members that are scored on blocks of time, if held-out blocks have a higher density then; report the factors.

    Errors of later rows keep one sign for a long time: without it 95 % intervals of CO2 hold .58 of the last fifth instead of .83.
    """
    far, factors = predictions.far, dict[str, float]()
    context.report["widths"] = factors
    assert far is not None
    distributions, density = list(predictions.distributions), predictions.log_density.copy()
    for k, name in enumerate(predictions.names):
        fitted = members[name]._fitted
        if not (name.endswith(BY_BLOCKS) and fitted.observation.takes_width):
            continue
        factor = best_width(distributions[k], predictions.y, far, predictions.weight)
        if factor > 1:
            members[name]._fitted = fitted.widened(factor)
            distributions[k], factors[name] = members[name]._fitted.distribution(predictions.rows.X), factor
            # Near rows are scored with the wider distributions; at far rows a member that was too narrow is not to gain.
            density[~far, k] = distributions[k].logpdf(predictions.y)[~far]
    return dataclasses.replace(predictions, distributions=distributions, log_density=density)


def log_density_of_wider(distribution: AbstractDistribution, y: PerRow, c: float) -> PerRow:
    """log p(m + (y − m)/√c) − ½ log c: the log density if all errors are √c times as large."""
    mean = distribution.mean
    return distribution.logpdf(mean + (y - mean) / np.sqrt(c)) - np.log(c) / 2


def best_width(
    distribution: AbstractDistribution,
    y: PerRow,
    i: Mask,
    weight: PerRow,
) -> float:
    """The factor c from 1 to 41 of variances with the highest mean log density of the rows `i`."""
    gain = lambda c: np.average(log_density_of_wider(distribution, y, c)[i], weights=weight[i])
    return max((1.1**k for k in range(40)), key=gain)


def record_scores(predictions: HeldOutPredictions, scores: dict[str, dict[str, float]]) -> None:
    """NLPD and RMSE of each member, in target units."""
    for k, name in enumerate(predictions.names):
        squares = (predictions.y - predictions.mean[:, k]) ** 2
        scores[name] |= {
            "nlpd": -float(np.average(predictions.log_density[:, k], weights=predictions.weight)),
            "rmse": float(np.average(squares, weights=predictions.weight) ** 0.5),
        }


def held_out_clusters(members: dict[str, Any], held: Data) -> Int[np.ndarray, " R"]:
    """The groups of held-out rows, or cells of near rows in the units of the first member."""
    inputs = next(iter(members.values()))._fitted.inputs
    return clustered.clusters(np.asarray(inputs.transform(held.X, np.float64)), held.group)
