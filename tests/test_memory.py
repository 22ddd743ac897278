"""What requests to a fitted kernel GP are counted to need, against the peaks of processes that make them, from both sides."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from stochgp.planning.prediction import most_columns

WORKER = Path(__file__).with_name("memory_worker.py")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="peaks are reset by Linux alone")
ROOM = 120_000_000  # bytes by which a need may be above three peaks: what compiling may leave behind


@functools.cache
def peaks(n_rows):
    requests = [["predict", 20_000], ["functions", 64], ["covariance", 64], ["likelihood", 0]]
    given = {"n_rows": n_rows, "n_inputs": 8, "n_samples": 16, "solver": "SDD", "requests": requests}
    found = subprocess.run(
        [sys.executable, WORKER, json.dumps(given)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return {row["name"]: row for row in json.loads(found.stdout)}


@linux_only
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["predict", "functions", "covariance", "likelihood"])
def test_needs_are_peaks_at_least_and_not_many_times_them(name):
    row = peaks(20_000)[name]
    assert row["took"] <= row["need"] <= 3 * row["took"] + ROOM, row


@pytest.mark.parametrize(
    ("free", "columns"), [(10**9, 100), (10_000, 100), (9_999, 64), (100, 1), (99, 1), (3_300, 32)]
)
def test_the_most_columns_that_fit_are_taken_together(free, columns):
    assert most_columns(lambda n: 100 * n, 100, free) == columns
