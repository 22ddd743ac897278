"""Learners for the UCI tables, with rates tuned on split 0, scores, and numbers of wins.

SVGP uses the kernel k(x, z) = variance · φ(x)·φ(z) of the same feature map, with as many inducing points as
rows in a batch, as in the SCGD paper. Inducing points are inputs of the network. q(u) follows natural
gradients.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from experiments.problems import SETS, Problem, curve, deep_gp, load, outcome, score
from measuring import tables
from measuring.store import Cell, Record, select
from stochgp import learning
from stochgp.features import AbstractFeatureMap
from stochgp.kernels import Linear, Warped
from stochgp.learners import BSGD, SCGD, SVGP, AbstractLearner, ByEvidence, ByLoss, Minimax, constant, muon
from stochgp.models import FeatureGP, SparseGP
from stochgp.objectives import bound_of_all, nlml_of_spectrum, spectrum
from stochgp.objectives.moments import add_up
from stochgp.parameters import frozen
from stochgp.posteriors import VariationalPosterior
from stochgp.results import FitResult
from stochgp.variational import InducingPoints, choose_points

# No rows are held out: the criterion is the exact NLML of the training rows. REFITTED refits variances.
REFITTED, NOT_REFITTED = (ByEvidence(refit=refit, validation_fraction=0.0) for refit in (True, False))
ADADELTA, ADAM, MUON = (0.3, 1.0, 3.0), (1e-3, 3e-3, 1e-2), (3e-3, 1e-2, 3e-2)


class Method(NamedTuple):
    """A learner and the rates to try; `fixed_scale` fixes the scale of the kernel.

    `sparse` is True for learners with inducing points.
    """

    make: Callable[..., AbstractLearner]
    rates: tuple[float, ...]
    fixed_scale: bool = False
    settings: dict = {}  # noqa: RUF012 (read only)
    sparse: bool = False

    def learner(self, batch: int, epochs: int, rate: float) -> AbstractLearner:
        settings = {"evaluator": REFITTED} | self.settings
        return self.make(batch_size=batch, epochs=epochs, learning_rate=rate, **settings)

    def prepared(self, gp: FeatureGP) -> FeatureGP:
        """Return `gp` with a frozen variance if the method does not learn one."""
        return eqx.tree_at(lambda g: g.variance, gp, frozen(gp.variance)) if self.fixed_scale else gp


_PUBLISHED = {"optimizer": optax.adadelta, "decay": constant, "anchored": False, "evaluator": NOT_REFITTED}

METHODS = {
    "scgd-published": Method(SCGD, ADADELTA, True, {**_PUBLISHED, "tracking": 0.9}),
    "scgd-adam": Method(SCGD, ADAM, settings={"optimizer": optax.adam}),
    "scgd-muon": Method(SCGD, MUON, settings={"optimizer": muon}),
    "minimax-published": Method(Minimax, ADADELTA, True, {**_PUBLISHED, "penalty": 1.0}),
    "minimax-muon": Method(Minimax, MUON, settings={"optimizer": muon}),
    "bsgd-adam": Method(BSGD, ADAM, settings={"optimizer": optax.adam}),
    "svgp": Method(SVGP, ADAM, settings={"evaluator": ByLoss()}, sparse=True),
}

TUNED = "tuned"


def tuned_cells(name: str, splits: tuple[int, ...], batch: int, method: str, epochs: int) -> list[Cell]:
    """Return a cell per rate on split 0, and a cell per later split with the best rate."""
    cells = []
    for split in splits:
        rates = METHODS[method].rates if split == 0 else (TUNED,)
        cells += [
            {"set": name, "split": split, "batch": batch, "method": method, "epochs": epochs, "rate": rate}
            for rate in rates
        ]
    return cells


def depends(cell: Cell, records: list[Record]) -> dict | None:
    """Return the tuned rate, or None until all trials of split 0 exist."""
    if cell["rate"] != TUNED:
        return {}
    best = tuned(records, {k: cell[k] for k in ("set", "batch", "method", "epochs")})
    return None if best is None else {"rate": best["settings"]["rate"]}


def tuned(records: list[Record], which: dict[str, Any]) -> Record | None:
    """Return the record of split 0 with the lowest NLML, once all rates have been tried."""
    trials = [
        r
        for r in select(records, split=0, **which)
        if r["settings"]["rate"] in METHODS[which["method"]].rates
    ]
    if len(trials) < len(METHODS[which["method"]].rates):
        return None
    return min(trials, key=_nlml)


def run(cell: Cell, kernel: str | None = None) -> dict:
    """Run one fit, and return its scores."""
    method, problem = METHODS[cell["method"]], load(cell["set"], cell["split"])
    gp = method.prepared(deep_gp(problem, cell["split"], kernel))
    learner = method.learner(cell["batch"], cell["epochs"], cell["rate"])
    if method.sparse:
        return run_sparse(gp, problem, learner, cell["split"]) | {"rate": cell["rate"]}
    result = learning.fit(learner, gp, problem.source, key=jax.random.key(cell["split"]))
    return score(result, problem) | {"rate": cell["rate"], "curve": curve(result, problem)}


def summaries(records: list[Record], batch: int, epochs: int) -> list[dict]:
    """Return a row per set and method, over splits; split 0 uses its best rate."""
    found = []
    for name in sorted({r["settings"]["set"] for r in records}, key=(*SETS, "synthetic").index):
        for method in METHODS:
            which = {"set": name, "batch": batch, "method": method, "epochs": epochs}
            first = tuned(records, which)
            if first is None:
                continue
            later = select(records, rate=TUNED, **which)
            runs = [first, *sorted(later, key=lambda r: r["settings"]["split"])]
            found.append({**which, "runs": runs, "rate": first["settings"]["rate"]})
    return found


def page(records: list[Record], kernel: str) -> list[str]:
    """Return the tables for all batch sizes and numbers of epochs with results."""
    published, parts = tables.nlml(kernel), []
    for batch, epochs in sizes(records):
        if lines := summaries(records, batch, epochs):
            parts += [
                f"## Batch {batch}, {epochs} epochs",
                score_table(lines, published),
                "Best variant of each family: mean NLML over the splits run, less the better of the published SCGD and MINIMAX.",
                win_table(lines, published, batch),
            ]
    return parts


def sizes(records: list[Record]) -> list[tuple[int, int]]:
    """Return batch sizes and numbers of epochs of the records."""
    return sorted({(r["settings"]["batch"], r["settings"]["epochs"]) for r in records})


def score_table(lines: list[dict], published: dict) -> str:
    """Return a table of all scores and the published NLML."""
    headings = [
        "set", "method", "splits", "rate", "NLML", "published SCGD", "published MINIMAX", "RMSE", "held-out NLPD",
        "the same, raw", "95 % coverage", "seconds",
    ]  # fmt: skip
    rows = []
    for line in lines:
        get = lambda field, runs=line["runs"]: [r["results"][field] for r in runs]
        ours = [published.get((line["set"], line["batch"], m), math.nan) for m in ("SCGD", "MINIMAX")]
        rows.append(
            [
                line["set"], line["method"], len(line["runs"]), f"{line['rate']:g}", tables.spread(get("nlml")),
                *map(tables.number, ours), tables.spread(get("rmse"), 4), tables.spread(get("nlpd")),
                tables.spread(get("nlpd_raw")), tables.spread(get("coverage95")), tables.spread(get("fit_seconds"), 0),
            ]
        )  # fmt: skip
    return tables.table(headings, rows)


def win_table(lines: list[dict], published: dict, batch: int) -> str:
    """Compare the best variant of each family with the best published NLML on each set."""
    rows = []
    for family in ("scgd", "minimax", "bsgd", "svgp"):
        row, wins, compared = [family], 0, 0
        for name in SETS:
            ours = [x for x in lines if x["set"] == name and x["method"].startswith(family)]
            theirs = [published[k] for m in ("SCGD", "MINIMAX") if (k := (name, batch, m)) in published]
            means = {x["method"]: tables.mean(r["results"]["nlml"] for r in x["runs"]) for x in ours}
            means = {method: value for method, value in means.items() if math.isfinite(value)}
            if not means or not theirs:
                row.append("n/a")
                continue
            method = min(means, key=lambda m: means[m])
            gap = means[method] - min(theirs)
            compared, wins = compared + 1, wins + (gap <= 0)
            row.append(f"{gap:+.3f} {method.partition('-')[2]}".rstrip())
        rows.append([*row, f"{wins} of {compared}"])
    return tables.table(["family", *SETS, "at or below the published"], rows)


def _nlml(record: Record) -> float:
    value = record["results"]["nlml"]
    return math.inf if value is None else value


CHUNK = 2048  # rows


class OfRow(eqx.Module):
    """The function x ↦ φ(x) of one row."""

    features: AbstractFeatureMap

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " M"]:
        return self.features(x[None, :])[0]


def sparse_gp(gp: FeatureGP, problem: Problem, n_inducing: int, seed: int) -> SparseGP:
    """Return the kernel of `gp` with inducing points at cluster centres of the rows."""
    points = choose_points(problem.X, n_inducing, key=jax.random.key(seed))
    kernel = Warped(Linear(float(gp.variance)), OfRow(gp.features))
    return SparseGP(kernel, InducingPoints.of(points), float(gp.noise_variance))


def run_sparse(gp: FeatureGP, problem: Problem, learner: AbstractLearner, seed: int) -> dict:
    """Fit a sparse GP from the start `gp`. Return exact NLML and scores of q(f)."""
    start = sparse_gp(gp, problem, learner.batch_size or CHUNK, seed)
    result = learning.fit(learner, start, problem.source, key=jax.random.key(seed))
    s, noise, variance = (
        problem.scale,
        float(result.gp.noise_variance),
        float(result.gp.kernel.kernel.variance),
    )
    features = FeatureGP(result.gp.kernel.network.features, noise=noise, variance=variance)
    with jax.enable_x64(True):
        exact = nlml_of_spectrum(spectrum(add_up(features, problem.source.blocks(CHUNK))), variance, noise)[0]
    mean, std = _predicted(result, problem)
    return {
        "nlml": exact + math.log(s),
        "elbo": bound_of_all(result.gp, problem.source) - math.log(s),
        **outcome(result, problem, mean, std),
        "variance": variance,
        "noise_variance": noise,
        "curve": curve(result, problem, "loss"),  # mean −ELBO of the batches since the previous evaluation
    }


def _predicted(result: FitResult, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of observations at the test rows."""
    with jax.enable_x64(True):
        posterior = VariationalPosterior.of(result.gp, problem.X.shape[1])
        parts = [
            posterior.mean_and_variance(jnp.asarray(problem.X_test[first : first + CHUNK]))
            for first in range(0, len(problem.X_test), CHUNK)
        ]
    mean, variance = (
        np.concatenate([np.asarray(part) for part in both]) for both in zip(*parts, strict=True)
    )
    return mean, np.sqrt(variance + float(result.gp.noise_variance))
