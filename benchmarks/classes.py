"""`classes`: `GPClassifier()`, compared with CatBoost and logistic regression.

All methods use their defaults. The sets are digits and breast cancer of scikit-learn, and three raw tables:
votes in Chile, denied mortgages, and cuts of 10,000 diamonds. A random fifth is held out. Log loss is in
nats.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.arena_inputs import Levels, Numbers
from benchmarks.arena_tables import division, of_shared, printed_by_r
from measuring import store
from measuring.tables import table

DIAMONDS, QUICK = 10_000, 400
LEAST = 1e-15
Predict = Callable[[pd.DataFrame], tuple[np.ndarray, list[Any]]]


def _of_sklearn(load: Callable[..., Any]) -> Callable[[], tuple[pd.DataFrame, str]]:
    return lambda: (load(as_frame=True).frame, "target")


TABLES: dict[str, Callable[[], tuple[pd.DataFrame, str]]] = {
    "digits": _of_sklearn(load_digits),
    "breast cancer": _of_sklearn(load_breast_cancer),
    "chile": lambda: (printed_by_r("car/Chile")(), "vote"),
    "mortgages": lambda: (printed_by_r("Ecdat/Hdma")(), "deny"),
    "diamonds": lambda: (
        of_shared("diamonds.parquet")().drop(columns="rownames").sample(DIAMONDS, random_state=0), "cut",
    ),
}  # fmt: skip


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    few = {"rows": QUICK} if quick else {}
    return [{"table": name, "side": side} | few for name in TABLES for side in SIDES]


def run(cell: store.Cell) -> dict[str, Any]:
    X, y, X_new, y_new = divided(*TABLES[cell["table"]](), cell.get("rows"))
    with warnings.catch_warnings(action="ignore"):
        found = scored(SIDES[cell["side"]], X, y, X_new, y_new)
    return {"n_train": len(y), "n_classes": len(set(y)), **found}


def page(records: list[store.Record]) -> list[str]:
    fields = ("log_loss", "accuracy", "fit_seconds", "predict_seconds")
    rows = (
        [r["table"], r["n_train"], r["side"], *(f"{r[field]:.3f}" for field in fields)]
        for r in store.rows(records)
    )
    return [table(["table", "rows", "side", *fields], rows)]


def divided(frame: pd.DataFrame, target: str, most: int | None) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return training and test rows (a random fifth), without rows that have no label."""
    frame = frame[frame[target].notna()].iloc[:most].reset_index(drop=True)
    train, test = division(len(frame), "random")
    X, y = frame.drop(columns=target), frame[target].astype(str).to_numpy()
    part = lambda rows: X.iloc[rows].reset_index(drop=True)
    return part(train), y[train], part(test), y[test]


def scored(
    fit: Callable[[pd.DataFrame, np.ndarray], Predict], X: Any, y: np.ndarray, X_new: Any, y_new: np.ndarray
) -> dict[str, float]:
    """Return log loss and accuracy on held-out rows, and seconds."""
    begun = time.perf_counter()
    predict = fit(X, y)
    fitted = time.perf_counter()
    P, classes = predict(X_new)
    seconds = {"fit_seconds": fitted - begun, "predict_seconds": time.perf_counter() - fitted}
    number = {str(name): place for place, name in enumerate(classes)}
    of_label = P[np.arange(len(y_new)), [number[label] for label in y_new]]
    return {
        "log_loss": float(-np.mean(np.log(np.maximum(of_label, LEAST)))),
        "accuracy": float(np.mean([str(classes[k]) for k in P.argmax(axis=1)] == y_new)),
        **seconds,
    }


def _ours(X: pd.DataFrame, y: np.ndarray) -> Predict:
    from stochgp import GPClassifier

    model = GPClassifier(random_state=0).fit(X, y)
    return lambda X: (model.predict_proba(X), list(model.classes_))


def _catboost(X: pd.DataFrame, y: np.ndarray) -> Predict:
    from catboost import CatBoostClassifier  # pyrefly: ignore[missing-import]

    levels = Levels.of(X, {})
    model = CatBoostClassifier(
        loss_function="MultiClass", verbose=False, allow_writing_files=False, random_seed=0
    )
    model.fit(levels(X), y, cat_features=levels.text)
    return lambda X: (np.asarray(model.predict_proba(levels(X))), list(model.classes_))


def _logistic(X: pd.DataFrame, y: np.ndarray) -> Predict:
    numbers = Numbers.of(X, {})
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2_000)).fit(numbers(X), y)
    return lambda X: (model.predict_proba(numbers(X)), list(model.classes_))


SIDES = {"pool": _ours, "catboost": _catboost, "logistic regression": _logistic}
