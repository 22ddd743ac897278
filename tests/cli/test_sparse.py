"""The command line with sparse models: regression, and classes by text, booleans or as asked."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from numpy.testing import assert_allclose

import stochgp
from stochgp import SparseGPClassifier, SparseGPRegressor, metrics
from stochgp.cli import main
from stochgp.data import read_table
from stochgp.families.default_learners import SPARSE_LEARNERS
from stochgp.learners import SVGP

QUICK = ["--set=n_inducing=8"]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    learner = SVGP(16, learning_rate=0.1, steps=60)  # as many for any number of rows: one program
    monkeypatch.setattr("stochgp.families.classifier.CLASSIFIER", learner)
    monkeypatch.setitem(SPARSE_LEARNERS, "svgp", learner)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparse") / "table.csv"
    generator = np.random.default_rng(0)
    a = generator.normal(size=80)
    number = (a > 0).astype(np.int64) + (a > 0.7)
    columns = {
        "a": a,
        "text": np.array(["x", "y", "z"])[number],
        "number": number + 3,
        "count": number + 3,
        "yes": a > 0,
        "real": np.sin(a),
    }
    pa_csv.write_csv(pa.table(columns), path)
    return path


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def fitted(capsys, table, target, *more):
    """Fit column a to the target, once; return the report and the path of the model."""
    model, report = table.parent / f"{target}-model", table.parent / f"{target}-report"
    if report.exists():
        return json.loads(report.read_text()), model
    arguments = [
        "--target",
        target,
        "--inputs",
        "a",
        "--model",
        "sparse",
        "--out",
        model,
        "--quiet",
        "--json",
    ]
    report.write_text(run(capsys, "fit", table, *arguments, *QUICK, *more))
    return json.loads(report.read_text()), model


TARGETS = {"text": ([], ["x", "y", "z"]), "yes": ([], [0, 1]), "number": (["--task", "classes"], [3, 4, 5])}


@pytest.mark.parametrize("target", TARGETS)
def test_classes_are_predicted_with_their_probabilities(target, table, capsys):
    more, classes = TARGETS[target]
    report, path = fitted(capsys, table, target, "--test-fraction", "0.2", *more)
    assert report["n_train"] == 64 and report["n"] == 16
    assert {"elbo", "accuracy", "log_loss"} <= set(report)
    model = stochgp.load(path)
    assert isinstance(model, SparseGPClassifier) and list(model.classes_) == classes
    out = table.parent / "out.csv"
    run(capsys, "predict", path, table, "--out", out)
    found = read_table(out)
    assert found.column_names == ["class", *(f"probability_{label}" for label in classes)]
    p = np.stack([found[name].to_numpy() for name in found.column_names[1:]], axis=1)
    X = read_table(table).select(["a"])
    assert_allclose(p, model.predict_proba(X), rtol=1e-9)
    assert found["class"].to_pylist() == model.predict(X).tolist()
    scores = json.loads(run(capsys, "evaluate", path, table, "--json"))
    assert scores["n"] == 80
    labels = np.array(read_table(table)[target].to_pylist())
    labels = labels.astype(np.int64) if target == "yes" else labels
    assert scores["accuracy"] == pytest.approx(np.mean(model.predict(X) == labels))
    assert scores["log_loss"] == pytest.approx(metrics.log_loss(labels, np.log(p), model.classes_))
    assert scores["accuracy"] > 0.8


def test_numbers_are_a_regression(table, capsys):
    report, path = fitted(capsys, table, "real")
    assert report["noise_variance"] > 0 and "elbo" in report
    assert isinstance(stochgp.load(path), SparseGPRegressor)
    scores = json.loads(run(capsys, "evaluate", path, table, "--json"))
    assert set(scores) == {"n", "rmse", "nlpd", "crps", "coverage_95"} and scores["rmse"] < 0.2


def test_counts_are_predicted_as_counts(table, capsys):
    report, path = fitted(
        capsys, table, "count", "--set=likelihood=negative-binomial", "--test-fraction", "0.2"
    )
    assert report["noise_variance"] is None and report["nlpd"] < 5
    out = table.parent / "counts.csv"
    run(capsys, "predict", path, table, "--out", out, "--quantiles", "0.3")
    found = read_table(out)
    law = stochgp.load(path).predict_distribution(read_table(table).select(["a"]))
    assert_allclose(found["mean"].to_numpy(), law.mean, rtol=1e-9)
    for name in ("lower_95", "upper_95", "quantile_0.3"):
        assert np.all(found[name].to_numpy() == np.rint(found[name].to_numpy()))


def test_an_unknown_label_is_named(table, capsys):
    _, path = fitted(capsys, table, "text", "--test-fraction", "0.2")
    other = table.parent / "other.csv"
    pa_csv.write_csv(pa.table({"a": [0.1, 0.2], "text": ["x", "w"]}), other)
    assert main(["evaluate", str(path), str(other)]) == 2
    assert "label 'w' at row 2 is not one of the classes 'x', 'y', 'z'" in capsys.readouterr().err


def cells(column):
    """A table of 120 rows whose target has these cells, as text."""
    return "\n".join(["a,y", *(f"{i / 120},{cell}" for i, cell in enumerate(column))]) + "\n"


NUMBERS = [f"{i * 0.37:.2f}" for i in range(120)]
NO_CLASSES = {
    "one bad cell": ([*NUMBERS[:70], "n.b.", *NUMBERS[71:]], "not all: the first, 'n.b.', at data row 71"),
    "few rows, one bad cell": ([*NUMBERS[:19], "x"], "not all: the first, 'x', at data row 20"),
    "a label of its own for every row": ([f"name {i}" for i in range(120)], "120 different values"),
}


@pytest.mark.parametrize("name", NO_CLASSES)
@pytest.mark.parametrize("source", ["t.csv", "rows"])
def test_numbers_that_a_cell_spoils_are_no_classes(name, source, tmp_path, capsys):
    """Neither in one file nor in a folder: one line with what to write, and no model."""
    column, words = NO_CLASSES[name]
    path = tmp_path / source if source == "t.csv" else tmp_path / source / "1.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(cells(column))
    arguments = ["fit", tmp_path / source, "--target", "y", "--model", "sparse", "--out", tmp_path / "m"]
    assert main([str(a) for a in [*arguments, *QUICK, "--quiet"]]) == 2
    out, err = capsys.readouterr()
    assert words in err and "--task classes" in err and str(path) in err, err
    assert out == "" and err.count("\n") == 1 and not (tmp_path / "m").exists()


def test_labels_are_counted_over_all_files(tmp_path, capsys):
    (tmp_path / "rows").mkdir()
    for part in (0, 1):
        path = tmp_path / "rows" / f"{part}.csv"
        path.write_text(cells([f"name {part + i % 2}" for i in range(60)]))
    arguments = ["fit", tmp_path / "rows", "--target", "y", "--model", "sparse", "--out", tmp_path / "m"]
    assert len(fitted_labels(capsys, arguments)) == 3


def fitted_labels(capsys, arguments):
    run(capsys, *arguments, *QUICK, "--quiet", "--task", "classes")
    return stochgp.load(arguments[-1]).classes_


def test_the_task_that_is_asked_for_is_done(tmp_path, capsys):
    path, model = tmp_path / "t.csv", tmp_path / "m"
    path.write_text(cells([*(["1", "2", "B"] * 6), "1", "2"]))
    arguments = ["fit", path, "--target", "y", "--model", "sparse", "--out", model]
    assert main([str(a) for a in [*arguments, *QUICK]]) == 2
    assert "not all: the first, 'B', at data row 3" in capsys.readouterr().err
    assert list(fitted_labels(capsys, arguments)) == ["1", "2", "B"]
    assert main([str(a) for a in [*arguments, *QUICK, "--task", "numbers"]]) == 2
    assert "contains text ('B' at data row 3); the target must be numbers" in capsys.readouterr().err
