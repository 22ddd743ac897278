"""The command line at its edges: pipes, text of other kinds, rows without a target, terminals without Unicode, devices that are not there."""

import gzip
import io
import os
import subprocess
import sys

import numpy as np
import pytest

from stochgp import data
from stochgp.cli import main

MODEL = ["--target", "y", "--model", "feature", "--set", "features=linear", "--quiet"]
X = np.random.default_rng(0).normal(size=80)
TABLE = {"x": X, "y": 2 * X + 0.1 * np.random.default_rng(1).normal(size=80)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("edges")
    data.write_table(path / "t.csv", TABLE)
    assert main(["fit", str(path / "t.csv"), *MODEL, "--out", str(path / "model")]) == 0
    return path


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def scores(text):
    """The lines of `evaluate` without what depends on the clock."""
    return {line.split()[0]: line.split()[1] for line in text.splitlines()}


def typed(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_standard_input_and_output_give_the_same_as_files(folder, tmp_path, capsys, monkeypatch):
    text = (folder / "t.csv").read_bytes()
    typed(monkeypatch, text)
    assert run(capsys, "fit", "-", *MODEL, "--out", tmp_path / "model")[0] == 0
    assert (
        main(["predict", str(folder / "model"), str(folder / "t.csv"), "--out", str(tmp_path / "p.csv")]) == 0
    )
    typed(monkeypatch, text)
    code, out, _ = run(capsys, "predict", tmp_path / "model", "-", "--out", "-")
    assert code == 0 and out == (tmp_path / "p.csv").read_text()
    typed(monkeypatch, text)
    assert (
        run(capsys, "evaluate", folder / "model", "-")[1]
        == run(capsys, "evaluate", folder / "model", folder / "t.csv")[1]
    )


@pytest.mark.parametrize("name", ["tabs.tsv", "tabs.tsv.gz", "semicolons.csv"])
def test_tables_of_other_separators_are_the_same_table(folder, tmp_path, capsys, name):
    lines = (folder / "t.csv").read_text()
    text = "sep=;\r\n" + lines.replace(",", ";") if "semi" in name else lines.replace(",", "\t")
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert data.read_table(path).to_pydict() == {key: list(map(float, TABLE[key])) for key in TABLE}
    (block,) = data.FileSource.of(path)
    assert block.table.equals(data.read_table(path).select(["x", "y"]).replace_schema_metadata(None))
    code, out, _ = run(capsys, "evaluate", folder / "model", path)
    assert code == 0 and out == run(capsys, "evaluate", folder / "model", folder / "t.csv")[1]


def test_names_with_commas_do_not_divide_a_table_of_tabs(tmp_path):
    (tmp_path / "t.tsv").write_text("a, b\n1, 2\n")
    assert data.read_table(tmp_path / "t.tsv").column_names == ["a, b"]
    data.write_table(tmp_path / "out.tsv", {"a": np.array([1, 2]), "b": np.array([3, 4])})
    assert (tmp_path / "out.tsv").read_text().splitlines()[1] == "1\t3"


def test_evaluate_leaves_out_rows_without_a_target(tmp_path, capsys):
    """The scores are those of the other rows."""
    good, model = tmp_path / "good.csv", tmp_path / "model"
    data.write_table(good, TABLE)
    (tmp_path / "bad.csv").write_text(good.read_text() + "1.0,\n2.0,\n0.5,\n")
    assert run(capsys, "fit", tmp_path / "bad.csv", *MODEL, "--out", model)[0] == 0
    expected = run(capsys, "evaluate", model, good)
    assert expected[0] == 0 and expected[2] == ""
    code, out, err = run(capsys, "evaluate", model, tmp_path / "bad.csv")
    assert code == 0 and out == expected[1] and "3 of 83 rows" in err and err.count("\n") == 1


def process(*arguments, stdout=subprocess.PIPE, **environment):
    command = [sys.executable, *map(str, arguments)]
    found = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=os.environ | environment, text=True, timeout=120
    )
    return found.returncode, found.stdout, found.stderr


@pytest.mark.long
def test_a_reader_that_has_left_and_a_device_that_is_not_there_are_one_line(folder):
    reader, writer = os.pipe()
    os.close(reader)
    prints = "import sys; from stochgp.cli import commands; commands.app = lambda *_, **__: print(1); "
    code, _, err = process("-c", prints + "sys.exit(commands.main())", stdout=writer)
    os.close(writer)
    assert (code, err) == (1, "stochgp: standard output was closed before the end of the output\n")
    arguments = ["-m", "stochgp", "evaluate", folder / "model", folder / "t.csv"]
    code, out, err = process(*arguments, JAX_PLATFORMS="cuda")
    assert code == 1 and out == "" and err.count("\n") == 1 and "JAX_PLATFORMS is 'cuda'" in err


def test_what_the_terminal_cannot_show_is_a_question_mark(monkeypatch):
    from stochgp.names import printable

    assert printable("σ² = 1") == "σ² = 1"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert printable("σ² = 1") == "?? = 1"
    main(["--version"])
    sys.stdout.write("σ\n")
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().endswith(b"?\n")


def test_numbers_of_settings_that_also_take_words(folder, tmp_path, capsys):
    from stochgp import GPRegressor
    from stochgp.cli.commands import parse_settings

    assert parse_settings(["point_mass=0.5", "random_state=3"], GPRegressor) == {
        "point_mass": 0.5,
        "random_state": 3,
    }
    assert parse_settings(["point_mass=auto"], GPRegressor) == {"point_mass": "auto"}
