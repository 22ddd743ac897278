"""Does a stream that goes wrong say so? A hundred adversarial streams, learned by `partial_fit`.

Every stream is drawn with traits: sizes of its parts, rows sorted by an input, inputs that drift, targets that shift, repeated rows, outliers, an input
that is constant at first, units of 1e-6 to 1e6, weights. SVDGP, iVSGPR and a feature GP learn it with default settings but 64 inducing functions. Recorded: the share
of 300 new observations like those of the whole stream within their 95 % intervals, and whether any call warned. Accepted: no share below
80 % without a warning. A share is of new rows: outliers and shifts are part of them as often as of the stream.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.store import Cell, Record, select

STREAMS, TOGETHER, NEW = 100, 10, 300  # of a method, of a cell, new rows
METHODS = ("svdgp", "ivsgpr", "features")
TRAITS = ("sorted", "drift", "shift", "repeated", "outliers", "constant", "units", "weights")
SHARE = 0.25  # of the streams that have a trait
ACCEPTED = 0.8
ONE_CORE = True


class Stream(NamedTuple):
    """Rows in the order in which they come, the first row of each part, new rows, and what is odd about it."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    starts: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray
    traits: list[str]


def cells(quick: bool, slow: bool) -> list[Cell]:
    blocks = range(1 if quick else STREAMS // TOGETHER)
    size = 2 if quick else TOGETHER
    return [{"method": method, "block": block, "streams": size} for block in blocks for method in METHODS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return 10.0 * cell["streams"]


def run(cell: Cell) -> dict:
    first = TOGETHER * cell["block"]
    return {
        "streams": [learned(cell["method"], drawn(seed)) for seed in range(first, first + cell["streams"])]
    }


def drawn(seed: int) -> Stream:
    """The stream of this number: a smooth function of three inputs, the time of each row in [0, 1], and traits."""
    generator = np.random.default_rng((20, seed))
    traits = [name for name in TRAITS if generator.uniform() < SHARE]
    n = int(generator.integers(400, 1_200))
    time = np.concatenate([np.arange(n) / n, generator.uniform(size=NEW)])
    X = generator.uniform(-2, 2, (n + NEW, 3))
    if "drift" in traits:
        X[:, 0] += 3 * time
    if "sorted" in traits:
        X[:n] = X[np.argsort(X[:n, 1])]
    if "constant" in traits:
        X[:, 2] = np.where(time < 0.5, 0.7, X[:, 2])
    if "repeated" in traits:
        X[:n] = X[np.sort(generator.integers(0, n, n))]
    waves = generator.normal(size=(3, 3)), generator.uniform(0, 6, 3)
    f = np.sin(X @ waves[0] + waves[1]).sum(axis=1)
    y = f + generator.uniform(0.05, 0.5) * generator.normal(size=n + NEW)
    if "shift" in traits:
        y = y + np.where(time > generator.uniform(0.3, 0.7), 10.0 ** generator.uniform(0, 3), 0.0)
    if "outliers" in traits:
        y = y + np.where(generator.uniform(size=n + NEW) < 0.02, 20 * generator.normal(size=n + NEW), 0.0)
    if "units" in traits:
        X, y = X * 10.0 ** generator.uniform(-6, 6, 3), y * 10.0 ** generator.uniform(-6, 6)
    return Stream(X[:n], y[:n], _weights(generator, n, traits), _starts(generator, n), X[n:], y[n:], traits)


def _weights(generator: np.random.Generator, n: int, traits: list[str]) -> np.ndarray | None:
    """Between 0.1 and 10, or one of 10⁴ among ones."""
    if "weights" not in traits:
        return None
    found = 10.0 ** generator.uniform(-1, 1, n)
    if generator.uniform() < 0.5:
        found = np.ones(n)
        found[generator.integers(n)] = 1e4
    return found


def _starts(generator: np.random.Generator, n: int) -> np.ndarray:
    """Of parts: a first one of 5 to 150 rows, the others all alike or of any size."""
    first = int(generator.choice([5, 64, 100, 150]))
    size = int(generator.integers(20, 200))
    sizes = generator.integers(1, 2 * size, n) if generator.uniform() < 0.5 else np.full(n, size)
    starts = np.concatenate([[0], first + np.cumsum(np.append(0, sizes))])
    return starts[starts < n]


def learned(method: str, stream: Stream) -> dict[str, Any]:
    """What was said of the stream, and how new rows are predicted after it."""
    model, parts = _model(method), np.split(np.arange(len(stream.y)), stream.starts[1:])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for part in parts:
            model.partial_fit(
                stream.X[part], stream.y[part], None if stream.weight is None else stream.weight[part]
            )
        low, high = model.predict_interval(stream.X_new).T
        mean = model.predict(stream.X_new)
    error = float(np.sqrt(np.mean((mean - stream.y_new) ** 2)) / np.std(stream.y_new))
    texts = list(dict.fromkeys(str(entry.message) for entry in said))
    return {
        "traits": stream.traits,
        "rows": len(stream.y),
        "parts": len(parts),
        "coverage": float(np.mean((low <= stream.y_new) & (stream.y_new <= high))),
        "rmse": error,
        "warned": bool(texts),
        "said": [text[:80] for text in texts[:3]],
    }


def _model(method: str) -> Any:
    from stochgp import FeatureGPRegressor, SparseGPRegressor

    if method == "features":
        return FeatureGPRegressor(random_state=0)
    return SparseGPRegressor(approximation=method, n_inducing=64, random_state=0)


def _of(records: list[Record], method: str) -> list[dict[str, Any]]:
    return [stream for record in select(records, method=method) for stream in record["results"]["streams"]]


def page(records: list[Record]) -> list[str]:
    headings = ["learner", "streams", "median coverage", "median error / spread", "below 80 %", "of these unsaid", "said at 90 % or more", "accepted"]  # fmt: skip
    rows = []
    for method in METHODS:
        if found := _of(records, method):
            coverage = np.array([stream["coverage"] for stream in found])
            warned = np.array([stream["warned"] for stream in found])
            low, unsaid = coverage < ACCEPTED, (coverage < ACCEPTED) & ~warned
            middle = [tables.number(float(np.median(coverage)), 3), tables.number(_error(found), 3)]
            counts = [int(low.sum()), int(unsaid.sum()), int((warned & (coverage >= 0.9)).sum())]
            rows.append([method, len(found), *middle, *counts, "no" if unsaid.any() else "yes"])
    return [tables.table(headings, rows)]


def _error(found: list[dict[str, Any]]) -> float:
    return float(np.median([stream["rmse"] for stream in found]))


def figure(records: list[Record]) -> Figure:
    """The coverage of every stream, in order, those that warned and those that did not."""
    drawing = Figure(figsize=(8, 3), layout="constrained")
    for panel, method in zip(drawing.subplots(1, len(METHODS), sharey=True), METHODS, strict=True):
        found = sorted(_of(records, method), key=lambda stream: stream["coverage"])
        for warned, mark in ((True, "."), (False, "x")):
            at = [i for i, stream in enumerate(found) if stream["warned"] == warned]
            panel.plot(at, [found[i]["coverage"] for i in at], mark, label="warned" if warned else "silent")
        panel.axhline(0.95, color="k", lw=0.5)
        panel.axhline(ACCEPTED, color="k", lw=0.5, ls=":")
        panel.set(title=method, xlabel="stream", ylim=(0, 1.02))
        panel.legend()
    return drawing
