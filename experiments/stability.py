"""Does default stochastic dual descent ever end diverged? Six UCI sets, kernels, noise variances, lengthscales, duplicated rows.

The published Matérn-3/2 lengthscales and variances (for kin40k, which has none, lengthscales 1) under other kernels, times `scale`;
`copies` = 2 gives every row twice. The first `ROWS` training rows in blocks of 512, all rows if slow; with the smallest noise also the
first `MORE_ROWS` in blocks of `LARGE_BATCH`, the largest that plans take. `residual` is relative, measured on all rows, of the
worst of the mean's column and two of noise. `objective` is ½ αᵀAα − αᵀb as a share of ½ bᵀb/λ̄ with λ̄ the mean diagonal of A, of the worst
column: 0 is that of α = 0, and a value above 0 would be a divergence; `failures` counts the divergences met on the way, from which a run falls back; the residual may exceed 1 on the way to small noise.
"""

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import SETS
from measuring import tables
from measuring.sets import load_raw
from measuring.store import Cell, Record, select

ROWS = 2_000
KERNELS = ("RBF", "Matern12", "Matern52")
NOISES = (1e-6, 1e-3, 1.0)
SCALES = (0.1, 1.0, 10.0)
EPOCHS = 60
MORE_ROWS, LARGE_BATCH = 10_000, 2_048


def cells(quick: bool, slow: bool) -> list[Cell]:
    sets = SETS[:1] if quick else SETS
    grid = [
        {"set": name, "kernel": kernel, "noise": noise, "scale": scale, "copies": copies}
        for name in sets
        for kernel in KERNELS
        for noise in NOISES
        for scale in SCALES
        for copies in ((1, 2) if scale == 1.0 and kernel == "RBF" else (1,))
    ]
    large = [
        cell | {"rows": MORE_ROWS, "batch": LARGE_BATCH}
        for cell in grid
        if cell["noise"] == NOISES[0] and cell["copies"] == 1
    ]
    return [cell | {"rows": None if slow else ROWS} for cell in grid] + ([] if quick else large)


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return 1 / cell["noise"]


def run(cell: Cell) -> dict:
    import jax
    import jax.numpy as jnp

    from measuring.sets import hyperparameters
    from stochgp import kernels, solvers
    from stochgp.operators import KernelOperator

    raw = load_raw(cell["set"], 0)
    deviation = np.where(raw.X.std(0) > 0, raw.X.std(0), 1)
    X, y = (
        ((raw.X - raw.X.mean(0)) / deviation)[: cell["rows"]],
        ((raw.y - raw.y.mean()) / raw.y.std())[: cell["rows"]],
    )
    X, y = np.repeat(X, cell["copies"], axis=0), np.repeat(y, cell["copies"])
    theta = {"lengthscale": np.ones(X.shape[1]), "variance": 1.0}
    if cell["set"] != "kin40k":
        theta = hyperparameters(cell["set"], 0)
    kernel = getattr(kernels, cell["kernel"])(cell["scale"] * theta["lengthscale"], theta["variance"])
    operator = KernelOperator.of(kernel, jnp.asarray(X, jnp.float32), cell["noise"])
    b = np.column_stack([y, np.random.default_rng(0).normal(size=(len(y), 2))])
    found = solvers.solve(
        operator, b, solvers.SDD(epochs=EPOCHS, batch_size=cell.get("batch", 512)), key=jax.random.key(0)
    )
    V = operator.pad(jnp.asarray(found.value, jnp.float32))
    Aa = np.asarray(operator.matvec(V), np.float64)[: len(b)]
    a = np.asarray(found.value, np.float64)
    objective = np.sum(a * (0.5 * Aa - b), axis=0) / (
        0.5 * np.sum(b * b, axis=0) / (theta["variance"] + cell["noise"])
    )
    return {
        "objective": float(np.max(objective)),
        "residual": float(np.max(found.residual_norms)),
        "mean_residual": float(found.residual_norms[0]),
        "finite": str(bool(np.all(np.isfinite(found.value)))),
        "converged": str(found.converged),
        "result": found.result.name,
        "epochs": found.epochs,
        "failures": found.history[-1]["failures"],
        "jitter": found.jitter,
        "solve_seconds": round(found.seconds, 2),
    }


def page(records: list[Record]) -> list[str]:
    small = [record for record in records if "batch" not in record["settings"]]
    large = [record for record in records if "batch" in record["settings"]]
    worst = max((r["results"]["objective"] for r in records), default=float("nan"))
    return [
        _table(small),
        f"{MORE_ROWS} rows, blocks of {LARGE_BATCH}:",
        _table(large),
        f"{len(records)} runs; the largest objective of all is {worst:.3g}.",
    ]


def _table(records: list[Record]) -> str:
    headings = ["kernel", "noise", "scale", "runs", "worst objective", "worst residual", "mean's worst", "converged", "most failures", "not finite"]  # fmt: skip
    rows = []
    for kernel in KERNELS:
        for noise in NOISES:
            for scale in SCALES:
                if runs := select(records, kernel=kernel, noise=noise, scale=scale):
                    get = lambda field, runs=runs: [r["results"][field] for r in runs]
                    worst = [
                        tables.number(max(get(f)), 3) for f in ("objective", "residual", "mean_residual")
                    ]
                    converged = sum(c == "True" for c in get("converged"))
                    lost = sum(f != "True" for f in get("finite"))
                    rows.append(
                        [kernel, noise, scale, len(runs), *worst, converged, int(max(get("failures"))), lost]
                    )
    return tables.table(headings, rows)


def figure(records: list[Record]) -> Figure:
    """Final residuals against the noise."""
    drawing = Figure(figsize=(6, 4), layout="constrained")
    panel = drawing.subplots()
    for scale in SCALES:
        runs = select(records, scale=scale)
        panel.loglog(
            [r["settings"]["noise"] for r in runs],
            [r["results"]["mean_residual"] for r in runs],
            "o",
            label=f"lengthscales × {scale:g}",
        )
    panel.axhline(1, color="grey")
    panel.set(xlabel="noise variance", ylabel="relative residual of the mean")
    panel.legend()
    return drawing
