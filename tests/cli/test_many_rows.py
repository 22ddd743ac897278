"""Folders and large files through the command line: the same answers as of one table in memory, block by block."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import pytest

import stochgp
from stochgp import budget, data
from stochgp.cli import main
from stochgp.cli.rows import is_large
from stochgp.learners import SVGP
from stochgp.tables import files as files_module

QUICK = ["--model", "feature", "--set", "features=linear"]
A_FIFTH_ASIDE = "--test-fraction", "0.2", "--json", "--quiet"
N = 600


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("stochgp.families.classifier.CLASSIFIER", SVGP(epochs=5, learning_rate=0.03))
    monkeypatch.setattr(files_module, "BLOCK_ROWS", 100)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    a, level = rng.normal(size=N), rng.choice(["low", "high"], N)
    y = np.sin(2 * a) + (level == "low") + 0.1 * rng.normal(size=N)
    return pa.table({"a": a, "noise": rng.normal(size=N), "level": level, "y": y})


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    (folder / "rows").mkdir()
    for part in range(3):
        pa_parquet.write_table(rows.slice(part * 200, 200), folder / "rows" / f"{part}.parquet")
    pa_csv.write_csv(rows, folder / "rows.csv")
    arguments = [
        "fit",
        folder / "rows",
        "--target",
        "y",
        "--ignore",
        "noise",
        "--out",
        folder / "model",
        "--test-fraction",
        "0.2",
    ]
    assert main([str(a) for a in [*arguments, *QUICK, "--quiet"]]) == 0
    return folder


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_predictions_of_a_folder_are_those_of_its_tables(folder, rows, tmp_path, capsys):
    assert run(capsys, "predict", folder / "model", folder / "rows", "--out", tmp_path / "p.parquet")[0] == 0
    written = data.read_table(tmp_path / "p.parquet")
    model = stochgp.load(folder / "model")
    mean, std = model.predict(rows.drop_columns(["y", "noise"]), return_std=True, include_noise=True)
    np.testing.assert_array_equal(written["mean"], mean)
    np.testing.assert_array_equal(written["std"], std)


def test_scores_of_a_folder_are_those_of_one_table(folder, capsys):
    of_folder = json.loads(run(capsys, "evaluate", folder / "model", folder / "rows", "--json")[1])
    of_table = json.loads(run(capsys, "evaluate", folder / "model", folder / "rows.csv", "--json")[1])
    assert of_folder == pytest.approx(of_table, rel=1e-12)


def test_rows_set_aside_are_scored_and_not_learned_from(folder, rows, tmp_path, capsys):
    arguments = "--target", "y", "--out", tmp_path / "m", *A_FIFTH_ASIDE, *QUICK
    report = json.loads(run(capsys, "fit", folder / "rows", *arguments)[1])
    assert report["n"] + report["n_train"] == N
    assert abs(report["n"] - 0.2 * N) < 4 * np.sqrt(N * 0.16)
    encoder = stochgp.load(tmp_path / "m")._fitted.encoder
    _, aside = data.FileSource.of(folder / "rows").divided(0.2, 0)
    assert sum(len(rows.y) for rows in replace(aside, encoder=encoder, target="y").read()) == report["n"]


def test_rows_without_a_target_are_left_out_of_fit_and_its_scores(rows, tmp_path, capsys):
    y = rows["y"].to_numpy().copy()
    y[::60] = np.nan
    spoilt = rows.set_column(3, "y", pa.array(y, from_pandas=True)).append_column("w", pa.array(np.ones(N)))
    pa_csv.write_csv(spoilt, tmp_path / "rows.csv")
    arguments = [
        "fit",
        tmp_path / "rows.csv",
        "--target",
        "y",
        "--test-fraction",
        "0.3",
        "--out",
        tmp_path / "m",
    ]
    code, out, err = run(capsys, *arguments, "--weight", "w", "--json", "--quiet", *QUICK)
    report = json.loads(out)
    assert code == 0 and report["n"] + report["n_train"] == N - 10
    train, _ = data.FileSource.of(tmp_path / "rows.csv", weight="w").divided(0.3, 0)
    n_unused = sum(block.table["y"].null_count for block in train)
    assert stochgp.load(tmp_path / "m").plan_["unused_rows"]["choice"] == n_unused > 0
    code, out, err = run(capsys, *arguments, "--quiet", *QUICK, "--set", "missing=refuse")
    assert (code, out) == (2, "") and "'y' has 10 missing" in err


def test_weights_are_no_inputs_and_groups_stay_on_one_side(rows, tmp_path, capsys):
    """The rows set aside are whole days; of weights 0 and 1 the model is that of the rows of weight 1."""
    day, weight = np.arange(N) // 20, np.arange(N) % 2
    table = rows.append_column("day", pa.array([f"d{d}" for d in day])).append_column("w", pa.array(weight))
    pa_csv.write_csv(table, tmp_path / "rows.csv")
    options = [
        "--target",
        "y",
        "--test-fraction",
        "0.3",
        "--split-by",
        "day",
        "--ignore",
        "noise,day",
        "--weight",
        "w",
    ]

    def fitted(name):
        arguments = [
            tmp_path / f"{name}.csv",
            *options,
            "--out",
            tmp_path / name,
            "--json",
            "--quiet",
            *QUICK,
        ]
        code, out, err = run(capsys, "fit", *arguments)
        assert code == 0, err
        return json.loads(out), stochgp.load(tmp_path / name)

    report, model = fitted("rows")
    assert report["n"] % 20 == 0 and 0 < report["n"] < N
    assert report["n_train"] == (N - report["n"]) / 2
    assert list(model.feature_names_in_) == ["a", "level"]
    pa_csv.write_csv(table.filter(pa.array(weight == 1)), tmp_path / "half.csv")
    some = rows.slice(0, 50).drop_columns(["y", "noise"])
    np.testing.assert_array_equal(fitted("half")[1].predict(some), model.predict(some))
    assert (
        run(capsys, "predict", tmp_path / "rows", tmp_path / "rows.csv", "--out", tmp_path / "p.csv")[0] == 0
    )
    code, _, err = run(
        capsys, "fit", tmp_path / "rows.csv", *options[:-1], "v", "--out", tmp_path / "m", "--quiet"
    )
    assert code == 2 and "no column 'v'" in err


@pytest.mark.parametrize(("target", "more"), [("level", []), ("number", ["--task", "classes"])])
def test_classes_of_a_folder_are_those_of_one_table(target, more, rows, folder, tmp_path, capsys):
    """Learned, set aside, predicted and scored block by block: the rows set aside are those that the fit did not see."""
    number = (rows["a"].to_numpy() > 0).astype(np.int64) + 3
    table = rows.append_column("number", pa.array(number))
    (tmp_path / "rows").mkdir()
    for part in range(3):
        pa_parquet.write_table(table.slice(part * 200, 200), tmp_path / "rows" / f"{part}.parquet")
    arguments = "--model", "sparse", "--target", target, "--out", tmp_path / "m", *A_FIFTH_ASIDE
    quick = ["--set=n_inducing=8", *more]
    code, out, err = run(capsys, "fit", tmp_path / "rows", *arguments, *quick)
    report = json.loads(out)
    assert (
        code == 0 and report["n"] + report["n_train"] == N and {"accuracy", "log_loss", "elbo"} <= set(report)
    ), err
    model = stochgp.load(tmp_path / "m")
    assert isinstance(model, stochgp.SparseGPClassifier)
    assert run(capsys, "predict", tmp_path / "m", tmp_path / "rows", "--out", tmp_path / "p.parquet")[0] == 0
    assert (
        data.read_table(tmp_path / "p.parquet")["class"].to_pylist()
        == model.predict(table.drop_columns([target])).tolist()
    )
    scores = json.loads(run(capsys, "evaluate", tmp_path / "m", tmp_path / "rows", "--json")[1])
    labels = data.label_column(table, target)
    assert scores["n"] == N and scores["accuracy"] == pytest.approx(
        np.mean(model.predict(table.drop_columns([target])) == labels)
    )


def test_a_large_file_is_read_block_by_block(folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("stochgp.cli.rows.MAX_SHARE", 0.0)
    assert run(capsys, "predict", folder / "model", folder / "rows.csv", "--out", tmp_path / "p.csv")[0] == 0
    whole = data.read_table(tmp_path / "p.csv")
    monkeypatch.undo()
    assert run(capsys, "predict", folder / "model", folder / "rows.csv", "--out", tmp_path / "q.csv")[0] == 0
    for name in ("mean", "std"):
        np.testing.assert_array_equal(whole[name], data.read_table(tmp_path / "q.csv")[name])


def test_a_fault_of_any_file_is_named_with_the_file_and_its_row(rows, folder, tmp_path, capsys):
    """At predict and evaluate as at fit, where such values are to be refused; the second file's third block has it."""
    strict = [*QUICK, "--set", "missing=refuse", "--quiet"]
    whole = ["fit", folder / "rows", "--target", "y", "--ignore", "noise", "--out", tmp_path / "model"]
    assert run(capsys, *whole, *strict)[0] == 0
    (tmp_path / "bad").mkdir()
    pa_parquet.write_table(rows.slice(0, 200), tmp_path / "bad" / "0.parquet")
    a, y = (rows[name].to_numpy().copy() for name in ("a", "y"))
    for column, name in ((a, "a"), (y, "y")):
        values = column.copy()
        values[450] = np.inf
        changed = rows.set_column(rows.column_names.index(name), name, pa.array(values)).slice(200, 400)
        pa_parquet.write_table(changed, tmp_path / "bad" / "1.parquet")
        place = f"{tmp_path / 'bad' / '1.parquet'}: "
        calls = {
            "predict": [tmp_path / "model", tmp_path / "bad", "--out", tmp_path / "p.csv"],
            "evaluate": [tmp_path / "model", tmp_path / "bad"],
            "fit": [tmp_path / "bad", "--target", "y", "--out", tmp_path / "m", *strict],
        }
        for command, arguments in calls.items():
            code, _, err = run(capsys, command, *arguments)
            if (command, name) != ("predict", "y"):  # which reads no target
                assert code == 2 and place in err and "data row 251" in err and err.count("\n") == 1, err


def test_a_small_file_of_much_content_is_large(tmp_path):
    """A million zeros: 24 MB of numbers, in files of a few kB; a tenth of 100 MB is what a table may take."""
    limit = budget.in_use() + 100_000_000
    pa_parquet.write_table(pa.table({"a": np.zeros(1_000_000)}), tmp_path / "t.parquet")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a\n" + b"0\n" * 4_000_000))
    for name in ("t.parquet", "t.csv.gz"):
        assert (tmp_path / name).stat().st_size < 100_000
        assert is_large(str(tmp_path / name), limit) and not is_large(str(tmp_path / name), 100 * limit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "R", "--out", "O"], "--target"),
        (["fit", "R", "--target", "z", "--out", "O"], "no column 'z'"),
        (["fit", "R", "--target", "y", "--inputs", "b", "--out", "O"], "no column 'b'"),
        (["evaluate", "M", "R", "--target", "z"], "column 'z' is not in the table"),
    ],
)
def test_faults_of_folders_are_one_line(folder, tmp_path, capsys, arguments, message):
    names = {"R": folder / "rows", "M": folder / "model", "O": tmp_path / "out"}
    code, out, err = run(capsys, *(names.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()
