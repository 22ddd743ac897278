"""Numbers of 49 small fits of every kind, to see that a change of structure changes none of them.

    python tests/golden.py --out FILE.json [part of a name]      records {cell: {what: numbers}}
    python tests/golden.py --against FILE.json [part of a name]  says which cells differ from those recorded, in what and by how much; exit code 1

Record at one commit, compare at the other, with `PYTHONPATH` at the source to be tried, on the same machine and as many cores. New values are recorded by
`--out` at the commit whose numbers are to hold. A cell is a small fit with what follows it: predictions, intervals, samples, choices of `plan_`, numbers of
`history_`, but no seconds. Numbers may differ by 1e-6 of the largest of their kind, as sums in another order do; `--tolerance 0` asks for the same
bits. A change that is meant to move numbers further says by how much, and why. One cell after another, all in one process.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stochgp import learners, likelihoods

N, N_NEW = 160, 12
SECONDS = (
    "seconds",
    "memory",
    "bytes",
    "free",
    "time",
    "machine",
    "cost",
)  # parts of names whose numbers change from run to run


def rows(seed: int = 0, n: int = N, D: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, D)) * [3.0, 0.1, 1.0][:D] + [13.0, -5.0, 0.0][:D]
    y = 40 + 10 * np.sin(X[:, 0]) + 20 * X[:, 1] + (1 + np.abs(X[:, 2])) * generator.normal(size=n)
    return X, y


X, Y = rows()
X_NEW = rows(1, N_NEW)[0]
WEIGHT = np.random.default_rng(2).integers(1, 4, N).astype(np.float64)
GROUP = np.arange(N) // 4
COUNTS = np.random.default_rng(3).poisson(np.exp(0.5 * np.sin(X[:, 0]) + 1)).astype(np.float64)
X_MANY = np.concatenate([X, X + 0.1, X - 0.1])
Y_MANY = np.tile(Y, 3) + np.random.default_rng(4).normal(size=3 * N)
CLASSES = np.array(["a", "b", "c"])[np.digitize(Y, np.quantile(Y, [0.3, 0.7]))]
SVDGP_ = learners.SVDGP(64, 10, mirror_rate=learners.InverseRoot(1.0, 1.0))
SMILES = ["C" * k + tail for k in range(1, 11) for tail in ("O", "N", "C(=O)O", "c1ccccc1", "Cl", "C#N")]


def table(X: np.ndarray) -> Any:
    import pandas as pd

    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "high", "low")})


def kernel(**settings: Any) -> Any:
    from stochgp import KernelGPRegressor

    return KernelGPRegressor(**{"random_state": 0} | settings)


def feature(**settings: Any) -> Any:
    from stochgp import FeatureGPRegressor

    return FeatureGPRegressor(**{"random_state": 0, "learner": learners.SCGD(64, 20)} | settings)


def sparse(**settings: Any) -> Any:
    from stochgp import SparseGPRegressor

    return SparseGPRegressor(
        **{"random_state": 0, "n_inducing": 24, "learner": learners.SVGP(64, 10)} | settings
    )


def classifier(**settings: Any) -> Any:
    from stochgp import SparseGPClassifier

    return SparseGPClassifier(
        **{"random_state": 0, "n_inducing": 24, "learner": learners.SVGP(epochs=5, spread=1.0)} | settings
    )


def fitted(model: Any, y: np.ndarray = Y, X: Any = X, **given: Any) -> Any:
    return model.fit(X, y, **given)


def stochastic(solver: str, **settings: Any) -> Any:
    from stochgp import kernels

    known = {"kernel": kernels.Matern32([0.7, 1.5, 1.0], 1.3), "learner": None}
    return fitted(kernel(solver=solver, **known, **settings))


def from_file(model: Any) -> Any:
    """Of a table on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        table(X).assign(y=Y).to_csv(path, index=False)
        return model.fit(str(path), "y")


def streamed(model: Any) -> Any:
    for part in np.array_split(np.arange(N), 3):
        model.partial_fit(X[part], Y[part])
    return model


def updated(model: Any) -> Any:
    fitted(model)
    new = rows(5, 20)
    return model.update(*new)


def resumed(model: Any) -> Any:
    """Ended by the callback after some evaluations, and gone on with from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path, seen = os.path.join(folder, "run"), []

        def stop(entry: dict) -> bool:
            seen.append(entry)
            if len(seen) == 4:
                raise KeyboardInterrupt
            return False

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted(model, checkpoint=path, callback=stop)
            return fitted(model, checkpoint=path)


def molecules() -> Any:
    import pandas as pd

    y = np.array([len(one) for one in SMILES], np.float64) + np.random.default_rng(7).normal(size=len(SMILES))
    return kernel(kernel="tanimoto").fit(pd.DataFrame({"smiles": SMILES}), y)


def _likelihood_value(name: str) -> Any:
    from stochgp import likelihoods

    return {
        "student-value": lambda: likelihoods.StudentT(5.0, likelihoods.constant_noise(0.1)),
        "warped": lambda: likelihoods.Warped("gaussian", "sinh-arcsinh"),
    }[name]()


CELLS: dict[str, Callable[[], Any]] = {
    "kernel": lambda: fitted(kernel()),
    "kernel float64": lambda: fitted(kernel(dtype="float64", kernel="matern52")),
    "kernel weights": lambda: fitted(kernel(), sample_weight=WEIGHT),
    "kernel groups": lambda: fitted(kernel(), groups=GROUP),
    "kernel table": lambda: fitted(kernel(), X=table(X)),
    "kernel impute": lambda: fitted(kernel(missing="auto"), X=np.where(X > 15, np.nan, X)),
    "kernel student": lambda: fitted(kernel(likelihood="student-t")),
    "kernel student value": lambda: fitted(kernel(likelihood=_likelihood_value("student-value"))),
    "kernel positive": lambda: fitted(kernel(likelihood=likelihoods.Warped("auto", "log")), y=np.exp(Y / 20)),
    "kernel count": lambda: fitted(kernel(likelihood=likelihoods.Warped("auto", "count")), y=COUNTS),
    "kernel loo": lambda: fitted(kernel(learner=learners.LeaveOneOut(epochs=2))),
    "kernel vecchia": lambda: fitted(kernel(learner=learners.Vecchia(epochs=2))),
    "kernel bsgd": lambda: fitted(kernel(learner=learners.BSGD(32, 4))),
    "kernel local": lambda: fitted(kernel(solver="local")),
    "kernel cg": lambda: stochastic("cg"),
    "kernel sdd": lambda: stochastic("sdd"),
    "kernel update": lambda: updated(kernel()),
    "kernel many rows": lambda: fitted(kernel(time_limit=None), *rows(9, 3200)[::-1]),
    "kernel warped": lambda: fitted(kernel(likelihood=_likelihood_value("warped"))),
    "kernel file": lambda: from_file(kernel()),
    "molecules": molecules,
    "feature": lambda: fitted(feature()),
    "feature weights": lambda: fitted(feature(), sample_weight=WEIGHT),
    "feature groups": lambda: fitted(feature(), groups=GROUP),
    "feature rff": lambda: fitted(feature(features="rff", n_features=64)),
    "feature nystrom": lambda: fitted(feature(features="nystrom", n_features=32)),
    "feature attention": lambda: fitted(feature(features="attention", learner=learners.SCGD(64, 3))),
    "feature minimax": lambda: fitted(feature(learner=learners.Minimax(64, 20))),
    "feature bsgd": lambda: fitted(feature(learner=learners.BSGD(64, 20))),
    "feature full-batch": lambda: fitted(feature(learner=learners.FullBatch(epochs=10), features="rff", n_features=32)),
    "feature student": lambda: fitted(feature(likelihood="student-t"), Y_MANY, X_MANY),
    "feature auto, many rows": lambda: fitted(feature(), *rows(9, 6000)[::-1]),
    "feature file": lambda: from_file(feature()),
    "feature partial fit": lambda: streamed(feature(features="rff", n_features=32)),
    "feature resumed": lambda: resumed(feature()),
    "sparse": lambda: fitted(sparse()),
    "sparse weights": lambda: fitted(sparse(), sample_weight=WEIGHT),
    "sparse sgpr": lambda: fitted(sparse(learner=learners.SGPR(epochs=10))),
    "sparse ivsgpr": lambda: fitted(sparse(learner=learners.IVSGPR(64, 10))),
    "sparse svdgp": lambda: fitted(sparse(learner=SVDGP_, n_inducing_mean=48)),
    "sparse poisson": lambda: fitted(sparse(likelihood="poisson"), y=COUNTS),
    "sparse negative binomial": lambda: fitted(sparse(likelihood="negative-binomial"), y=COUNTS),
    "sparse student": lambda: fitted(sparse(likelihood="student-t")),
    "sparse file": lambda: from_file(sparse()),
    "sparse partial fit": lambda: streamed(sparse(learner=SVDGP_)),
    "classifier two": lambda: fitted(classifier(), y=CLASSES == "b"),
    "classifier three": lambda: fitted(classifier(), y=CLASSES),
}  # fmt: skip


def _told(value: Any) -> Any:
    """As JSON tells it: arrays as lists, numbers as they are, all else as text."""
    return json.loads(json.dumps(value, default=lambda x: x.tolist() if hasattr(x, "tolist") else str(x)))


def _kept(name: str) -> bool:
    return not any(part in name for part in SECONDS)


def outcome(model: Any) -> dict[str, Any]:
    """What a fitted model gives."""
    new: Any = X_NEW
    if hasattr(model, "feature_names_in_"):
        import pandas as pd

        names = list(model.feature_names_in_)
        new = pd.DataFrame({"smiles": SMILES[:N_NEW]}) if names == ["smiles"] else table(X_NEW)
    found: dict[str, Any] = {}

    def note(name: str, made: Callable[[], Any]) -> None:
        try:
            found[name] = _told(made())
        except (ValueError, TypeError, AttributeError) as error:
            found[name] = f"{type(error).__name__}: {str(error)[:60]}"

    if hasattr(model, "predict_proba"):
        note("probabilities", lambda: model.predict_proba(new))
    else:
        note("mean and std", lambda: model.predict(new, return_std=True))
        note("std with noise", lambda: model.predict(new, return_std=True, include_noise=True)[1])
        note("covariance", lambda: model.predict(new, return_cov=True)[1])
        note("interval", lambda: model.predict_interval(new))
        note("quantiles", lambda: model.predict_quantiles(new, [0.1, 0.9]))
        note("logpdf", lambda: model.predict_distribution(new).logpdf(np.full(N_NEW, 40.0)))
        note("crps", lambda: model.predict_distribution(new).crps(np.full(N_NEW, 40.0)))
        note("sample", lambda: model.sample_y(new, 3, include_noise=True))
        note("functions", lambda: model.sample_functions(3)(new))
    choices = {name: entry["choice"] for name, entry in model.plan_.items() if _kept(name)}
    for name, value in choices.items():
        found[f"plan_ {name}"] = _told(value)
    numbers = [{k: v for k, v in entry.items() if _kept(k)} for entry in model.history_]
    found["history_"] = _told(numbers)
    found["noise"] = _told(getattr(model, "noise_variance_", None))
    return found


def run(part: str = "") -> dict[str, dict[str, Any]]:
    found = {}
    for name, cell in CELLS.items():
        if part in name:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found[name] = outcome(cell())
                except (
                    Exception
                ) as error:  # a cell that cannot be run any more is a difference, and the others go on
                    found[name] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
            sys.stderr.write(f"{name}: {found[name].get('failed', 'done')}\n")
    return found


def distance(old: Any, new: Any) -> float:
    """Between two that were told: of numbers relative to the largest, infinite where anything else differs."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return max((distance(old[name], new[name]) for name in old), default=0.0)
    try:
        was, now = np.asarray(old, np.float64), np.asarray(new, np.float64)
    except (ValueError, TypeError):
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            return max(map(distance, old, new), default=0.0)
        return 0.0 if old == new else np.inf
    if was.shape != now.shape or not np.array_equal(np.isfinite(was), np.isfinite(now)):
        return np.inf
    finite = np.isfinite(was)
    if not np.array_equal(was[~finite], now[~finite], equal_nan=True):
        return np.inf
    apart = np.abs(was - now)[finite].max(initial=0.0)
    return float(apart and apart / np.abs(was[finite]).max(initial=np.finfo(float).tiny))


def differences(
    old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]], tolerance: float
) -> list[str]:
    """A line for each cell that differs by more, with what differs in it and by how much."""
    lines = []
    for cell, was in old.items():
        if cell in new:
            names = {**was, **new[cell]}
            far = {name: distance(was.get(name), new[cell].get(name)) for name in names}
            what = [f"{name} ({by:.0e})" for name, by in far.items() if by > tolerance]
            lines += [f"{cell}: {', '.join(what)}"] if what else []
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="of the names of cells")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-6, help="relative")
    options = parser.parse_args()
    found = run(options.part)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.against is None:
        return 0
    lines = differences(json.loads(options.against.read_text(encoding="utf-8")), found, options.tolerance)
    sys.stdout.write(
        "\n".join([*lines, f"{len(found) - len(lines)} of {len(found)} cells are the same"]) + "\n"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
