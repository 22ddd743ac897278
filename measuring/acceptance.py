"""What the acceptance experiments of kernel learners found, from their lines: the judgements that experiments and docs/measured.md share."""

import math
from collections.abc import Iterable
from typing import Any

from measuring import store, tables
from measuring.query import lines

SCORING, NEAR = "scoring", 1e-3  # nats from the optimum
DEFAULT = "by default"  # of learners: leave-one-out, learned on by likelihoods where left-out rows gain
LIKELIHOOD, LEFT_OUT, VECCHIA = "likelihood", "leave-one-out", "Vecchia"
WON = 0.01  # nats
FLIGHTS = {"flights": (28.6, 4.52), "flights:by-day": (25.3, 4.38)}  # limits of RMSE and NLPD
REFERENCE, RAISED = "float64 factor", "cg, raised noise"
RMSE, NLPD, SLOWER = 1.01, 0.02, 2.0  # of a solve at the learned noise

Run = dict[str, list]
Arrival = tuple[int, float]
"""(Passes, seconds)."""


def error_of(difference: dict[str, float]) -> float:
    """The larger of its standard errors."""
    return max(difference["error"], difference["error_by_boxes"])


def is_better(difference: dict[str, float]) -> bool:
    """Whether the first of two is better by more than two standard errors."""
    return difference["nlpd"] < -2 * error_of(difference)


# The default learner against its rivals


def ours_of(record: store.Record) -> str:
    """The default learner: beyond 100,000 rows leave-one-out alone."""
    return DEFAULT if DEFAULT in record["results"]["methods"] else LEFT_OUT


def beats(record: store.Record) -> list[str]:
    """The rivals that are better than the default on a set by more than two standard errors."""
    methods = record["results"]["methods"]
    return [name for name, found in methods.items() if name != ours_of(record) and is_better(found["less"])]


def learner_kept(record: store.Record) -> bool:
    """Whether the default is accepted on the set."""
    ours = record["results"]["methods"][ours_of(record)]
    rmse, nlpd = FLIGHTS.get(record["settings"]["set"], (math.inf, math.inf))
    return not beats(record) and ours["rmse"] <= rmse and ours["nlpd"] <= nlpd


# Numbers of neighbours


def best_variant(record: store.Record, kind: str | None = None, field: str = "nlpd") -> dict:
    """The variant of the lowest score, of one kind or of all."""
    found = [v for v in record["results"]["variants"] if kind in (None, v["kind"])]
    return min(found, key=lambda v: v[field])


def default_kept(record: store.Record) -> bool:
    """Whether no variant is better than the default by more than two standard errors."""
    return not any(is_better(v["less"]) for v in record["results"]["variants"])


def gain_of_vecchia(record: store.Record, field: str = "nlpd") -> float:
    """The best leave-one-out less the best Vecchia, by the predictor's rows."""
    return best_variant(record, LEFT_OUT, field)[field] - best_variant(record, VECCHIA, field)[field]


def sizes_verdict(records: list[store.Record] | None = None) -> str:
    """Of lines, or of those at hand."""
    records = list(lines("neighbourhood_sizes").records) if records is None else records
    n = len(records)
    locally, globally = (
        sum(gain_of_vecchia(r, field) >= WON for r in records) for field in ("nlpd", "global_nlpd")
    )
    return (
        f"Leave-one-out with 48 neighbours is within two standard errors of the best on {sum(map(default_kept, records))} of {n} sets. "
        f"The best Vecchia gains {WON} nats over the best leave-one-out on {locally} of {n} locally and on {globally} globally."
    )


# Scoring and Adam


def optimum_of(records: Iterable[store.Record], name: str) -> float:
    """The lowest loss of all runs of a set."""
    runs = [run for r in records if r["settings"]["set"] == name for run in r["results"]["runs"].values()]
    return min(loss for run in runs for loss in run["losses"] if loss is not None)


def arrived(run: Run, optimum: float) -> Arrival | None:
    """After which passes and seconds a run stays within 0.001 nats of the optimum; None where it does not end there."""
    far = [i for i, loss in enumerate(run["losses"]) if loss is None or not loss <= optimum + NEAR]
    at = far[-1] + 1 if far else 0
    return None if at == len(run["losses"]) else (at + 1, run["seconds"][at])


def arrivals(records: list[store.Record]) -> list[tuple[store.Cell, str, Arrival | None, float | None]]:
    """(Cell, run, where it arrived, its seconds as a multiple of scoring's)."""
    found = []
    for record in records:
        optimum, runs = optimum_of(records, record["settings"]["set"]), record["results"]["runs"]
        scoring = arrived(runs[SCORING], optimum)
        for name, run in runs.items():
            at = arrived(run, optimum)
            found.append((record["settings"], name, at, at[1] / scoring[1] if at and scoring else None))
    return found


def scoring_or_adam(records: list[store.Record]) -> str:
    """Which of the two arrives, and which is faster, cell by cell."""
    best: dict[str, float] = {}
    found = arrivals(records)
    there = {store.key(cell) for cell, name, at, _ in found if name == SCORING and at}
    adam = {store.key(cell) for cell, name, at, _ in found if name.startswith("Adam ") and at}
    for cell, name, _, ratio in found:
        if name.startswith("Adam ") and ratio is not None:
            best[store.key(cell)] = min(best.get(store.key(cell), math.inf), ratio)
    slower = sum(ratio > 1 for ratio in best.values())
    return (
        f"Of {len(records)} starts scoring arrives from {len(there)} and Adam alone, by the best of its settings, from {len(adam)}; "
        f"where both do, scoring is the faster from {slower} of {len(best)}."
    )


# Factors of all variances


def is_near(draw: list[float], dense: float) -> bool:
    """Whether samples' ĉ is within two of its errors of the factor's."""
    return abs(draw[0] - dense) <= 2 * draw[1]


def draws_near(record: store.Record) -> int:
    """How many draws of samples are."""
    found = record["results"]
    return sum(is_near(draw, found["scales"][LEFT_OUT]) for draw in found["samples"])


def in_order(record: store.Record) -> bool:
    """Whether likelihood is not better than leave-one-out by more than two standard errors."""
    gain = record["results"]["gain"]
    return gain["nlpd"] >= -2 * error_of(gain)


# Solves at the learned noise


def solve_kept(record: store.Record, side: str) -> bool:
    """Whether a solve is near the float64 factor's posterior, and not slow."""
    found = record["results"]["sides"]
    ours, raised = found[side], found[RAISED]
    return is_exact(record, side) and ours["seconds"] <= SLOWER * raised["seconds"]


def is_exact(record: store.Record, side: str) -> bool:
    """RMSE within 1 % and NLPD within 0.02."""
    ours, exact = record["results"]["sides"][side], record["results"]["sides"][REFERENCE]
    return ours["rmse"] <= RMSE * exact["rmse"] and abs(ours["nlpd"] - exact["nlpd"]) <= NLPD


def said(names: Iterable[str], none: str = "none") -> str:
    return ", ".join(names) or none


# Tables of docs/measured.md


def neighbour_learners() -> str:
    """A row for each set and number of centres: NLPD, and the differences to that of the default."""
    records = list(lines("neighbour_learners").records)
    methods = list(dict.fromkeys([DEFAULT, *(name for r in records for name in r["results"]["methods"])]))
    rows = []
    for record in records:
        found = record["results"]["methods"]
        less = [_difference(found[name]["less"]) if name in found else "" for name in methods[1:]]
        seconds = [f"{found[name]['seconds']:.0f}" if name in found else "" for name in methods[:-1]]
        cell, ours = record["settings"], found[ours_of(record)]
        kept = "yes" if learner_kept(record) else f"no: {said(beats(record), 'over the limits')}"
        rows.append(
            [
                cell["set"],
                f"{cell['centres']:,}",
                _text(ours["rmse"], ".4f"),
                _text(ours["nlpd"], ".4f"),
                *less,
                "; ".join(seconds),
                kept,
            ]
        )
    headings = ["set", "centres", "RMSE", "NLPD by default", *(f"less: {name}" for name in methods[1:]), f"seconds: {'; '.join(methods[:-1])}", "accepted"]  # fmt: skip
    return tables.table(headings, rows)


def neighbourhood_sizes() -> str:
    """A row for each set: local NLPD of every variant, less that of the default."""
    records = list(lines("neighbourhood_sizes").records)
    names = [f"{v['kind']}, {v['neighbours']}" for v in records[0]["results"]["variants"]]
    rows = []
    for record in records:
        found = record["results"]["variants"]
        best = [best_variant(record, kind, "global_nlpd")["global_nlpd"] for kind in (LEFT_OUT, VECCHIA)]
        less = [_difference(v["less"]) for v in found]
        rows.append([record["settings"]["set"], *less, "; ".join(_text(value, ".3f") for value in best)])
    headings = ["set", *names, "best global NLPD: leave-one-out; Vecchia"]
    return tables.table(headings, rows)


def fisher_or_adam() -> str:
    """Passes and seconds as a multiple of scoring's, a row for each start."""
    records = list(lines("fisher_or_adam").records)
    found, names = arrivals(records), list(dict.fromkeys(n for r in records for n in r["results"]["runs"]))
    rows = []
    for record in records:
        mine = {name: (at, ratio) for cell, name, at, ratio in found if cell == record["settings"]}
        optimum, runs = optimum_of(records, record["settings"]["set"]), record["results"]["runs"]
        shown = [_arrival(*mine[name], runs[name], optimum) for name in names]
        rows.append([record["settings"]["set"], record["settings"]["start"], *shown])
    return tables.table(["set", "start", *names], rows)


def scales() -> str:
    """ĉ by each way, the best one for the test rows, and what leave-one-out gains over likelihood."""
    rows = []
    ways = ("likelihood", LEFT_OUT, "64 samples", "left-out rows")
    for record in lines("scales").records:
        cell, found = record["settings"], record["results"]
        numbers = [*(found["scales"][way] for way in ways), found["samples"][0][1], found["best_scale"]]
        gain, near = _difference(found["gain"]), f"{draws_near(record)} of {len(found['samples'])}"
        rows.append([cell["set"], cell["seed"], *(_text(value, ".3f") for value in numbers), near, gain])
    headings = ["set", "seed", *ways, "error of the samples'", "best for the test rows", "draws within two errors", "NLPD gained by leave-one-out over likelihood"]  # fmt: skip
    return tables.table(headings, rows)


def refinement() -> str:
    """RMSE, NLPD and seconds of each solve."""
    rows = []
    for record in lines("refinement").records:
        for side, found in record["results"]["sides"].items():
            judged = "" if side in (REFERENCE, RAISED) else ("yes" if solve_kept(record, side) else "no")
            scores = [
                _text(found["rmse"], ".4f"),
                _text(found["nlpd"], ".3f"),
                _text(found["seconds"], ".0f"),
            ]
            noise = _text(found["noise_variance"], ".1e")
            rows.append([record["settings"]["set"], side, found.get("solver", ""), noise, *scores, found.get("steps", ""), judged])  # fmt: skip
    return tables.table(
        ["set", "solve", "solver", "σ²", "RMSE", "NLPD", "seconds", "steps", "accepted"], rows
    )


def kept_learners() -> str:
    records = lines("neighbour_learners").records
    kept = [f"{r['settings']['set']} {r['settings']['centres']:,}" for r in records if learner_kept(r)]
    return f"{len(kept)} of {len(records)} ({said(kept)})"


def scoring_or_adam_lines() -> str:
    return scoring_or_adam(list(lines("fisher_or_adam").records))


def scales_verdict(records: list[store.Record] | None = None) -> str:
    """Of lines, or of those at hand."""
    records = list(lines("scales").records) if records is None else records
    n, drawn = len(records), sum(len(r["results"]["samples"]) for r in records)
    far = [r["settings"]["set"] for r in records if draws_near(r) < len(r["results"]["samples"]) - 1]
    worse = [r["settings"]["set"] for r in records if not in_order(r)]
    return (
        f"The samples' ĉ is within two of its errors of the factor's in {sum(map(draws_near, records))} of {drawn} draws; in more than one of its draws it is not on: {said(far)}. "
        f"Likelihood is better than leave-one-out by more than two standard errors in {len(worse)} of {n} cells ({said(worse)})."
    )


def solves_verdict(records: list[store.Record] | None = None) -> str:
    """Of lines, or of those at hand."""
    records = list(lines("refinement").records) if records is None else records
    sides = [side for side in records[0]["results"]["sides"] if side not in (REFERENCE, RAISED)]
    n = len(records)
    return " ".join(
        f"{side}: near the factor in {sum(is_exact(r, side) for r in records)} of {n} cells, accepted in {sum(solve_kept(r, side) for r in records)}."
        for side in sides
    )


def _difference(found: dict[str, float]) -> str:
    return f"{_text(found['nlpd'], '+.4f')} ± {error_of(found):.4f}"


def _arrival(at: Arrival | None, ratio: float | None, run: Run, optimum: float) -> str:
    """Of a run that is not there: how far above it ends, and from which pass on it is near its own end."""
    if at is None:
        last = run["losses"][-1]
        settled = None if last is None else arrived(run, last)
        return "failed" if settled is None else f"{last - optimum:.3f} above, from pass {settled[0]} on"
    return f"{at[0]} passes" if ratio is None else f"{at[0]} passes, {ratio:.2f}"


def _text(value: Any, spec: str) -> str:
    return "n/a" if value is None else tables.printed(value, spec)
