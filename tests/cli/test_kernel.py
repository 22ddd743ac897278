"""The command line with kernel models: hyperparameters from files, and what the report says."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from numpy.testing import assert_allclose

import stochgp
from stochgp import FeatureGPRegressor, KernelGPRegressor
from stochgp.cli import main
from stochgp.cli.settings import read_hyperparameters, with_hyperparameters

GIVEN = {"kernel": "matern32", "lengthscale": [1.0, 3.0], "variance": 0.8, "noise_variance": 0.02}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 60))
    table = pa.table({"a": a, "b": b, "t": 1e3 * (np.sin(a) + 0.3 * b + 0.1 * generator.normal(size=60))})
    pa_csv.write_csv(table, path / "table.csv")
    (path / "given.json").write_text(json.dumps(GIVEN))
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
    arguments = ["--hyperparameters", folder / "given.json", "--test-fraction", "0.1", "--json", "--quiet"]
    report = json.loads(fit(capsys, folder, *arguments, "--new-rows", "after")[0])
    assert report["hyperparameters"] == "as given, nothing was learned"
    assert (report["solver"], report["variance"], report["prediction"]) == ("Cholesky", "exact", "global")
    assert report["converged"] is True and report["residual"] < 1e-6 and np.isfinite(report["nlml"])
    assert report["file_bytes"] == (folder / "model").stat().st_size and "rows" in report["file_holds"]
    assert (report["n"], report["n_train"]) == (6, 54)
    model = stochgp.load(folder / "model")
    assert model.learner is None and model.noise_variance == 0.02
    assert model.plan_["new_rows"]["choice"] == "after" and "as asked" in model.plan_["new_rows"]["why"]
    assert_allclose(model.kernel_.lengthscale, [1.0, 3.0], rtol=1e-6)
    assert_allclose(report["noise_variance"], 0.02 * model._fitted.target_scale**2, rtol=1e-6)


def test_a_likelihood_that_is_not_known_is_null_or_left_out(folder, capsys):
    arguments = ["--hyperparameters", folder / "given.json", "--set", "solver=sdd", "--set", "n_samples=4"]
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


def test_learning_starts_from_the_file_where_a_setting_asks_for_it(folder, capsys):
    arguments = ["--hyperparameters", folder / "given.json", "--set", "epochs=2", "--json"]
    report = json.loads(fit(capsys, folder, *arguments)[0])
    assert report["hyperparameters"] == "learned by FullBatch" and report["n_iter"] == 2
    kernel = stochgp.load(folder / "model").kernel_
    assert not np.allclose(kernel.lengthscale, [1.0, 3.0])


def test_settings_of_learning_decide_whether_given_values_are_kept(folder):
    path = str(folder / "given.json")
    kept = with_hyperparameters({"solver": "sdd"}, path, KernelGPRegressor)
    assert kept["learner"] is None and kept["noise_variance"] == 0.02 and kept["solver"] == "sdd"
    for setting in ({"learner": "bsgd"}, {"epochs": 3}, {"batch_size": 8}):
        found = with_hyperparameters(setting, path, KernelGPRegressor)
        assert {name: found[name] for name in setting} == setting and found.get("learner", "") is not None
    with pytest.raises(ValueError, match="noise_variance is given twice"):
        with_hyperparameters({"noise_variance": 1.0}, path, KernelGPRegressor)


@pytest.mark.parametrize(
    ("content", "estimator", "message"),
    [
        ('{"lengthscales": 1}', FeatureGPRegressor, "did you mean 'lengthscale'"),
        ('{"noise_varianc": 1}', KernelGPRegressor, "did you mean 'noise_variance'"),
        ('{"noise_variance": 1}', FeatureGPRegressor, "a feature model learns it"),
        ('{"kernel": "matern"}', KernelGPRegressor, "did you mean 'matern"),
        ('{"noise_variance": -1}', KernelGPRegressor, "noise_variance is -1; it must be a positive number"),
        ('{"noise_variance": true}', KernelGPRegressor, "it must be a positive number"),
        ('{"lengthscale": -1}', KernelGPRegressor, "lengthscale is -1; it must be a positive number"),
        ('{"lengthscale": [1, "wide"]}', KernelGPRegressor, "lengthscale contains 'wide'"),
        ('{"kernel": "linear", "lengthscale": 1}', KernelGPRegressor, "'lengthscale'"),
        ("[1]", KernelGPRegressor, "expected an object"),
        ("{", KernelGPRegressor, "not a JSON file"),
    ],
)
def test_a_file_that_gives_no_hyperparameters_is_refused_in_one_line(tmp_path, content, estimator, message):
    path = tmp_path / "h.json"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        read_hyperparameters(str(path), estimator)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_kernel_of_a_file_that_does_not_say_is_that_of_the_model(tmp_path):
    path = tmp_path / "h.json"
    path.write_text('{"lengthscale": [1.0, 2.0], "variance": 3.0}')
    found = read_hyperparameters(str(path), FeatureGPRegressor)
    assert isinstance(found["kernel"], stochgp.kernels.RBF) and set(found) == {"kernel"}
    assert_allclose(found["kernel"].lengthscale, [1.0, 2.0], rtol=1e-6)
    found = read_hyperparameters(str(path), KernelGPRegressor)
    assert isinstance(found["kernel"], stochgp.kernels.Matern32)
