"""The demonstration on a small table in the flights' place."""

import json

import numpy as np

from stochgp.cli import demo, main
from stochgp.data import Dataset


def test_the_demo_compares_on_one_split_and_draws(monkeypatch, tmp_path, capsys):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(600, 3))
    y = 3 * X[:, 0] + 0.5 * generator.normal(size=600)
    small = Dataset(X[:500], y[:500], X[500:], y[500:], ("a", "b", "c"), "y", "small")
    before = X.copy()
    monkeypatch.setattr(demo.data, "load", lambda name, seed: small)
    monkeypatch.setattr(demo, "TIME_LIMIT", 1.0)
    picture = tmp_path / "report.png"
    monkeypatch.setattr(demo, "MEMORY_LIMIT", "8GB")
    assert main(["demo", "--out", str(picture), "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["models"]) == {"stochgp", "ridge", "gradient boosting"}
    assert abs(report["models"]["ridge"]["rmse"] - 0.5) < 0.15  # the truth is linear, its noise 0.5
    assert report["n_train"] == 500 and report["n_test"] == 100
    assert picture.read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(X, before)
    assert main(["demo", "--out", str(picture), "--quiet"]) == 0
    assert [line[:7] for line in capsys.readouterr().out.splitlines()][2:5] == [
        "stochgp",
        "ridge  ",
        "gradien",
    ]
