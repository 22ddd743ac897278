"""The command line with kernel models: hyperparameters as given, and what the report says."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from numpy.testing import assert_allclose

import stochgp
from stochgp.cli import main

GIVEN = ["--set", "learner=none", "--set", "noise_variance=0.02"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 60))
    table = pa.table({"a": a, "b": b, "t": 1e3 * (np.sin(a) + 0.3 * b + 0.1 * generator.normal(size=60))})
    pa_csv.write_csv(table, path / "table.csv")
    return path


def run(capsys, *arguments):
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def fit(capsys, folder, *arguments):
    """(the report of a fit of the table, standard error)."""
    command = ["fit", folder / "table.csv", "--target", "t", "--model", "kernel", "--out", folder / "model"]
    code, out, err = run(capsys, *command, *arguments)
    assert code == 0, err
    return out, err


def test_given_hyperparameters_are_kept_and_the_report_says_so(folder, capsys):
    arguments = [*GIVEN, "--test-fraction", "0.1", "--json", "--quiet"]
    report = json.loads(fit(capsys, folder, *arguments, "--new-rows", "after")[0])
    assert report["hyperparameters"] == "as given, nothing was learned"
    assert (report["solver"], report["variance"], report["prediction"]) == ("Cholesky", "exact", "global")
    assert report["converged"] is True and report["residual"] < 1e-6 and np.isfinite(report["nlml"])
    assert report["file_bytes"] == (folder / "model").stat().st_size and "rows" in report["file_holds"]
    assert (report["n"], report["n_train"]) == (6, 54)
    model = stochgp.load(folder / "model")
    assert model.learner is None and model.noise_variance == 0.02
    assert model.plan_["new_rows"]["choice"] == "after" and "as asked" in model.plan_["new_rows"]["why"]
    assert_allclose(report["noise_variance"], 0.02 * model._fitted.target_scale**2, rtol=1e-6)


def test_a_likelihood_that_is_not_known_is_null_or_left_out(folder, capsys):
    arguments = [*GIVEN, "--set", "solver=sdd", "--set", "n_samples=4"]
    report = json.loads(fit(capsys, folder, *arguments, "--json")[0])
    assert report["nlml"] is None and (report["solver"], report["variance"]) == ("SDD", "near rows")
    lines = fit(capsys, folder, *arguments)[0].splitlines()
    assert {line.split()[0] for line in lines} == set(report) - {"nlml"}


def test_a_kernel_model_predicts_and_evaluates_like_any_other(folder, capsys, tmp_path):
    fit(capsys, folder, "--set", "learner=none", "--set", "noise_variance=0.05")
    code, out, err = run(capsys, "evaluate", folder / "model", folder / "table.csv", "--json")
    assert (code, err) == (0, "")
    table = pa_csv.read_csv(folder / "table.csv")
    t, inputs = table["t"].to_numpy(), table.drop_columns(["t"])
    mean, std = stochgp.load(folder / "model").predict(inputs, return_std=True, include_noise=True)
    report = json.loads(out)
    assert_allclose(report["rmse"], np.sqrt(np.mean((t - mean) ** 2)), rtol=1e-9)
    nlpd = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((t - mean) / std) ** 2)
    assert_allclose(report["nlpd"], nlpd, rtol=1e-9)
    code, _, err = run(capsys, "predict", folder / "model", folder / "table.csv", "--out", tmp_path / "p.csv")
    assert code == 0 and np.array_equal(pa_csv.read_csv(tmp_path / "p.csv")["mean"], mean)
