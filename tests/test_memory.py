"""What requests to a fitted kernel GP are counted to need, against the peaks of processes that make them, from both sides."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "support" / "memory_worker.py"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="peaks are reset by Linux alone")
ROOM = 120_000_000  # bytes by which a need may be above three peaks: what compiling may leave behind


@functools.cache
def peaks(n_rows):
    requests = [["predict", 20_000], ["functions", 64], ["covariance", 512]]
    given = {"n_rows": n_rows, "n_inputs": 4, "solver": "SDD", "requests": requests}
    found = subprocess.run(
        [sys.executable, WORKER, json.dumps(given)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return {row["name"]: row for row in json.loads(found.stdout)}


@linux_only
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["predict", "functions", "covariance"])
def test_needs_are_peaks_at_least_and_not_many_times_them(name):
    row = peaks(20_000)[name]
    assert row["took"] <= row["need"] <= 3 * row["took"] + ROOM, row
