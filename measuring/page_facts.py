"""The single numbers of docs/measured.md that take more than one expression, from lines of results."""

import math
import statistics
from typing import Any

from measuring import papers
from measuring.query import Lines, lines
from measuring.tables import printed, spread

SETS = ("bike", "elevators", "pol", "kin40k", "protein", "keggdirected")
RATES = 3  # tried on split 0
CONSTANT_NLPD = 0.5 * math.log(2 * math.pi * math.e)  # of Gaussian targets of unit variance


def slope(found: Lines, size: str, field: str) -> float:
    """Least squares of a field on a setting."""
    sizes = [r["settings"][size] for r in found.records]
    return statistics.linear_regression(sizes, found.values(field)).slope


def tuned(name: str, **where: Any) -> Lines | None:
    """Split 0 at its rate of lowest NLML, and the splits at the rate found there; None while rates of split 0 are missing."""
    try:
        first = lines(name).where(split=0, **where)
    except ValueError:
        return None
    if first.count < RATES:
        return None
    later = tuple(r for r in lines(name).where(**where).records if r["settings"]["rate"] == "tuned")
    return Lines(first.best("nlml").records + later)


def best(name: str, family: str, batch: int, set_: str) -> Lines | None:
    """The runs of the variant of lowest mean NLML of "scgd", "minimax", "bsgd" or "svgp"."""
    methods = [m for m in lines(name).settings("method") if m.startswith(family)]
    found = [runs for m in methods if (runs := tuned(name, method=m, batch=batch, set=set_)) is not None]
    return min(found, key=lambda runs: runs.mean("nlml")) if found else None


def below_published(name: str, kernel: str, batch: int, set_: str, family: str = "scgd") -> float:
    """Mean NLML of the best variant less the better of the published SCGD and MINIMAX."""
    runs = best(name, family, batch, set_)
    if runs is None:
        raise ValueError(f"{name} has no {family} at batch {batch} on {set_}")
    return runs.mean("nlml") - min(papers.nlml(kernel)[set_, batch, m] for m in ("SCGD", "MINIMAX"))


def posterior_excess(**where: Any) -> float:
    """The greatest RMSE of a split beside that of Cholesky on it, less 1."""
    found = lines("posteriors").where(solver=("cg", "sdd"), **where)
    ratios = []
    for r in found.records:
        cell = {k: r["settings"][k] for k in ("set", "split")}
        ratios.append(
            r["results"]["rmse"] / lines("posteriors").where(solver="cholesky", **cell).one("rmse") - 1
        )
    return max(ratios)


def default_excess() -> float:
    """The greatest RMSE of `kernel_defaults` beside that of Cholesky's posterior with published hyperparameters, less 1."""
    return max(
        lines("kernel_defaults").where(set=s).one("rmse")
        / lines("posteriors").where(set=s, split=0, solver="cholesky").one("rmse") - 1
        for s in SETS if s != "kin40k"
    )  # fmt: skip


def recovered(start: str, scale: str, field: str) -> str:
    """Mean ± standard deviation over draws of a recovered variance, batches of 128."""
    return spread(lines("recovery_sggp").where(start=start, scale=scale, batch=128).one(field), 2)


def convergence() -> str:
    """How the mean squared gradient at the end falls with the batch size m."""
    if not lines("sggp_convergence").records:
        return not_measured("python -m experiments sggp_convergence")
    steps, epochs = (printed(convergence_slope(run), ".2f") for run in ("steps", "epochs"))
    return (
        f"the mean squared gradient of the full likelihood at the end falls like m^({steps}) with the steps held and like "
        f"m^({epochs}) with the epochs held; the theorem bounds it by m^(−½)."
    )


def convergence_slope(run: str) -> float:
    """Slope of the logarithm of the mean squared gradient against that of the batch size."""
    found = lines("sggp_convergence").where(run=run).records
    sizes = [math.log(r["settings"]["batch"]) for r in found]
    return statistics.linear_regression(sizes, [math.log(r["results"]["mean"]) for r in found]).slope


def robots() -> str:
    """Which data have lines, of how many outputs, and which have none."""
    names = {"walking": "the walking data", "sarcos": "an arm"}
    outputs = {name: set() for name in names}
    for r in lines("robots").records:
        outputs.get(r["settings"]["set"], set()).add(r["settings"]["output"])
    told = [
        f"{names[name]} ({f'outputs: {len(found)}' if found else 'not measured at this state of the software'})"
        for name, found in outputs.items()
    ]
    return " and ".join(told)


def step_exponent(method: str, axis: str) -> float:
    """Slope of log microseconds of a step by log size, at sizes 512 and 1,024."""
    at = {"N": 65_536, "B": 32, "M": 128}
    first, last = (
        lines("step_costs").where(method=method, **at | {axis: n}).one("microseconds") for n in (512, 1024)
    )
    return math.log2(last / first)


def step_time(method: str, n_rows: int) -> str:
    """Microseconds of a step with N rows."""
    return f"{lines('step_costs').where(method=method, N=n_rows, B=32, M=128).one('microseconds'):,.0f}"


def epochs_after_first(set_: str, side: str) -> int:
    """Epochs of the solver that a learner took after its first step."""
    return int(sum(lines("iterative").where(set=set_, side=side).one("epochs")[1:]))


def count(name: str, **where: Any) -> int:
    """How many lines have these settings, perhaps none."""
    return sum(all(r["settings"].get(k) == v for k, v in where.items()) for r in lines(name).records)


def count_commits(name: str) -> int:
    return len({r["commit"] for r in lines(name).records})


def default_nlpd(set_: str) -> str:
    """At batch 32 and at 512."""
    found = [lines("defaults").where(set=set_, split=0, batch=batch).one("nlpd") for batch in (32, 512)]
    return " and ".join(printed(value, ".2f") for value in found)


def penalty_value(penalty: float, variant: str = "published") -> float:
    """MINIMAX's mean NLML above the optimum."""
    return lines("minimax_penalty").where(variant=variant, penalty=penalty).mean("gap")


def penalty(penalty: float) -> str:
    return f"{penalty_value(penalty):.4f}"


def best_attention(end: str) -> float:
    """The least or the most seconds of the runs in the table."""
    found = [
        lines("attention").where(set=s, method=m, epochs=20).best("nlml").one("fit_seconds")
        for s in ("bike", "kin40k")
        for m in lines("attention").settings("method")
    ]
    return min(found) if end == "least" else max(found)


def auto_choices() -> str:
    """What `auto` took on each set, with its seconds."""
    found = lines("posteriors").where(solver="auto").records
    return ", ".join(
        f"{r['results']['used']} on {r['settings']['set']} ({r['results']['fit_seconds']:.0f} s)"
        for r in found
    )


def stability(large: bool = False) -> Lines:
    """The runs with few rows, or those with large blocks."""
    return Lines(tuple(r for r in lines("stability").records if ("batch" in r["settings"]) == large))


def is_finite(results: dict) -> bool:
    return results["finite"] == "True"


def has_converged(results: dict) -> bool:
    return results["converged"] == "True"


def fell_back(results: dict) -> bool:
    return results["failures"] > 0


def is_kept(results: dict) -> bool:
    """Whether a limit held."""
    return results["kept"]


def fit_was_refused(results: dict) -> bool:
    return "fit" in results["refused"]


def fit_ran(results: dict) -> bool:
    return not fit_was_refused(results)


def functions_were_refused(results: dict) -> bool:
    return "functions" in results["refused"]


def most_of_limit() -> float:
    """The largest share of a memory limit that a process took whose fit ran."""
    found = lines("memory_limits").matching(fit_ran).records
    return max(r["results"]["peak"] / r["results"]["limit"] for r in found)


def demo_lead(split: str) -> str:
    """RMSE of ours and of the best rival of the demonstration, with their standard errors."""
    ours = lines("demo").where(split=split, side="stochgp")
    rivals = tuple(r for r in lines("demo").where(split=split).records if r["settings"]["side"] != "stochgp")
    both = (ours, Lines(rivals).best("rmse"))
    return " and ".join(f"{side.one('rmse'):.1f} ± {side.one('rmse_stderr'):.1f}" for side in both)


def above_zero(results: dict) -> bool:
    return results["residual"] > 1


def mean_above_zero(results: dict) -> bool:
    return results["mean_residual"] > 1


def last_rmse(name: str, **where: Any) -> float:
    """Test RMSE of the geometric average after the last step."""
    return lines(name).where(**where).one("curves.geometric.-1.3")


def objective_rmse(objective: str, step_size: float) -> float:
    return lines("sdd_objectives").where(objective=objective, step_size=step_size).one("curves.last.-1.3")


def lowest_iterate() -> float:
    """The lowest variance on any recorded path."""
    return min(min(found) for found in lines("recovery_sggp").values("lowest_iterate"))


def own_batches(field: str) -> tuple[float, float]:
    """Least and most of the sets' means, with the library's own batches."""
    found = lines("sggp_sets").where(batch=128)
    means = [found.where(set=s).mean(field) for s in found.settings("set")]
    return min(means), max(means)


def own_rmse(set_: str) -> str:
    return f"{lines('sggp_sets').where(set=set_, batch=128).mean('rmse'):.3f}"


def at_or_below() -> str:
    """How many of the differences of the table of linear deep kernels are not positive."""
    pairs = (("scgd", 32), ("scgd", 128), ("minimax", 128))
    gaps = [below_published("uci_linear", "linear", b, s, f) for f, b in pairs for s in SETS]
    return f"{sum(gap <= 0 for gap in gaps)} of {len(gaps)}"


def traps() -> str:
    """How many targets of constant Gaussian noise were taken as such, of all rows and of few."""
    kept = {}
    for r in lines("laws").records:
        if r["settings"]["set"] == "trap":
            of = (r["settings"]["method"], r["settings"].get("few"))
            kept.setdefault(of, []).append(r["results"]["likelihood"] == "gaussian")
    if not kept:
        return not_measured("python -m experiments laws --group traps")
    told = [
        f"{sum(found)} of {len(found)} by `{method}`{'' if few is None else f' from {few} rows'}"
        for (method, few), found in kept.items()
    ]
    return f"taken as constant Gaussian noise {', '.join(told)}."


def not_measured(command: str) -> str:
    """In the place of numbers that have no lines."""
    return f"Not measured at this state of the software: `{command}` makes the lines."
