"""The demonstration on a small table in the flights' place."""

import functools
import json

import numpy as np

from stochgp import FeatureGPRegressor, metrics
from stochgp.cli import demo, main
from stochgp.data import Dataset


def test_the_demo_compares_on_one_split_and_draws(monkeypatch, tmp_path, capsys):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 3))
    y = 3 * X[:, 0] + 0.5 * generator.normal(size=600)
    small = Dataset(X[:500], y[:500], X[500:], y[500:], ("a", "b", "c"), "y", "small")
    before = X.copy()
    monkeypatch.setattr(demo.data, "load", lambda name, seed: small)
    short = functools.partial(FeatureGPRegressor, epochs=100, learning_rate=0.01)
    monkeypatch.setattr(demo, "FeatureGPRegressor", short)
    picture = tmp_path / "report.png"
    monkeypatch.setattr(demo, "MEMORY_LIMIT", "8GB")
    assert main(["demo", "--out", str(picture), "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["models"]) == {"stochgp", "ridge", "gradient boosting"}
    truth = np.full(100, 0.5)  # linear, and the noise's standard deviation
    best = {
        "rmse": metrics.rmse(y[500:], 3 * X[500:, 0]),
        "nlpd": metrics.nlpd(y[500:], 3 * X[500:, 0], truth),
    }
    for side in (
        "stochgp",
        "ridge",
    ):  # 4 standard errors of an RMSE are 0.14; a constant has 3.0, and an NLPD of 2.5
        found = report["models"][side]
        assert abs(found["rmse"] - best["rmse"]) < 0.14 and abs(found["nlpd"] - best["nlpd"]) < 0.28, side
        assert abs(found["coverage_95"] - 0.95) < 4 * (0.95 * 0.05 / 100) ** 0.5
    assert report["n_train"] == 500 and report["n_test"] == 100
    assert picture.read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(X, before)
    assert main(["demo", "--out", str(picture), "--quiet"]) == 0
    assert [line[:7] for line in capsys.readouterr().out.splitlines()][2:5] == [
        "stochgp",
        "ridge  ",
        "gradien",
    ]
