"""The command line: results, exit codes, one line of complaint, nothing written over."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from quick_members import QUICK as QUICK_MEMBERS
from quick_members import member

import stochgp
from stochgp.cli import main
from stochgp.cli.commands import parse_settings
from stochgp.learners import SVGP

QUICK = ["--model", "feature", "--set=features=linear"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    generator = np.random.default_rng(0)
    x, kind = generator.normal(size=200), generator.choice(["p", "q"], 200)
    late = np.sin(x) + (kind == "p") + 0.1 * generator.normal(size=200)
    pa_csv.write_csv(pa.table({"x": x, "kind": kind, "late": late}), path / "table.csv")
    assert (
        main(
            [
                "fit",
                str(path / "table.csv"),
                "--target",
                "late",
                "--out",
                str(path / "model"),
                "--quiet",
                *QUICK,
            ]
        )
        == 0
    )
    return path


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_fit_reports_one_json_object_with_the_scores_of_the_rows_set_aside(folder, tmp_path, capsys):
    arguments = [
        "--target",
        "late",
        "--out",
        tmp_path / "m",
        "--test-fraction",
        "0.1",
        "--json",
        "--seed",
        "3",
        *QUICK,
    ]
    code, out, err = run(capsys, "fit", folder / "table.csv", *arguments)
    report = json.loads(out)
    assert code == 0 and report["n"] == 20 and report["n_train"] == 180 and "NLML" in err
    assert {"rmse", "nlpd", "crps", "coverage_95", "nlml", "converged", "seconds"} <= set(report)
    model = stochgp.load(tmp_path / "m")
    assert model.target_name_ == "late" and model.random_state == 3


def test_predict_writes_intervals_of_observations(folder, tmp_path, capsys):
    code, out, err = run(
        capsys, "predict", folder / "model", folder / "table.csv", "--out", tmp_path / "p.csv"
    )
    assert (code, out, err) == (0, "", "")
    written = pa_csv.read_csv(tmp_path / "p.csv")
    assert written.column_names == ["mean", "std", "lower_95", "upper_95"]
    table = pa_csv.read_csv(folder / "table.csv").drop_columns(["late"])
    mean, std = stochgp.load(folder / "model").predict(table, return_std=True, include_noise=True)
    np.testing.assert_array_equal(written["mean"], mean)
    np.testing.assert_array_equal(written["std"], std)
    np.testing.assert_allclose(np.asarray(written["upper_95"]) - mean, 1.959964 * std, rtol=1e-6)


def test_predict_writes_the_quantiles_asked_for(folder, tmp_path, capsys):
    paths = ("predict", folder / "model", folder / "table.csv", "--out", tmp_path / "q.csv")
    assert run(capsys, *paths, "--quantiles", "0.1,0.5")[0] == 0
    written = pa_csv.read_csv(tmp_path / "q.csv")
    assert written.column_names[4:] == ["quantile_0.1", "quantile_0.5"]
    table = pa_csv.read_csv(folder / "table.csv").drop_columns(["late"])
    wanted = stochgp.load(folder / "model").predict_quantiles(table, [0.1, 0.5])
    np.testing.assert_array_equal(np.stack([written[name] for name in written.column_names[4:]], 1), wanted)
    for wrong in ("10,90", "a"):
        code, _, err = run(capsys, *paths, "--quantiles", wrong)
        assert code == 2 and "between 0 and 1" in err


def test_evaluate_prints_the_five_numbers(folder, capsys):
    code, out, err = run(capsys, "evaluate", folder / "model", folder / "table.csv", "--json")
    report = json.loads(out)
    assert code == 0 and err == ""
    assert list(report) == ["n", "rmse", "nlpd", "crps", "coverage_95"] and report["n"] == 200
    code, out, _ = run(capsys, "evaluate", folder / "model", folder / "table.csv")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(report)


def test_evaluate_draws_a_report(folder, capsys, tmp_path):
    given = ["evaluate", folder / "model", folder / "table.csv", "--json"]
    plain = run(capsys, *given)
    drawn = run(capsys, *given, "--report", tmp_path / "report.png")
    assert drawn[:2] == plain[:2]
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run(capsys, *given, "--report", tmp_path / "report.doc")
    assert code == 2
    assert "type of plot" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "T", "--target", "lte", "--out", "O"], "did you mean 'late'"),
        (["fit", "T", "--out", "O"], "--target"),
        (
            ["fit", "T", "--target", "late", "--out", "O", "--task", "classes", "--model", "kernel"],
            "use --model auto or sparse",
        ),
        (["fit", "T", "--target", "late", "--out", "O", "--model", "featur"], "did you mean 'feature'"),
        (
            ["fit", "T", "--target", "late", "--out", "O", "--model", "feature", "--set", "feature=rff"],
            "did you mean 'features'",
        ),
        (
            ["fit", "T", "--target", "late", "--out", "O", "--model", "feature", "--set", "n_features=three"],
            "a whole number",
        ),
        (["fit", "T", "--target", "late", "--out", "O", "--set", "learner"], "expected name=value"),
        (["fit", "T", "--target", "late", "--out", "O", "--test-fraction", "2"], "between 0 and 1"),
        (
            ["fit", "T", "--target", "late", "--out", "O", "--time-order", "forcast"],
            "did you mean 'forecast'",
        ),
        (["fit", "T", "--target", "late", "--out", "O/none/m"], "there is no folder"),
        (["fit", "T", "--target", "late"], "--out"),
        (["fit", "T", "--trget", "late", "--out", "O"], "--target"),
        (["fit", "none.csv", "--target", "late", "--out", "O"], "no such file"),
        (["predict", "T", "T", "--out", "O"], "not a file of stochgp"),
        (["predict", "none", "T", "--out", "O"], "none: No such file"),
        (["predict", "M", "T", "--out", "O.txt"], "unknown file type '.txt'"),
        (["evaluate", "M", "T", "--target", "lat"], "did you mean 'late'"),
        (["evaluat", "M", "T"], "evaluate"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_writes_nothing(
    folder, tmp_path, capsys, arguments, message
):
    out = tmp_path / "out"
    out.write_text("precious")
    names = {
        "T": folder / "table.csv",
        "M": folder / "model",
        "O": out,
        "O.txt": f"{out}.txt",
        "O/none/m": tmp_path / "none" / "m",
    }
    code, stdout, stderr = run(capsys, *(names.get(argument, argument) for argument in arguments))
    assert code == 2 and stdout == "" and stderr.count("\n") == 1 and message in stderr
    assert out.read_text() == "precious" and list(tmp_path.iterdir()) == [out]


def test_unseen_levels_and_missing_columns_are_named(folder, tmp_path, capsys):
    table = pa_csv.read_csv(folder / "table.csv")
    pa_csv.write_csv(table.drop_columns(["x"]), tmp_path / "short.csv")
    code, _, err = run(
        capsys, "predict", folder / "model", tmp_path / "short.csv", "--out", tmp_path / "p.csv"
    )
    assert code == 2 and "'x'" in err and not (tmp_path / "p.csv").exists()
    pa_csv.write_csv(table.append_column("more", [list(range(200))]), tmp_path / "long.csv")
    code, _, err = run(
        capsys, "predict", folder / "model", tmp_path / "long.csv", "--out", tmp_path / "p.csv"
    )
    assert code == 0 and "'more'" in err and err.count("\n") == 1


def test_settings_have_the_types_of_the_parameters():
    pairs = [
        "n_features=32",
        "time_limit=1e-3",
        "standardize=false",
        "kernel=none",
        "features=orf",
        "memory_limit=1GB",
    ]
    assert parse_settings(pairs, stochgp.FeatureGPRegressor) == {
        "n_features": 32,
        "time_limit": 0.001,
        "standardize": False,
        "kernel": None,
        "features": "orf",
        "memory_limit": "1GB",
    }


@pytest.mark.long
def test_an_interrupt_ends_the_fit_and_the_model_is_written(folder, tmp_path):
    # A shell starts background jobs, such as a run of these tests, with interrupts ignored, and children inherit that.
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from stochgp.cli import main; sys.exit(main())"
    )
    out, x = tmp_path / "model", np.random.default_rng(0).normal(size=20_000)
    pa_csv.write_csv(pa.table({"x": x, "late": np.sin(x)}), tmp_path / "many.csv")
    files = [tmp_path / "many.csv", "--target", "late", "--out", out, "--checkpoint", tmp_path / "c"]
    arguments = [
        "fit",
        *map(str, files),
        "--json",
        "--model",
        "feature",
        "--set=features=rff",
        "--set=n_features=20",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", start, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not (tmp_path / "c").exists():  # the first evaluation
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stdout == "" and stderr.splitlines()[-1] == f"stochgp: interrupted; the model so far is in {out}"
    found = stochgp.load(out)
    assert np.isfinite(found.nlml_) and not found.converged_


def test_without_a_model_s_name_members_are_pooled_and_labels_are_classes(
    folder, tmp_path, capsys, monkeypatch
):
    smooth = member(stochgp.SparseGPClassifier, "rbf", 8, learner=SVGP(steps=20, batch_size=64))
    monkeypatch.setattr("stochgp.pools.regressor.REGRESSORS", QUICK_MEMBERS)
    monkeypatch.setattr("stochgp.pools.classifier.CLASSIFIERS", {"smooth": smooth})
    monkeypatch.setattr(
        "stochgp.pools.classifier.SHORTER_FOLDS", 1
    )  # other numbers of steps are compiled too
    arguments = ["fit", folder / "table.csv", "--out", tmp_path / "m", "--json", "--quiet"]
    code, out, err = run(capsys, *arguments, "--target", "late", "--set", "members=kernel")
    assert code == 2 and "members" in err
    code, out, err = run(capsys, *arguments, "--target", "late")
    assert code == 0 and set(json.loads(out)["members"]) <= {"kernel", "trees"}, err
    assert isinstance(stochgp.load(tmp_path / "m"), stochgp.GPRegressor)
    code, out, err = run(capsys, *arguments, "--target", "kind")
    assert code == 0 and json.loads(out)["members"] == {"smooth": 1.0}, err
    assert list(stochgp.load(tmp_path / "m").classes_) == ["p", "q"]
