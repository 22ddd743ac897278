"""The demonstration on a small table in the flights' place."""

import json

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from examples.demo import compare as demo
from examples.demo import rivals as demo_rivals
from examples.demo.__main__ import main
from examples.demo.departures import Departures
from examples.demo.words import Arrivals, promises_of
from stochgp import metrics
from stochgp.distributions import Normal

N, DAYS, NOISE = 900, 20, 8.0
NUMBERS = ("dep_delay", "scheduled_duration", "visib", "precip", "now_origin")


def small(seed=0):
    """Minutes lost are linear in what is known, with noise of 8 minutes."""
    generator = np.random.default_rng(seed)
    columns = {name: generator.normal(size=N) for name in NUMBERS[2:]}
    columns["dep_delay"] = generator.integers(-5, 90, N).astype(float)
    columns["scheduled_duration"] = generator.uniform(60, 360, N)
    for name, levels in (
        ("origin", "JFK LGA"),
        ("dest", "SFO ORD MIA"),
        ("carrier", "AA UA"),
        ("tailnum", "N1 N2"),
        ("model", "A B"),
    ):
        columns[name] = pa.array(generator.choice(levels.split(), N))
    columns["month"] = np.ones(N)
    columns["day_of_year"] = np.arange(N) % DAYS + 1.0
    lost = 20 * columns["now_origin"] - 5 * columns["visib"]
    return Departures(
        pa.table(columns), lost + NOISE * generator.normal(size=N), np.arange(N) % DAYS + 1
    ), lost


def test_the_demo_compares_says_and_draws(monkeypatch, tmp_path, capsys):
    flights, expected = small()
    monkeypatch.setattr(demo, "departures", lambda: flights)
    monkeypatch.setattr(demo, "MEMORY_LIMIT", "8GB")
    monkeypatch.setattr(demo_rivals, "BOOSTED", 10)
    picture = tmp_path / "report.png"
    assert main(["--out", str(picture), "--flights", "600", "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["n_train"], report["n_test"], report["test_days"]) == (600, 90, 2)
    for path in (picture, tmp_path / "report-trust.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    test = demo._divided(600, 0)[1]
    best = expected[np.isin(flights.day, test.day)]
    rmse, nlpd = metrics.rmse(test.lost, best), metrics.nlpd(test.lost, best, np.full(90, NOISE))
    for side in ("stochgp", "ridge"):  # a constant has an RMSE of 22 and an NLPD of 4.5
        row = report["models"][side]
        assert abs(row["rmse"] - rmse) < 4 * NOISE / (2 * 90) ** 0.5, side
        assert abs(row["nlpd"] - nlpd) < 4 / (2 * 90) ** 0.5, side
        assert abs(row["coverage_95"] - 0.95) < 4 * (0.95 * 0.05 / 90) ** 0.5
    assert all(
        sum(r["flights"] for r in report["promises"] if r["minutes"] == m) == 90 for m in (0, 15, 30, 60)
    )
    for one in report["flights"]:
        assert list(one["at_most"].values()) == sorted(one["at_most"].values())
    demo._print(report)
    out = capsys.readouterr().out
    assert "600 flights" in out and "stochgp " in out and "ridge " in out


def test_promises_of_true_probabilities_are_kept():
    flights, expected = small(1)
    found = Arrivals(Normal(expected, np.full(N, NOISE)), flights)
    for row in promises_of(found):
        assert abs(row["kept"] - row["promised"]) < 4 * (0.25 / row["flights"]) ** 0.5 + 0.02
    late = flights.lost + flights.table["dep_delay"].to_numpy()
    np.testing.assert_array_equal(found.late, late)
    np.testing.assert_allclose(found.at_most(15), norm.cdf(15.5, late - flights.lost + expected, NOISE))
