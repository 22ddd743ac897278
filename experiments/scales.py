"""Which factor for all variances? ĉ by likelihood, by leave-one-out and by left-out rows, where the model is wrong and on six sets. (N5 of the acceptance experiments.)

3,000 rows. The simulated functions are of Matérn-1/2 in two inputs with noise variance 0.01, and a Matérn-5/2 is fitted; the sets have Matérn-3/2. θ is the maximum of the exact likelihood of
1,000 of the rows (with the library's weak prior): were it that of all rows, likelihood would find ĉ = 1. With A = K + σ²I, α = A⁻¹y and Q = A⁻¹:

    likelihood      yᵀα/N
    leave-one-out   mean α_i²/Q_ii from the factor; and from 64 samples with V_i = (S − 2)/Σ_s u_si² for 1/Q_ii, as `posteriors.calibration` has it
    left-out rows   of 500 rows predicted by a local posterior of their 256 nearest others

The samples are solved for by the factor. Their error is a jackknife over 16 groups of 4 samples that share features; "draws" counts how many of 4 sets of samples are within two of their errors of the factor's value.
NLPD is that of 2,000 test rows by the exact posterior, all of whose variances are multiplied by ĉ; "gain" is NLPD after likelihood less that after leave-one-out, with its standard error the larger of that over rows and that by boxes of inputs.
Accepted: the samples' ĉ is within two of its errors of the factor's, and likelihood is nowhere better than leave-one-out by more than two standard errors.
"""

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import SETS, Problem, load
from measuring import tables
from measuring.acceptance import draws_near, error_of, scales_verdict
from measuring.store import Cell, Record

SIMULATED, WIDTH, NOISE = "Matérn-1/2", 10.0, 0.01
N, LEARNED, TEST_ROWS, SAMPLES, PARTS, DRAWS = 3000, 1000, 2000, 64, 16, 4
WAYS = ("none", "likelihood", "leave-one-out", "64 samples", "left-out rows")
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": SIMULATED, "seed": 0, "rows": 200}]
    simulated = [{"set": SIMULATED, "seed": seed, "rows": N} for seed in range(10 if slow else 3)]
    return simulated + [{"set": name, "seed": 0, "rows": N} for name in SETS]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["rows"]


def run(cell: Cell) -> dict:
    import jax

    from experiments import kernel_fits
    from stochgp.learners import FullBatch, fit
    from stochgp.posteriors import LocalPosterior

    problem, simulated = _problem(cell), cell["set"] == SIMULATED
    truth = kernel_fits.some_tests(problem, TEST_ROWS)
    first = kernel_fits.start(problem.X.shape[1], "matern52" if simulated else "matern32")
    learner = FullBatch(subset_rows=min(LEARNED, cell["rows"] // 2), spread=1.0, precision="float64")
    gp = fit(learner, first, problem.source, key=jax.random.key(cell["seed"])).gp
    made = kernel_fits.dense(gp, problem.X, problem.y)
    by_likelihood = float(made.y @ made.alpha) / len(made.y)
    by_rows = float(np.mean(made.alpha**2 / made.inverse_diagonal()))
    draws = [_by_samples(made, cell["seed"], draw) for draw in range(DRAWS)]
    count = np.ones(len(problem.y), problem.y.dtype)
    local = LocalPosterior(gp=gp, X=problem.X, y=problem.y, weight=count).calibrated(500, 0)
    scales = dict(zip(WAYS, (1.0, by_likelihood, by_rows, draws[0][0], local.scale), strict=True))
    plain = made.predict(truth.X)
    after = {way: plain.times(c) for way, c in scales.items()}
    return {
        "scales": scales,
        "nlpd": {way: float(np.mean(found.losses(truth.y))) for way, found in after.items()},
        "best_scale": float(np.mean((truth.y - plain.mean) ** 2 / plain.variance)),
        "samples": draws,
        "gain": kernel_fits.paired(after["likelihood"], after["leave-one-out"], truth),
        "noise_variance": made.noise,
    }


def _problem(cell: Cell) -> Problem:
    if cell["set"] != SIMULATED:
        return load(cell["set"], 0, cell["rows"])
    import jax

    from stochgp.kernels import Matern12
    from stochgp.kernels.dense import block

    n, generator = cell["rows"], np.random.default_rng(cell["seed"])
    X = generator.uniform(0, WIDTH, (n + TEST_ROWS, 2)).astype(np.float32)
    with jax.enable_x64(True):
        K = block(Matern12(np.ones(2), 1.0), X.astype(np.float64), X.astype(np.float64))
    K[np.diag_indices(len(K))] += NOISE
    y = np.linalg.cholesky(K) @ generator.normal(size=len(K))
    return Problem(X[:n], y[:n].astype(np.float32), X[n:], y[n:], 1.0)


def _by_samples(made, seed: int, draw: int) -> tuple[float, float]:
    """(ĉ of leave-one-out from samples, its jackknife error)."""
    import jax

    from stochgp.priors import prior_functions

    with jax.enable_x64(True):
        prior_key, noise_key = jax.random.split(jax.random.key(1000 * seed + draw))
        D = made.X.shape[1]
        prior = prior_functions(made.gp.kernel, D, SAMPLES, key=prior_key, dtype=np.float64)
        f = np.asarray(prior(made.X))[:, :SAMPLES]
        noise = np.asarray(jax.random.normal(noise_key, f.shape, np.float64))
    u = np.asarray(made.factor.solve(f + made.noise**0.5 * noise))
    together = SAMPLES // PARTS  # they share random features
    keep = lambda g: np.delete(u, np.arange(g * together, (g + 1) * together), axis=1)
    left = np.array([_mean_square(made, keep(g)) for g in range(PARTS)])
    error = float(np.sqrt((PARTS - 1) / PARTS * np.sum((left - left.mean()) ** 2)))
    return _mean_square(made, u), error


def _mean_square(made, u: np.ndarray) -> float:
    """Mean z², by the library's formula."""
    from stochgp.posteriors import KernelSystem, SampledKernelPosterior
    from stochgp.solvers import CG

    system = KernelSystem(made.gp.kernel, made.X, np.ones(len(made.y)), made.gp.noise, 512)
    sampled = SampledKernelPosterior(
        system=system,
        weights=made.alpha[:, None],
        explained=float(made.y @ made.alpha),
        prior=None,
        sample_weights=u,
        solver=CG(),
        tolerance=0.01,
    )
    z = sampled.errors_without(np.arange(len(made.y)))
    assert z is not None
    return float(np.mean(np.square(z)))


def page(records: list[Record]) -> list[str]:
    headings = ["set", "seed", *(f"ĉ, {way}" for way in WAYS[1:]), "error of the samples' ĉ", "draws", "best ĉ", *(f"NLPD, {way}" for way in WAYS), "gain", "its error"]  # fmt: skip
    rows = []
    for record in records:
        cell, found = record["settings"], record["results"]
        rows.append(
            [
                cell["set"],
                cell["seed"],
                *(tables.number(found["scales"][way], 3) for way in WAYS[1:]),
                tables.number(found["samples"][0][1], 3),
                f"{draws_near(record)} of {len(found['samples'])}",
                tables.number(found["best_scale"], 3),
                *(tables.number(found["nlpd"][way], 4) for way in WAYS),
                *(tables.number(value, 4) for value in (found["gain"]["nlpd"], error_of(found["gain"]))),
            ]
        )
    return [tables.table(headings, rows), scales_verdict(records)]


def figure(records: list[Record]) -> Figure:
    """ĉ of each way beside the best one for the test rows."""
    drawing = Figure(figsize=(4, 4), layout="constrained")
    panel = drawing.subplots()
    best = [record["results"]["best_scale"] for record in records]
    for way in WAYS[1:]:
        panel.loglog(best, [record["results"]["scales"][way] for record in records], "o", ms=4, label=way)
    panel.plot(best, best, "k.", ms=1)
    panel.set(xlabel="ĉ of the test rows", ylabel="ĉ")
    panel.legend(fontsize=7)
    return drawing
