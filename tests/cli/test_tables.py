"""The command line's tables: columns chosen and left out, files as they come, and messages that name the file."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

import stochgp
from stochgp.cli import main

BIKES = Path(__file__).parents[3] / "shared" / "data" / "bike_hourly" / "hour.csv.gz"
QUICK = ["--model", "kernel", "--set", "learner=none", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 40))
    table = {
        "id": np.arange(40),
        "a": a,
        "b": b,
        "kind": generator.choice(["p", "q"], 40),
        "y": np.sin(a) + b,
    }
    pa_csv.write_csv(pa.table(table), path / "t.csv")
    assert (
        main(["fit", str(path / "t.csv"), *f"--target y --ignore id,kind --out {path / 'm'}".split(), *QUICK])
        == 0
    )
    return path


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def complaint(capsys, *arguments):
    """The one line of a run that is refused."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    return err


def test_inputs_and_ignore_leave_the_same_model(folder, tmp_path, capsys):
    options = ["--target", "y", "--inputs", "b, a", "--ignore", "kind", "--out", tmp_path / "m"]
    code, _, err = run(capsys, "fit", folder / "t.csv", *options, *QUICK)
    assert code == 0, err
    models = [stochgp.load(path) for path in (folder / "m", tmp_path / "m")]
    assert [list(model.feature_names_in_) for model in models] == [["a", "b"]] * 2
    table = pa_csv.read_csv(folder / "t.csv").select(["a", "b"])
    np.testing.assert_array_equal(*(model.predict(table) for model in models))


def test_ignored_columns_may_be_there_or_not_at_predict(folder, tmp_path, capsys):
    table = pa_csv.read_csv(folder / "t.csv")
    pa_csv.write_csv(table.drop_columns(["id", "kind"]), tmp_path / "short.csv")
    for source, out in ((folder / "t.csv", "all.csv"), (tmp_path / "short.csv", "short_out.csv")):
        assert run(capsys, "predict", folder / "m", source, "--out", tmp_path / out) == (0, "", "")
        code, text, err = run(capsys, "evaluate", folder / "m", source, "--json")
        assert (code, err) == (0, "") and json.loads(text)["n"] == 40
    assert (tmp_path / "all.csv").read_text() == (tmp_path / "short_out.csv").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--inputs", "a,bb"], "--inputs: no column 'bb' in "),
        (["--inputs", "A"], "did you mean 'a'?"),
        (["--ignore", "idd"], "did you mean 'id'?"),
        (["--inputs", "a,y"], "--inputs contains 'y', which is the target"),
        (["--ignore", "y"], "--ignore contains 'y', which is the target"),
        (["--inputs", "a,b", "--ignore", "b"], "--inputs and --ignore both contain 'b'"),
        (["--ignore", "id,a,b,kind"], "no input columns remain besides the target 'y'"),
        (["--inputs", "a,,b"], "expected column names separated by commas"),
        (["--set", "missing=drop"], "unknown missing 'drop'"),
        (["--set", "mean=nan"], "mean is nan; it must be None, 'linear', 'trees' or a finite number"),
    ],
)
def test_choices_of_columns_that_cannot_be_made(folder, tmp_path, capsys, options, message):
    arguments = ["fit", folder / "t.csv", "--target", "y", *options, "--out", tmp_path / "m", *QUICK]
    assert message in complaint(capsys, *arguments) and not (tmp_path / "m").exists()


HEADER, ROWS = " a , b,y\n", [f"{i / 7},{i % 3},{i}" for i in range(12)]


def put(path, row, text):
    """A table whose `row`, counted from 1, is the text."""
    path.write_text(HEADER + "\n".join(ROWS[: row - 1] + [text] + ROWS[row:]) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("?,1,2", "column 'a' has 1 missing or infinite value, at data row 5: missing"),
        ("1,1,NA", "target column 'y' has 1 missing or infinite value, at data row 5"),
        ("1,1e999,2", "column 'b' has 1 missing or infinite value, at data row 5: inf"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--test-fraction", "0.3"]])
def test_what_is_wrong_with_a_file_names_file_column_and_row(tmp_path, capsys, text, message, options):
    path = put(tmp_path / "t.csv", 5, text)
    arguments = ["fit", path, "--target", "y", "--out", tmp_path / "m", *QUICK, *options]
    err = complaint(capsys, *arguments, "--set", "missing=refuse")
    assert err.startswith(f"stochgp: {path}") and message in err


def test_missing_values_are_imputed_unless_they_are_to_be_refused(tmp_path, capsys):
    path, whole = put(tmp_path / "t.csv", 5, "?,1,2"), put(tmp_path / "whole.csv", 5, "1,1,2")
    command = ["fit", "--target", "y", "--out", tmp_path / "m", *QUICK]
    assert run(capsys, *command[:1], path, *command[1:])[0] == 0
    model = stochgp.load(tmp_path / "m")
    assert model._fitted.encoder.output_names == ("a", "a=(missing)", "b")
    assert run(capsys, "predict", tmp_path / "m", path, "--out", tmp_path / "p.csv")[0] == 0
    assert run(capsys, *command[:1], whole, *command[1:], "--set", "missing=refuse")[0] == 0
    for arguments in (
        ["predict", tmp_path / "m", path, "--out", tmp_path / "p.csv"],
        ["evaluate", tmp_path / "m", path],
    ):
        assert complaint(capsys, *arguments).startswith(f"stochgp: {path}: column 'a' has 1 missing")


def test_a_file_as_people_have_it_is_fitted_with_notes_on_stderr(tmp_path, capsys):
    """Semicolons, decimal commas, an index without a name, prices in euros, rows without a target or any value."""
    rows = [f"{i};{i // 7},{i % 7};{1 + i % 28}.{1 + i // 28}.2020;{100 + i},50 €" for i in range(60)]
    rows[7] = rows[7].rpartition(";")[0] + ";"
    (tmp_path / "t.csv").write_text(
        ";größe;tag;preis\n" + "\n".join([*rows, ";;;"]) + "\n", encoding="cp1252"
    )
    options = ["--target", "preis", "--out", tmp_path / "m", "--json", *QUICK[:-1]]
    code, out, err = run(capsys, "fit", tmp_path / "t.csv", *options)
    assert code == 0, err
    assert "column 'Unnamed: 0': ignored: it contains only row numbers" in err
    assert "2 rows of 61 are ignored: 2 without a target (the first: data row 8)" in err
    assert json.loads(out)["n_train"] == 61
    model = stochgp.load(tmp_path / "m")
    assert model._fitted.encoder.output_names == ("größe", "tag.days", "tag.weekday")
    assert model.n_rows_ == 59 and 90 < model._fitted.targets.mean < 170
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    assert code == 0 and pa_csv.read_csv(tmp_path / "p.csv").num_rows == 61


def test_what_changes_numbers_is_on_stderr_even_of_a_quiet_run(tmp_path, capsys):
    """Cells that cannot be read, at fit and at predict; a file of decimal commas is read as it is meant, the target too."""
    rows = [f"{i % 9},125;{i},5;{20 + i % 7},250" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a;b;y", *rows, "see note;1,5;20,5"]))
    options = ["--target", "y", "--out", tmp_path / "m", *QUICK]
    code, _, err = run(capsys, "fit", tmp_path / "t.csv", *options)
    said = "stochgp: note: column 'a': 1 value(s) that are not numbers are treated as missing, the first, 'see note', at data row"
    assert code == 0 and f"{said} 61" in err
    assert 20 < stochgp.load(tmp_path / "m")._fitted.targets.mean < 27
    (tmp_path / "new.csv").write_text("\n".join(["a;b", "see note;1,5", "3,125;2,5"]))
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert code == 0 and f"{said} 1" in err
    (tmp_path / "new.csv").write_text("\n".join(["a;b", "see note;1,5", "none at all;2,5"]))
    err = complaint(capsys, "predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "column 'a' contained numbers at fit and contains text now: 'see note' at data row 1" in err


def test_the_bikes_of_every_hour_as_the_file_comes(tmp_path, capsys):
    if not BIKES.is_file():
        pytest.skip(f"{BIKES} is not there: the original file of UCI's data set 275, Bike Sharing")
    with gzip.open(BIKES, "rt") as file:
        header, *lines = file.read().splitlines()
    (tmp_path / "hour.csv").write_text("\n".join([header, *lines[::60]]) + "\n")
    options = ["--target", "cnt", "--ignore", "instant,casual,registered", "--out", tmp_path / "m", *QUICK]
    code, out, err = run(capsys, "fit", tmp_path / "hour.csv", *options, "--test-fraction", "0.2", "--json")
    assert (code, err) == (0, "")
    report, model = json.loads(out), stochgp.load(tmp_path / "m")
    assert model._fitted.encoder.output_names[:3] == ("dteday.days", "dteday.yearday", "dteday.weekday")
    assert report["n_train"] + report["n"] == 290
    assert report["rmse"] < np.std(pa_csv.read_csv(tmp_path / "hour.csv")["cnt"])
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "hour.csv", "--out", tmp_path / "p.csv")
    assert (code, err) == (0, "")
    bad = (tmp_path / "hour.csv").read_text().replace(lines[60].split(",")[1], "yesterday", 1)
    (tmp_path / "bad.csv").write_text(bad)
    model.set_params(verbose=1).save(tmp_path / "m")
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "bad.csv", "--out", tmp_path / "p.csv")
    assert code == 0 and "column 'dteday'" in err and "the first, 'yesterday', at data row 2" in err
