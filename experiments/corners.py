"""Do 95 % intervals and standard deviations hold where rows have weights or groups, are counts, or have noise that is neither constant nor Gaussian?

Rows uniform on a square, f a Gaussian process of lengthscale ½, each simulation another f. New rows are drawn as the training rows were; those of
groups are of groups that nobody has seen. Estimators are at their defaults but for what the data ask for. Accepted: 92 to 98 % of new observations lie
inside of 95 % intervals, and the median of std(y)/its truth is between .9 and 1.1. Of counts an observation is inside where its probability, uniform
between F(y − 1) and F(y), lies between .025 and .975: intervals of whole numbers hold more than they say.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.store import Cell, Record, select

SIZES = (800, 4000)
NEW_ROWS, GROUP_ROWS = 1000, 8
SIMULATIONS, BLOCKS = 4, 50  # of a cell, cells of a kind
LENGTHSCALE, NOISE, OFFSET, TAILS = 0.5, 0.3, 0.3, 4.0  # noise and offset of groups are standard deviations
COUNTS = (0.05, 1.0, 50.0)
FAMILIES = ("kernel", "feature", "sparse")
COVERED, RATIO = (0.92, 0.98), (0.9, 1.1)
ONE_CORE = True


class Drawn(NamedTuple):
    """Training rows, new rows, the standard deviation of an observation at each of these given f."""

    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray
    std: np.ndarray
    given: dict[str, Any]  # to `fit`


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [
        {"case": case, "family": family, "rows": rows, "block": block, "simulations": 1 if quick else SIMULATIONS}
        for block in range(1 if quick else BLOCKS if slow else 2)
        for rows in SIZES
        for family in FAMILIES
        for case in CASES
    ]  # fmt: skip


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    """In seconds, but for what puts whole blocks one after the other."""
    seconds = {"kernel": 4.0, "feature": 10.0, "sparse": 8.0}[cell["family"]]
    return cell["simulations"] * (seconds + cell["rows"] / 400) + 1e4 * (BLOCKS - cell["block"])


def run(cell: Cell) -> dict:
    found = [_simulated(cell, SIMULATIONS * cell["block"] + i) for i in range(cell["simulations"])]
    return {name: [one[name] for one in found] for name in ("covered", "ratio", "warned")}


def _simulated(cell: Cell, seed: int) -> dict:
    drawn = CASES[cell["case"]](np.random.default_rng((cell["rows"], seed)), cell["rows"])
    model = _estimator(cell["family"], cell["case"], seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(drawn.X, drawn.y, **drawn.given)
    found = model.predict_distribution(drawn.X_new)
    of_new = np.random.default_rng(seed).uniform(size=len(drawn.y_new))
    below = lambda y: np.asarray(found.cdf(y))
    u = below(drawn.y_new)
    if cell["case"].startswith("counts"):
        u = of_new * u + (1 - of_new) * np.where(drawn.y_new > 0, below(drawn.y_new - 1), 0.0)
    return {
        "covered": float(np.mean((u > 0.025) & (u < 0.975))),
        "ratio": float(np.median(np.asarray(found.std) / drawn.std)),
        "warned": [str(one.message).splitlines()[0][:100] for one in caught],
    }


def _estimator(family: str, case: str, seed: int) -> Any:
    from stochgp import FeatureGPRegressor, KernelGPRegressor, SparseGPRegressor

    kind = {"kernel": KernelGPRegressor, "feature": FeatureGPRegressor, "sparse": SparseGPRegressor}[family]
    more: dict[str, Any] = {"target": "count"} if case.startswith("counts") else {}
    if family == "sparse":
        likelihood = {"counts": "poisson", "student": "student-t"}.get(case.split(maxsplit=1)[0], "gaussian")
        more = {"likelihood": likelihood, "n_inducing": 128}
    return kind(random_state=seed, **more)


def _function(generator: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """Of variance 1, by 200 random Fourier features."""
    W, b = generator.normal(size=(2, 200)) / LENGTHSCALE, generator.uniform(0, 2 * np.pi, 200)
    a = generator.normal(size=200) * (2 / 200) ** 0.5
    return lambda X: np.cos(X @ W + b) @ a


def _rows(generator: np.random.Generator, n: int) -> np.ndarray:
    return generator.uniform(0, 2, size=(n, 2))


def _weighted(weights: tuple[float, ...]) -> Callable:
    """Gaussian noise of one observation; a weight says how many rows a row stands for, and nothing of its noise."""

    def drawn(generator: np.random.Generator, n: int) -> Drawn:
        f, X, new = _function(generator), _rows(generator, n), _rows(generator, NEW_ROWS)
        y, y_new = (f(Z) + NOISE * generator.normal(size=len(Z)) for Z in (X, new))
        given = {"sample_weight": generator.choice(weights, size=n)}
        return Drawn(X, y, new, y_new, np.full(NEW_ROWS, NOISE), given)

    return drawn


def _grouped(generator: np.random.Generator, n: int) -> Drawn:
    """Rows of a group lie near each other and share an offset."""
    f = _function(generator)

    def some(n_groups: int) -> tuple[np.ndarray, np.ndarray]:
        X = np.repeat(_rows(generator, n_groups), GROUP_ROWS, axis=0)
        X = X + 0.02 * generator.normal(size=X.shape)
        offset = np.repeat(OFFSET * generator.normal(size=n_groups), GROUP_ROWS)
        return X, f(X) + offset + NOISE * generator.normal(size=len(X))

    (X, y), (new, y_new) = some(n // GROUP_ROWS), some(NEW_ROWS // GROUP_ROWS)
    groups = np.arange(len(y)) // GROUP_ROWS
    std = np.full(len(y_new), (NOISE**2 + OFFSET**2) ** 0.5)
    return Drawn(X, y, new, y_new, std, {"groups": groups})


def _counted(mean: float) -> Callable:
    def drawn(generator: np.random.Generator, n: int) -> Drawn:
        f, X, new = _function(generator), _rows(generator, n), _rows(generator, NEW_ROWS)
        rate = lambda Z: mean * np.exp(0.5 * f(Z) - 0.125)
        y, y_new = (generator.poisson(rate(Z)).astype(float) for Z in (X, new))
        y[: max(0, 2 - int(np.count_nonzero(y)))] += 1  # some count above 0 there must be
        return Drawn(X, y, new, y_new, np.sqrt(rate(new)), {})

    return drawn


def _heavy(generator: np.random.Generator, n: int) -> Drawn:
    """Student-t noise whose scale is an exponential of the input."""
    f, X, new = _function(generator), _rows(generator, n), _rows(generator, NEW_ROWS)
    scale = lambda Z: 0.15 * np.exp(Z[:, 0] - 0.5)
    y, y_new = (f(Z) + scale(Z) * generator.standard_t(TAILS, size=len(Z)) for Z in (X, new))
    return Drawn(X, y, new, y_new, scale(new) * (TAILS / (TAILS - 2)) ** 0.5, {})


CASES: dict[str, Callable] = {
    "weights 0.1": _weighted((0.1,)),
    "weights 1": _weighted((1.0,)),
    "weights 10": _weighted((10.0,)),
    "weights mixed": _weighted((0.1, 1.0, 10.0)),
    "groups": _grouped,
    **{f"counts {mean:g}": _counted(mean) for mean in COUNTS},
    "student": _heavy,
}


def _of(records: list[Record], field: str, **settings: Any) -> np.ndarray:
    found = [r["results"][field] for r in select(records, **settings)]
    return np.concatenate([np.array(part, dtype=object) for part in found]) if found else np.empty(0, object)


def page(records: list[Record]) -> list[str]:
    headings = ["data", "family", "rows", "simulations", "in 95 % intervals", "its error", "std / truth", "warned", "accepted"]  # fmt: skip
    rows = []
    for case in CASES:
        for family in FAMILIES:
            for size in SIZES:
                some = {"case": case, "family": family, "rows": size}
                covered, ratio = (_of(records, name, **some).astype(float) for name in ("covered", "ratio"))
                if len(covered):
                    warned = sum(bool(one) for r in select(records, **some) for one in r["results"]["warned"])
                    rows.append([case, family, size, len(covered), *_row(covered, ratio, warned)])
    return [tables.table(headings, rows)]


def _row(covered: np.ndarray, ratio: np.ndarray, warned: int) -> list[str]:
    inside, typical = float(covered.mean()), float(np.median(ratio))
    kept = COVERED[0] <= inside <= COVERED[1] and RATIO[0] <= typical <= RATIO[1]
    numbers = [inside, float(covered.std() / len(covered) ** 0.5), typical]
    told = "yes" if kept else "no, with a warning" if warned == len(covered) else "no"
    return [*(tables.number(value, 3) for value in numbers), str(warned), told]


def figure(records: list[Record]) -> Figure:
    """Coverage of 95 % intervals, a point for each simulation."""
    drawing = Figure(figsize=(8, 3.4), layout="constrained")
    panels = drawing.subplots(1, len(SIZES), sharey=True)
    for panel, size in zip(panels, SIZES, strict=True):
        for k, family in enumerate(FAMILIES):
            for i, case in enumerate(CASES):
                values = _of(records, "covered", case=case, family=family, rows=size).astype(float)
                at = np.full(len(values), i + 0.2 * (k - 1))
                panel.plot(at, values, ".", color=f"C{k}", label=family if i == 0 else None)
        panel.axhspan(*COVERED, color="0.9")
        panel.set(title=f"{size:,} rows", ylim=(0.7, 1.01))
        panel.set_xticks(range(len(CASES)), CASES, rotation=60, ha="right", fontsize=7)
        panel.legend(fontsize=7)
    return drawing
