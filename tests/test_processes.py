"""The command line in several processes: who writes and speaks, and what is left of a run that loses one of them.

STOCHGP_KILLS=20 kills that many times instead of once, process 1 and process 0 in turn.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import stochgp
from stochgp.cli import main

SETTINGS = ["batch_size=32", "n_features=16", "learning_rate=0.01", "likelihood=gaussian"]
N = 600
KILLS = int(os.environ.get("STOCHGP_KILLS", "1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a table, and the model of one process with the same virtual shards."""
    path, generator = tmp_path_factory.mktemp("processes"), np.random.default_rng(0)
    X = generator.normal(size=(N, 2))
    y = np.sin(X[:, 0]) + 0.1 * generator.normal(size=N)
    pa_csv.write_csv(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), path / "t.csv")
    assert main([*command(path, "alone"), "--set", "devices=1"]) == 0
    return path


def command(folder, out, epochs=30):
    pairs = [part for setting in [*SETTINGS, f"epochs={epochs}"] for part in ("--set", setting)]
    return [
        "fit",
        str(folder / "t.csv"),
        "--target",
        "y",
        "--model",
        "feature",
        "--out",
        str(folder / out),
        "--json",
        "--quiet",
        *pairs,
    ]


def begin(folder, *more, epochs=30):
    """Two processes of two devices each."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    begun = []
    for i in range(2):
        where = ["--coordinator", f"localhost:{port}", "--processes", "2", "--process", str(i)]
        line = [sys.executable, "-m", "stochgp", *command(folder, "together", epochs), *where, *more]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=environment))
    return begun


def ended(begun):
    """(Exit codes, standard outputs, standard errors)."""
    found = [process.communicate(timeout=250) for process in begun]
    return [process.returncode for process in begun], *zip(*found, strict=True)


def wait_for(path, begun):
    while not path.exists() and all(process.poll() is None for process in begun):
        time.sleep(0.01)


def predictions(path):
    model = stochgp.load(path)
    return np.stack(
        model.predict(pa.table({"a": np.linspace(-2, 2, 50), "b": np.zeros(50)}), return_std=True)
    )


@pytest.mark.timeout(600 + 120 * KILLS)
@pytest.mark.parametrize("round", range(KILLS))
@pytest.mark.long
def test_a_lost_process_ends_the_run_and_a_restart_gives_the_bits_of_one_process(folder, round):
    checkpoint, lost = folder / f"run{round}", (round + 1) % 2
    (folder / "together").unlink(missing_ok=True)
    begun = begin(folder, "--checkpoint", str(checkpoint))
    wait_for(checkpoint, begun)
    begun[lost].kill()
    codes, outputs, errors = ended(begun)
    assert 0 not in codes and outputs == ("", "")
    if lost == 1:  # the loss of process 0, which JAX needs, ends process 1 in JAX itself
        assert "another process of this run has ended; start all of them again" in errors[0]
    assert not (folder / "together").exists()

    codes, outputs, errors = ended(begin(folder, "--checkpoint", str(checkpoint)))
    assert codes == [0, 0], errors
    assert outputs[1] == "" and json.loads(outputs[0])["n_train"] == N
    assert predictions(folder / "together").tobytes() == predictions(folder / "alone").tobytes()
    together, alone = (stochgp.load(folder / name) for name in ("together", "alone"))
    assert together.nlml_ == alone.nlml_ and together.n_iter_ == alone.n_iter_
    assert together.plan_["devices"]["choice"]["processes"] == 2 and together.devices is None


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("interrupted", [0, 1])
def test_ctrl_c_in_one_process_ends_both_with_a_model(folder, interrupted):
    checkpoint = folder / f"interrupted{interrupted}"
    begun = begin(folder, "--checkpoint", str(checkpoint), epochs=3000)
    wait_for(checkpoint, begun)
    begun[interrupted].send_signal(signal.SIGINT)
    codes, outputs, errors = ended(begun)
    assert codes == [130, 130] and outputs == ("", "")
    assert "stochgp: interrupted; the model so far is in" in errors[0]
    assert np.isfinite(stochgp.load(folder / "together").nlml_)


@pytest.mark.long
def test_a_time_limit_ends_both_processes_at_the_same_step(folder):
    codes, outputs, errors = ended(begin(folder, "--set", "time_limit=3", epochs=100_000))
    assert codes == [0, 0], errors
    found = stochgp.load(folder / "together")
    assert found.plan_["ended"]["choice"] == "time_limit" and not found.converged_
    assert np.isfinite(predictions(folder / "together")).all() and json.loads(outputs[0])["n_train"] == N


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--distributed", "--process", "0"], "--distributed finds the processes by itself"),
        (["--coordinator", "localhost:1"], "are given together"),
        (["--processes", "2", "--process", "0"], "are given together"),
        (["--coordinator", "localhost:1", "--processes", "2", "--process", "2"], "it must be from 0 to 1"),
        (["--distributed", "--model", "kernel"], "other models are fitted in one"),
        (["--distributed", "--model", "auto"], "other models are fitted in one"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, capsys, options, said):
    given = [
        part
        for part in command(folder, "refused")
        if "--model" not in options or part not in ("--model", "feature")
    ]
    assert main([*given, *options]) == 2
    assert said in capsys.readouterr().err


def test_what_is_imported_uses_no_device():
    """Else the processes could not be joined any more."""
    code = (
        "import jax, stochgp, stochgp.devices, stochgp.cli.processes, stochgp.pools, stochgp.learners\n"
        "import stochgp.cli.rows, stochgp.cli.reports\n"
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
