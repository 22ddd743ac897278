"""The tables of docs/measured.md, from lines of results."""

import importlib
from typing import Any

from measuring import papers, query
from measuring.page_facts import SETS, below_published, best, not_measured, slope, tuned
from measuring.query import Lines, lines
from measuring.store import select
from measuring.tables import printed, table

COVERAGES = "coverage of 50, 80, 95 and 99 % intervals"


def uci_linear() -> str:
    """Differences to the published NLML, a row per family and batch size."""
    rows = []
    for family, batch in (("scgd", 32), ("scgd", 128), ("minimax", 128)):
        runs = [best("uci_linear", family, batch, s) for s in SETS]
        splits = sorted({r.count for r in runs if r is not None})
        gaps = [printed(below_published("uci_linear", "linear", batch, s, family), "+.3f") for s in SETS]
        rows.append([f"{family.upper()}, batch {batch}", ", ".join(map(str, splits)), *gaps])
    return table(["", "splits", *SETS], rows)


def uci_inducing(name: str, kernel: str, batch: int) -> str:
    """SVGP on the kernels of the SCGD paper, beside the best SCGD: exact NLML, and what its q(f) predicts."""
    rows = []
    for s in SETS:
        runs, theirs = best(name, "svgp", batch, s), best(name, "scgd", batch, s)
        if runs is None or theirs is None:
            continue
        rows.append(
            [
                s,
                runs.count,
                printed(runs.mean("nlml"), ".3f"),
                printed(below_published(name, kernel, batch, s, "svgp"), "+.3f"),
                printed(runs.mean("nlpd"), ".3f"),
                printed(theirs.mean("nlpd"), ".3f"),
                printed(runs.mean("coverage95"), ".3f"),
                printed(runs.median("fit_seconds"), ".0f"),
            ]
        )
    headings = [
        "set", "splits", "NLML", "less the better published", "held-out NLPD", "that of SCGD", "95 % coverage", "seconds",
    ]  # fmt: skip
    return table(headings, rows)


def uci_as_published() -> str:
    """The published MINIMAX, and BSGD by Adam, where all of their rates were run."""
    rows = []
    for method, theirs in (
        ("scgd-published", "SCGD"),
        ("minimax-published", "MINIMAX"),
        ("bsgd-adam", "BSGD"),
    ):
        for batch in (32, 128):
            for s in SETS:
                runs = tuned("uci_linear", method=method, batch=batch, set=s)
                if runs is None:
                    continue
                ours, published = runs.mean("nlml"), papers.nlml("linear")
                gaps = [
                    ours - published[s, batch, theirs],
                    ours - min(published[s, batch, m] for m in ("SCGD", "MINIMAX")),
                ]
                rows.append(
                    [theirs, batch, s, runs.count, printed(ours, ".3f"), *(printed(g, "+.3f") for g in gaps)]
                )
    return table(
        [
            "method",
            "batch",
            "set",
            "splits",
            "NLML",
            "less its own published",
            "less the better of SCGD and MINIMAX",
        ],
        rows,
    )


def uci_gaussian() -> str:
    """SCGD on the Gaussian deep kernel, split by split: the machine stands beside each."""
    rows = []
    for s in ("bike", "elevators", "pol"):
        runs = best("uci_gaussian", "scgd", 64, s)
        if runs is not None:
            gap = below_published("uci_gaussian", "gaussian", 64, s)
            rows.append(
                [
                    s,
                    runs.count,
                    printed(runs.mean("nlml"), ".3f"),
                    printed(gap, "+.3f"),
                    "; ".join(sorted({_processor(r) for r in runs.records})),
                ]
            )
    return table(["set", "splits", "NLML", "less the better published", "machine"], rows)


def defaults() -> str:
    """`FeatureGPRegressor()`, as it comes."""
    rows = []
    for s in SETS:
        r = lines("defaults").where(set=s, split=0, batch=None)
        rows.append(
            [
                s,
                printed(r.one("nlpd"), ".3f"),
                f"{r.one('rmse'):.4f}",
                f"{r.one('crps'):.4f}",
                _coverages(r),
                r.one("likelihood"),
                f"{r.one('fit_seconds'):.0f}",
                _cores(r),
            ]
        )
    heads = [
        "set",
        "held-out NLPD",
        "RMSE",
        "CRPS",
        COVERAGES,
        "distribution chosen",
        "seconds",
        "cores",
    ]
    return table(heads, rows)


def feature_steps() -> str:
    """Microseconds of a step beside PyTorch's."""
    rows = []
    for r in lines("feature_steps").records:
        sides, speedup = r["results"]["sides"], r["results"]["speedup"]
        cell = [r["settings"][k] for k in ("method", "optimiser", "batch_size")]
        medians = [f"{sides[side]['median_us']:.0f}" for side in ("stochgp", "torch", "torch_by_hand")]
        rows.append([*cell, *medians, *(f"{speedup[side]:.1f}" for side in ("torch", "torch_by_hand"))])
    return table(
        [
            "method",
            "optimiser",
            "batch",
            "stochgp",
            "torch",
            "by hand",
            "torch ÷ stochgp",
            "by hand ÷ stochgp",
        ],
        rows,
    )


def attention() -> str:
    """Exact NLML per datum and held-out NLPD at the best of the rates."""
    methods = {
        "scgd-published": "SCGD, published",
        "scgd": "SCGD, anchored",
        "minimax-published": "MINIMAX, published",
        "bsgd": "BSGD, refitted",
        "svgp": "SVGP",
    }
    rows = []
    for s in ("bike", "kin40k"):
        found = [lines("attention").where(set=s, method=m, epochs=20).best("nlml") for m in methods]
        rows.append(
            [s, *(f"{printed(f.one('nlml'), '.3f')}, {printed(f.one('nlpd'), '.2f')}" for f in found)]
        )
    return table(["set", *methods.values()], rows)


def attention_memory() -> str:
    """Kilobytes a row of the batch."""
    rows = []
    for s in ("bike", "kin40k"):
        for method in ("SCGD", "MINIMAX", "BSGD", "SVGP"):
            found = lines("attention_memory").where(set=s, method=method)
            rows.append(
                [
                    s,
                    method,
                    *(f"{slope(found, 'batch', f) / 1e3:.0f}" for f in ("temporary_bytes", "working_bytes")),
                ]
            )
    return table(["set", "method", "reserved", "working"], rows)


def posteriors() -> str:
    """Scores of every solver, means over splits; seconds are medians."""
    rows = []
    for s in ("pol", "elevators", "bike", "protein", "keggdirected"):
        for solver in ("cholesky", "cg", "sdd", "svgp"):
            method, dataset = "SVGP" if solver == "svgp" else "SDD", "keggdir" if s == "keggdirected" else s
            theirs = [
                _published("sdd_uci", metric=m, method=method, dataset=dataset) for m in ("rmse", "nll")
            ]
            r = lines("posteriors").where(set=s, solver=solver)
            logged = sum("note" in record for record in r.records)
            rows.append(
                [
                    s,
                    solver,
                    r.count,
                    f"{r.mean('rmse'):.4f}",
                    printed(r.mean("nlpd"), ".3f"),
                    f"{r.median('fit_seconds'):.0f}",
                    logged or "",
                    ", ".join(filter(None, theirs)),
                ]
            )
    return table(
        [
            "set",
            "solver",
            "splits",
            "RMSE",
            "NLPD",
            "fit seconds",
            "lines from a log",
            "published SDD, or SVGP: RMSE, NLL",
        ],
        rows,
    )


def demo() -> str:
    """The demonstration: scores with their standard errors on both splits."""
    rows = []
    for split, held_out in (("random", "random flights"), ("by day", "whole days")):
        for r in lines("demo").where(split=split).records:
            found = r["results"]
            rmse = f"{found['rmse']:.2f} ± {found['rmse_stderr']:.2f}"
            nlpd = f"{found['nlpd']:.3f} ± {found['nlpd_stderr']:.3f}"
            rest = [f"{found['crps']:.2f}", f"{found['coverage_95']:.3f}", f"{found['seconds']:.0f}"]
            rows.append([held_out, r["settings"]["side"], rmse, nlpd, *rest])
    heads = ["held out", "", "RMSE (minutes)", "NLPD", "CRPS", "coverage of 95 % intervals", "seconds"]
    return table(heads, rows)


def departures() -> str:
    """The demonstration: scores with their standard errors over the held-out days, of what is known at departure."""
    rows = []
    for r in lines("demo").where(split="at departure").records:
        found = r["results"]
        pairs = [f"{found[name]:.2f} ± {found[f'{name}_stderr']:.2f}" for name in ("rmse", "crps")]
        nlpd = "–" if found["nlpd"] is None else f"{found['nlpd']:.3f} ± {found['nlpd_stderr']:.3f}"
        rest = [f"{found['coverage_50']:.3f}, {found['coverage_95']:.3f}", f"{found['seconds']:.0f}"]
        rows.append([r["settings"]["side"], pairs[0], nlpd, pairs[1], *rest])
    heads = ["", "RMSE (minutes)", "NLPD", "CRPS", "coverage of 50 and 95 % intervals", "seconds"]
    return table(heads, rows)


def pool_defaults() -> str:
    """`GPRegressor(memory_limit="3GB")` beside the families' own lines."""
    rows = []
    for s in SETS:
        r = lines("pool_defaults").where(set=s)
        families = [lines("kernel_defaults").where(set=s), lines("defaults").where(set=s, batch=None)]
        pairs = [f"{of.one('rmse'):.4f}, {printed(of.one('nlpd'), '.3f')}" for of in (r, *families)]
        rows.append([s, *pairs, f"{r.one('crps'):.4f}", _coverages(r), f"{r.one('fit_seconds'):.0f}"])
    heads = ["set", "pool: RMSE, NLPD", "kernel alone", "feature alone", "CRPS", COVERAGES, "seconds"]
    return table(heads, rows)


def sparse_defaults() -> str:
    """`SparseGPRegressor(memory_limit="3GB")` beside 4,096 points of the mean, an RBF kernel, and that with Gaussian noise."""
    rows, variants = [], ("default", "4,096 of the mean", "RBF", "RBF, Gaussian")
    for s in SETS:
        of = [lines("sparse_defaults").where(set=s, variant=variant) for variant in variants]
        pairs = [f"{r.one('rmse'):.4f}, {printed(r.one('nlpd'), '.3f')}" for r in of]
        first = of[0]
        seconds = [f"{r.one('fit_seconds'):.0f}" for r in of[:2]]
        rows.append(
            [s, *pairs, f"{first.one('crps'):.4f}", _coverages(first), first.one("likelihood"), *seconds]
        )
    pairs = [f"{variant}: RMSE, NLPD" for variant in variants]
    heads = ["CRPS", COVERAGES, "distribution chosen", "seconds", "of 4,096"]
    return table(["set", *pairs, *heads], rows)


def decoupled_defaults() -> str:
    """`SparseGPRegressor` with the mean of its inducing points, with a wider one, and with functions that grow, where more than one was measured."""
    variants = ("inducing points alone", "default", "4,096 of the mean", "RBF", "svdgp", "ivsgpr")
    rows = []
    for s in ("protein", "kin40k", "elevators", "walking"):
        of_set = lines("sparse_defaults").where(set=s)
        for output in sorted({r["settings"].get("output", 0) for r in of_set.records}):
            name = s if s != "walking" else f"{s}, target {output + 1}"
            for variant in variants:
                same = {"variant": variant} | ({"output": output} if s == "walking" else {})
                if select(of_set.records, **same):
                    of = of_set.where(**same)
                    scores = f"{of.one('rmse'):.4f}", printed(of.one("nlpd"), ".3f"), _coverages(of)
                    rows.append(
                        [name, variant, *scores, of.one("likelihood"), f"{of.one('fit_seconds'):.0f}"]
                    )
    return table(["set", "variant", "RMSE", "NLPD", COVERAGES, "distribution chosen", "seconds"], rows)


def metrics() -> str:
    """`KernelGPRegressor(memory_limit="3GB")` with lengthscales along the inputs, and where they may turn."""
    rows = []
    for s in SETS:
        straight, turned = lines("metrics").where(set=s), lines("kernel_defaults").where(set=s)
        pairs = [f"{r.one('rmse'):.4f}, {printed(r.one('nlpd'), '.3f')}" for r in (straight, turned)]
        seconds = [f"{r.one('fit_seconds'):.0f}" for r in (straight, turned)]
        rows.append([s, *pairs, str(turned.one("turns")), *seconds])
    heads = ["along the inputs: RMSE, NLPD", "may turn: RMSE, NLPD", "turns kept", "seconds", "may turn"]
    return table(["set", *heads], rows)


def deviations() -> str:
    """Relative errors of standard deviations from samples, and seconds of predictions, by near rows."""
    rows = []
    for record in lines("deviations").records:
        cell, found = record["settings"], record["results"]["deviations"]
        alone = found[0]["seconds"]
        errors = [f"{d['error']:.3f}" for d in found]
        rows.append(
            [
                cell["set"],
                cell["solver"],
                *errors,
                *(f"{d['seconds'] / alone:.1f}" for d in found if d["neighbours"] in (32, 48, 64)),
            ]
        )
    heads = [f"{m} near rows" if m else "samples alone" for m in (0, 16, 32, 48, 64, 96, 128)]
    return table(["set", "solver", *heads, *(f"seconds, {m} / none" for m in (32, 48, 64))], rows)


def kernel_defaults() -> str:
    """`KernelGPRegressor(memory_limit="3GB")`, the limits derived from Cholesky's posteriors where there are any."""
    rows = []
    for s in SETS:
        r = lines("kernel_defaults").where(set=s)
        rmse, nlpd = r.one("rmse"), r.one("nlpd")
        given = [lines("posteriors").where(set=s, split=0, solver="cholesky")] if s != "kin40k" else []
        rmse_0, nlpd_0 = (given[0].one("rmse"), given[0].one("nlpd")) if given else (None, None)
        exact = [f"{rmse_0:.4f}, {printed(nlpd_0, '.3f')}" if given else ""]
        rows.append(
            [
                s,
                f"{rmse:.4f}",
                printed(nlpd, ".3f"),
                *exact,
                f"{r.one('crps'):.4f}",
                _coverages(r),
                r.one("likelihood"),
                f"{r.one('fit_seconds'):.0f}",
                r.one("solver"),
            ]
        )
    return table(
        [
            "set",
            "RMSE",
            "NLPD",
            "with published hyperparameters, exact",
            "CRPS",
            COVERAGES,
            "distribution chosen",
            "seconds",
            "solver",
        ],
        rows,
    )


def gpboost_fits() -> str:
    """The default kernel GP beside GPBoost's Vecchia approximation."""
    rows = []
    for s in ("pol", "elevators", "bike", "kin40k"):
        sides = [lines("gpboost_fits").where(set=s, side=side) for side in ("stochgp", "gpboost")]
        seconds = [f"{r.one('train_seconds') + r.one('predict_seconds'):.0f}" for r in sides]
        rmse = [f"{r.one('rmse'):.4f}" for r in sides]
        nlpd = [printed(r.one("nlpd"), ".3f") for r in sides]
        rows.append([s, *seconds, *rmse, *nlpd])
    heads = ["seconds, ours", "GPBoost's", "RMSE, ours", "GPBoost's", "NLPD, ours", "GPBoost's"]
    return table(["set", *heads], rows)


def many_rows() -> str:
    """Simulated functions of a million rows."""
    rows = []
    for r in lines("many_rows").records:
        found, name = r["results"], r["settings"]["function"]
        seconds = [f"{found[field]:.0f}" for field in ("learning_seconds", "fit_seconds", "predict_seconds")]
        scores = [f"{found['peak'] / 1e9:.2f}", f"{found['rmse_noise']:.3f}", f"{found['coverage_95']:.3f}"]
        rows.append([name, f"{r['settings']['n_rows']:,}", *seconds, *scores])
    heads = ["rows", "seconds of learning", "of the fit", "of 100,000 predictions", "peak GB", "RMSE ÷ noise", "95 % coverage"]  # fmt: skip
    return table(["function", *heads], rows)


def iterative() -> str:
    """Both learners from the optimum of a subset."""
    rows = []
    for s in ("pol", "elevators"):
        cells = []
        for side in ("full-batch", "iterative"):
            r = lines("iterative").where(set=s, side=side)
            cells += [printed(r.one("nlml"), ".4f"), f"{r.one('last_seconds'):,.0f}"]
        rows.append([s, *cells])
    return table(["set", "full batch: exact NLML", "seconds after the subset", "iterative", "seconds"], rows)


def sggp_sets() -> str:
    """Batches of 16 neighbours beside the paper's."""
    titles = {
        "protein": "Protein",
        "bike-hourly": "Bike",
        "levy": "Levy",
        "griewank": "Griewank",
        "borehole": "Borehole",
        "otl": "OTL Circuit",
        "wing": "Wing Weight",
    }
    rows = []
    for s, title in titles.items():
        large = s in ("otl", "wing")
        r = lines("sggp_large" if large else "sggp_sets").where(set=s, batch=16)
        source = "sggp_toy" if large else "sggp_benchmarks"
        paper = [
            _published(source, column=c, dataset=title, method="sgGP") for c in ("rmse", "train_minutes")
        ]
        spread = f" ± {r.deviation('rmse'):.3f}" if r.count > 1 else ""
        ratio = f"{r.mean('ratio'):.3f}" if None not in r.values("ratio") else ""
        rows.append(
            [
                s,
                r.settings("epochs")[0],
                r.count,
                f"{r.mean('fit_seconds'):.1f}",
                f"{r.mean('search_seconds'):.1f}",
                f"{r.mean('step_us'):.0f}",
                f"{r.mean('rmse'):.3f}{spread}",
                ratio,
                *paper,
            ]
        )
    return table(
        [
            "set",
            "epochs",
            "trials",
            "seconds",
            "of them search",
            "µs a step",
            "RMSE",
            "RMSE ÷ noise",
            "published RMSE",
            "published minutes",
        ],
        rows,
    )


def of_benchmark(name: str, part: str = "table") -> str:
    """All lines of a benchmark as it prints them, or another of its tables; where there are none, that it has not been measured."""
    if not lines(name).records:
        return not_measured(f"python -m benchmarks {name}")
    rows = [record["settings"] | record["results"] for record in lines(name).records]
    headings, cells = getattr(importlib.import_module(f"benchmarks.{name}"), part)({"rows": rows})
    return table(
        headings, [[printed(cell, "") if isinstance(cell, float) else cell for cell in row] for row in cells]
    )


def of_experiment(name: str, part: int = 0) -> str:
    """A part of an experiment's own page; where there are no lines, that it has not been measured."""
    if not lines(name).records:
        return not_measured(f"python -m experiments {name}")
    return importlib.import_module(f"experiments.{name}").page(lines(name).records)[part]


def sources() -> str:
    """Where the lines of each file were measured."""
    rows = []
    for name in query.names():
        records = lines(name).records
        commits = sorted({r["commit"][:7] for r in records})
        jax = sorted({r["versions"]["jax"] for r in records})
        rows.append(
            [
                f"`{name}`",
                len(records),
                "; ".join(sorted({_processor(r) for r in records})),
                ", ".join(jax),
                _cores(lines(name)),
                ", ".join(commits),
            ]
        )
    return table(["lines", "number", "machine", "JAX", "cores used", "commits"], rows)


def lines_from_logs() -> str:
    """Files with lines that were taken from logs."""
    counts = {name: sum("note" in r for r in lines(name).records) for name in query.names()}
    return ", ".join(f"{count} of `{name}`" for name, count in counts.items() if count)


def _coverages(found: Lines) -> str:
    return ", ".join(f"{found.one(f'coverage{level}'):.3f}" for level in (50, 80, 95, 99))


def _processor(record: dict) -> str:
    return f"{record['machine']['processor']}, {record['machine']['cores_physical']} cores"


def _cores(found: Lines) -> str:
    return " or ".join(map(str, sorted({r["threads"]["cores_usable"] for r in found.records})))


def _published(name: str, column: str = "mean", **where: Any) -> str:
    """As printed in the paper; empty where it prints nothing."""
    found = next(row[column] for row in papers.rows(name) if all(row[k] == v for k, v in where.items()))
    return found.replace("-", "−")
