"""The command line as a process: its settings, and what Ctrl-C leaves."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import stochgp
from stochgp.cli import main, rows

QUICK = ["--model", "kernel", "--set", "learner=none", "--quiet"]


@pytest.fixture
def command(tmp_path):
    """A small fit, and the file that it writes."""
    x = np.linspace(0, 6, 20)
    pa_csv.write_csv(pa.table({"x": x, "y": np.sin(x)}), tmp_path / "t.csv")
    return ["fit", str(tmp_path / "t.csv"), "--target", "y", "--out", str(tmp_path / "m"), *QUICK]


def test_commands_called_from_python_change_no_setting(capsys):
    before = dict(os.environ)
    assert main(["evaluate", "none", "none.csv"]) == 2 and dict(os.environ) == before


def test_an_interrupt_before_there_is_a_model_is_one_line_and_130(command, tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(stochgp.KernelGPRegressor, "fit", interrupted)
    assert main(command) == 130 and capsys.readouterr() == ("", "stochgp: interrupted\n")
    assert not (tmp_path / "m").exists()


def test_an_interrupt_while_the_program_is_loading_is_one_line_and_130():
    """The first import of the command line is interrupted."""
    code = (
        "import builtins, sys; plain = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'stochgp.cli': raise KeyboardInterrupt\n"
        "    return plain(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "from stochgp.__main__ import run; sys.exit(run())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "stochgp: interrupted\n")


def test_an_interrupt_after_the_model_is_written_says_where_it_is(command, tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(rows, "scores", interrupted)
    assert main([*command, "--test-fraction", "0.2"]) == 130
    assert capsys.readouterr() == ("", f"stochgp: interrupted; the model is in {tmp_path / 'm'}\n")
    assert np.isfinite(stochgp.load(tmp_path / "m").nlml_)
