"""`seconds`: first fits in new processes, compared with other packages.

Nothing is compiled before. Rows with 8 inputs and noise are simulated. Settings are defaults, except for
CatBoost (a variance per row, 1,000 trees).
"""

import tempfile
import time
import warnings
from typing import Any

from measuring import store
from measuring.harness import ALL_CORES, CACHE, apart
from measuring.tables import number, table

N_INPUTS, N_TEST, NOISE = 8, 1_000, 0.3
ROWS = {
    "kernel": (500, 2_000, 10_000), "pool": (442, 2_772, 8_000), "feature": (500,), "sparse": (200,), "classifier": (200,),
    "catboost": (442, 2_772, 8_000), "lightgbm": (442, 2_772, 8_000), "scikit-learn": (500, 2_000),
}  # fmt: skip
OURS = {
    "kernel": "KernelGPRegressor", "pool": "GPRegressor", "feature": "FeatureGPRegressor", "sparse": "SparseGPRegressor",
    "classifier": "GPClassifier",
}  # fmt: skip
FIGURES = {
    "import_seconds": "import s", "first_seconds": "first fit s", "first_cpu": "CPU s", "next_seconds": "next fit s",
    "row_seconds": "one row s", "functions_seconds": "functions s", "programs": "programs", "rmse": "RMSE", "crps": "CRPS",
}  # fmt: skip


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    return [
        {"side": side, "n_rows": n, "cores": cores}
        for side, sizes in ROWS.items()
        for n in (sizes[:1] if quick else sizes)
        for cores in (1, 2)
    ]


def run(cell: store.Cell) -> dict[str, float]:
    """Return the figures of a process without compiled code on disk."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9", CACHE: folder}
        core = 0 if cell["cores"] == 1 else ALL_CORES
        return apart("benchmarks.seconds", "measure", cell, core=core, variables=kept)["results"]


def measure(cell: store.Cell) -> dict[str, float]:
    """Return the figures of one process."""
    begun, (side, n) = time.perf_counter(), (cell["side"], cell["n_rows"])
    _made(side)
    found: dict[str, float] = {"import_seconds": time.perf_counter() - begun}
    X, y, X_test, y_test = simulated(n, 0, classes=side == "classifier")
    programs = _counted() if side in OURS else []
    cpu, begun = time.process_time(), time.perf_counter()
    model = _fitted(_made(side), X, y)
    found |= {"first_seconds": time.perf_counter() - begun, "first_cpu": time.process_time() - cpu}
    if side in OURS:
        found["programs"] = len(programs)
    if side == "kernel":
        begun = time.perf_counter()
        model.sample_y(X_test[:150], 5, random_state=0)
        found["functions_seconds"] = time.perf_counter() - begun
    found |= _scores(side, model, X_test, y_test)
    model.predict(X_test[:1])
    begun = time.perf_counter()
    for i in range(20):
        model.predict(X_test[i : i + 1])
    found["row_seconds"] = (time.perf_counter() - begun) / 20
    begun = time.perf_counter()
    _fitted(_made(side), *simulated(n + n // 20, 1, classes=side == "classifier")[:2])
    return found | {"next_seconds": time.perf_counter() - begun}


def page(records: list[store.Record]) -> list[str]:
    """Return tables; a cell is empty if a method has no such figure."""
    rows = (
        [r["side"], r["n_rows"], r["cores"], *(number(r[name], 3) if name in r else "" for name in FIGURES)]
        for r in store.rows(records)
    )
    return [table(["side", "rows", "cores", *FIGURES.values()], rows)]


def simulated(n_rows: int, seed: int, classes: bool = False) -> tuple[Any, Any, Any, Any]:
    """Return training and test rows of y = sin 2x₀ + x₁x₂ + noise, or of its sign as a class."""
    import numpy as np

    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_rows + N_TEST, N_INPUTS))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + NOISE * generator.normal(size=len(X))
    y = (y > 0).astype(int) if classes else y
    return X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:]


def _scores(side: str, model: Any, X: Any, y: Any) -> dict[str, float]:
    """Return RMSE and CRPS on new rows, if the method predicts means and distributions."""
    import numpy as np

    from stochgp.distributions import Normal

    if side == "classifier":
        return {}
    if hasattr(model, "predict_distribution"):
        distribution: Any = model.predict_distribution(X)
    elif side == "lightgbm":
        return {"rmse": float(np.sqrt(np.mean((model.predict(X) - y) ** 2)))}
    else:
        mean, std = model.predict(X, return_std=True) if side == "scikit-learn" else model.predict(X).T
        distribution = Normal(mean, std if side == "scikit-learn" else np.sqrt(std))
    error = distribution.mean - y
    return {"rmse": float(np.sqrt(np.mean(error**2))), "crps": float(np.mean(distribution.crps(y)))}


def _counted() -> list[str]:
    """Return a list that gets an entry for each compiled program."""
    import jax

    found: list[str] = []
    event = "/jax/core/compile/backend_compile_duration"
    keep = lambda name, *_, **__: found.append(name) if name == event else None
    jax.monitoring.register_event_duration_secs_listener(keep)
    return found


def _fitted(model: Any, X: Any, y: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return model.fit(X, y)


def _made(side: str) -> Any:
    """Return an unfitted model."""
    if side in OURS:
        import stochgp

        return getattr(stochgp, OURS[side])(random_state=0)
    if side == "catboost":
        from catboost import CatBoostRegressor  # pyrefly: ignore[missing-import]

        return CatBoostRegressor(
            loss_function="RMSEWithUncertainty", verbose=False, allow_writing_files=False
        )
    if side == "lightgbm":
        from lightgbm import LGBMRegressor  # pyrefly: ignore[missing-import]

        return LGBMRegressor(verbose=-1, random_state=0)
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    lengthscales: Any = [1.0] * N_INPUTS
    kernel = ConstantKernel(1.0) * Matern(lengthscales, (1e-2, 1e3), nu=1.5) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
