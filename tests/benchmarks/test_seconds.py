"""The benchmark of first fits."""

import numpy as np

from benchmarks import seconds


def test_a_side_without_a_figure_leaves_its_cell_of_the_table_empty(monkeypatch):
    monkeypatch.setattr(
        seconds, "apart", lambda *args, **options: {"results": {"first_seconds": 4.0, "rmse": 0.5}}
    )
    cell = {"side": "lightgbm", "n_rows": 442, "cores": 1}
    row = seconds.page([{"settings": cell, "results": seconds.run(cell)}])[0].splitlines()[-1]
    assert row == "| lightgbm | 442 | 1 |  | 4.000 |  |  |  |  |  | 0.500 |  |"


def test_our_gp_and_that_of_scikit_learn_predict_the_same_function(monkeypatch):
    monkeypatch.setattr(seconds, "N_TEST", 200)
    ours, theirs = (
        seconds.measure({"side": side, "n_rows": 300, "cores": 1}) for side in ("kernel", "scikit-learn")
    )
    assert set(ours) - set(theirs) == {"programs", "functions_seconds"}
    assert abs(ours["rmse"] - theirs["rmse"]) < 0.05 and abs(ours["crps"] - theirs["crps"]) < 0.05
    assert not np.any(seconds.simulated(61, 1)[0][:60] == seconds.simulated(60, 0)[0])
