"""The demonstration on a small table in the flights' place."""

import json

import numpy as np

from stochgp import metrics
from stochgp.cli import demo, main
from stochgp.data import Dataset


def test_the_demo_compares_on_both_splits_and_draws(monkeypatch, tmp_path, capsys):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 3))
    y = 3 * X[:, 0] + 0.5 * generator.normal(size=600)
    small = Dataset(X[:500], y[:500], X[500:], y[500:], ("a", "b", "c"), "y", "small")
    before, asked = X.copy(), []
    monkeypatch.setattr(demo.data, "load", lambda name, seed: asked.append(name) or small)
    monkeypatch.setattr(demo, "KERNEL", "matern52")
    picture = tmp_path / "report.png"
    monkeypatch.setattr(demo, "MEMORY_LIMIT", "8GB")
    assert main(["demo", "--out", str(picture), "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert asked == ["flights", "flights:by-day"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(X, before)
    best = metrics.rmse(y[500:], 3 * X[500:, 0])
    density = metrics.nlpd(y[500:], 3 * X[500:, 0], np.full(100, 0.5))
    for found in report["splits"].values():
        assert (found["n_train"], found["n_test"]) == (500, 100)
        assert {"stochgp", "ridge"} < set(found["models"])
        for side in (
            "stochgp",
            "ridge",
        ):  # 4 standard errors of an RMSE are 0.14; a constant has 3.0, and an NLPD of 2.5
            row = found["models"][side]
            assert abs(row["rmse"] - best) < 0.14 and abs(row["nlpd"] - density) < 0.28, side
            assert abs(row["coverage_95"] - 0.95) < 4 * (0.95 * 0.05 / 100) ** 0.5
            assert row["rmse_stderr"] < 0.1 and row["nlpd_stderr"] < 0.2
    demo._print(report)
    lines = [line[:7] for line in capsys.readouterr().out.splitlines() if line]
    assert lines[3:6] == ["stochgp", "ridge  ", "boostin"]
