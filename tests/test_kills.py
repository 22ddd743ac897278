"""A process killed at random moments, begun again until it ends, gives the same bits as an unbroken one.

STOCHGP_KILLS=20 kills that many times instead of 2.
"""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweeps import some_of

KILLS = int(os.environ.get("STOCHGP_KILLS", "2"))
SCRIPT = Path(__file__).with_name("killed_run.py")


def begin(kind, folder, checkpoint):
    """With compiled code in `folder`: what a killed process wrote by halves is read here only, and compiled again."""
    plan = [folder / "plan.json"] if kind == "many rows" else []
    return subprocess.Popen(
        [sys.executable, SCRIPT, kind, folder / checkpoint, *plan],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "code")},
    )


def steps(errors):
    """How many steps the learner took, as the run says."""
    return int(re.search(r"^steps (\d+)$", errors, re.MULTILINE)[1])


@pytest.mark.timeout(150 * KILLS)
@pytest.mark.parametrize("kind", some_of(["feature", "kernel", "many rows"], ["feature"]))
def test_kills_at_random_moments_change_nothing(kind, tmp_path):
    """Of many rows the plan of the solve is that of the first run. Runs that resume take fewer steps than whole ones, counted together."""
    for checkpoint in ("first", "whole"):  # the first has to compile
        started = time.monotonic()
        process = begin(kind, tmp_path, checkpoint)
        whole, errors = process.communicate()
        assert process.returncode == 0, errors
        seconds = time.monotonic() - started
    rng, killed, rounds, resumed = random.Random(0), 0, 0, []
    while killed < KILLS:
        rounds += 1
        for _ in range(2):
            process = begin(kind, tmp_path, f"broken{rounds}")
            time.sleep(seconds * rng.uniform(0.2, 0.9))
            process.kill()
            killed += process.wait() != 0
            process.communicate()
        found, last = begin(kind, tmp_path, f"broken{rounds}").communicate()
        assert found == whole, last
        resumed.append(steps(last))
    if kind != "feature":  # whose learner is not counted
        assert sum(resumed) <= len(resumed) * steps(errors)
    if kind != "feature" and KILLS >= 10:
        assert sum(resumed) < len(resumed) * steps(errors)
