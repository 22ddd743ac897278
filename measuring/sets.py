"""Data sets as they are, and the published hyperparameters of their kernels."""

import dataclasses
import json
import os

import numpy as np

from measuring.places import shared
from stochgp import data

HYPERPARAMETERS = "data/sdd_hyperparameters/matern32_ard.json"


def load_raw(name: str, split: int) -> data.Dataset:
    """UCI set `name`, from $STOCHGP_DATA, else ../shared/data; "synthetic" is made up."""
    if name == "synthetic":
        return _synthetic(split)
    use_shared_data()
    return data.load(f"uci:{name}:{split}")


def use_shared_data() -> None:
    """Named sets are looked for in ../shared/data, unless $STOCHGP_DATA says where."""
    if (folder := shared("data")).is_dir():
        os.environ.setdefault("STOCHGP_DATA", str(folder))


def bike_counts(seed: int) -> data.Dataset:
    """Bikes rented in an hour: whole numbers, of which the set has the logarithms."""
    use_shared_data()
    rows = data.load("bike-hourly", seed=seed)
    return dataclasses.replace(rows, y=np.rint(np.exp(rows.y)), y_test=np.rint(np.exp(rows.y_test)))


def hyperparameters(name: str, split: int) -> dict:
    """`lengthscale` [D], `variance`, `noise_variance` of Lin et al. (2023): Matérn-3/2, data standardised by the training rows."""
    found = json.loads(shared(HYPERPARAMETERS).read_text(encoding="utf-8"))[name][str(split)]
    return {
        "lengthscale": np.asarray(found["lengthscale"]),
        "variance": found["signal_std"] ** 2,
        "noise_variance": found["noise_std"] ** 2,
    }


def _synthetic(seed: int) -> data.Dataset:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(400, 3))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * generator.normal(size=400)
    return data.Dataset(X[:300], y[:300], X[300:], y[300:], ("x0", "x1", "x2"), "y", "synthetic")
