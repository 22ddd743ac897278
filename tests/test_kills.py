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
SCRIPT = Path(__file__).parent / "support" / "killed_run.py"


KINDS = [f"{kind} {rows}" for kind in ("feature", "kernel") for rows in (500, 3000, 10_000, 20_000)]


def begin(kind, rows, folder, checkpoint):
    """With compiled code in `folder`: what a killed process wrote by halves is read here only, and compiled again."""
    return subprocess.Popen(
        [sys.executable, SCRIPT, kind, str(rows), folder / checkpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(folder / "code")},
    )


def steps(errors):
    """How many steps the learner took, as the run says."""
    return int(re.search(r"^steps (\d+)$", errors, re.MULTILINE)[1])


@pytest.mark.timeout(600 + 150 * KILLS)
@pytest.mark.parametrize("what", some_of(KINDS, ["feature 3000"]))
@pytest.mark.long
def test_kills_at_random_moments_change_nothing_and_save_work(what, tmp_path):
    """Half of the kills come at any moment, half once there is a checkpoint: then the next run takes fewer steps than a whole one."""
    kind, rows = what.split()[0], int(what.split()[1])
    for checkpoint in ("first", "whole"):  # the first has to compile
        started = time.monotonic()
        process = begin(kind, rows, tmp_path, checkpoint)
        whole, errors = process.communicate()
        assert process.returncode == 0, errors
        seconds = time.monotonic() - started
    rng, killed, rounds = random.Random(0), 0, 0
    while killed < KILLS:
        rounds += 1
        name = f"broken{rounds}"
        saved = False
        for waits in (False, True):
            process = begin(kind, rows, tmp_path, name)
            while waits and process.poll() is None and not (tmp_path / name).exists():
                time.sleep(0.01)
            time.sleep(seconds * rng.uniform(0.0, 0.3) if waits else seconds * rng.uniform(0.2, 0.9))
            saved = (tmp_path / name).exists()
            process.kill()
            killed += process.wait() != 0
            process.communicate()
        found, last = begin(kind, rows, tmp_path, name).communicate()
        assert found == whole, last
        assert steps(last) <= steps(errors)
        if saved:
            assert steps(last) < steps(errors)
