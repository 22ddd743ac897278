"""The benchmark of first fits."""

import numpy as np

from benchmarks import seconds


def test_seconds_are_medians_of_three_processes(monkeypatch):
    """A side without a figure leaves its cell of the table empty."""
    turns = [9.0, 1.0, 4.0]
    monkeypatch.setattr(
        seconds, "apart", lambda *args, **options: {"results": {"first_seconds": turns.pop(), "rmse": 0.5}}
    )
    cell = {"side": "lightgbm", "n_rows": 442, "cores": 1}
    found = seconds.run(cell)
    assert found == {"first_seconds": 4.0, "rmse": 0.5} and turns == []
    row = seconds.page([{"settings": cell, "results": found}])[0].splitlines()[-1]
    assert row == "| lightgbm | 442 | 1 |  | 4.000 |  |  |  |  |  | 0.500 |  |"


def test_our_gp_and_that_of_scikit_learn_predict_the_same_function(monkeypatch):
    monkeypatch.setattr(seconds, "N_TEST", 200)
    ours, theirs = (
        seconds.measure({"side": side, "n_rows": 300, "cores": 1}) for side in ("kernel", "scikit-learn")
    )
    assert set(ours) - set(theirs) == {"programs", "functions_seconds"}
    assert abs(ours["rmse"] - theirs["rmse"]) < 0.05 and abs(ours["crps"] - theirs["crps"]) < 0.05
    assert not np.any(seconds.simulated(61, 1)[0][:60] == seconds.simulated(60, 0)[0])
