"""The command line with kernel models: hyperparameters from files, what the report says, and test rows that stay unseen."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from numpy.testing import assert_allclose

import stochgp
from stochgp import FeatureGPRegressor, KernelGPRegressor
from stochgp.cli import main
from stochgp.cli.hyperparameters import read_hyperparameters, with_hyperparameters

GIVEN = {"kernel": "matern32", "lengthscale": [1.0, 3.0], "variance": 0.8, "noise_variance": 0.02}
PUBLISHED = {
    "pol": {"0": {"noise_std": 0.1, "signal_std": 0.5, "lengthscale": [1.0, 2.0]}},
    "bike": {"0": {"noise_std": 0.1, "signal_std": 0.5, "lengthscale": [1.0], "lenghtscale": 2}, "1": {}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 60))
    table = pa.table({"a": a, "b": b, "t": 1e3 * (np.sin(a) + 0.3 * b + 0.1 * generator.normal(size=60))})
    pa_csv.write_csv(table, path / "table.csv")
    (path / "given.json").write_text(json.dumps(GIVEN))
    (path / "published.json").write_text(json.dumps(PUBLISHED))
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
    assert report["nlml"] is None and (report["solver"], report["variance"]) == ("SDD", "samples")
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
    kept = with_hyperparameters({"solver": "sdd"}, path, "table.csv", KernelGPRegressor)
    assert kept["learner"] is None and kept["noise_variance"] == 0.02 and kept["solver"] == "sdd"
    for setting in ({"learner": "bsgd"}, {"epochs": 3}, {"batch_size": 8}):
        found = with_hyperparameters(setting, path, "table.csv", KernelGPRegressor)
        assert {name: found[name] for name in setting} == setting and found.get("learner", "") is not None
    with pytest.raises(ValueError, match="noise_variance is given twice"):
        with_hyperparameters({"noise_variance": 1.0}, path, "table.csv", KernelGPRegressor)


def test_published_standard_deviations_are_squared_and_chosen_by_the_named_set(folder):
    found = read_hyperparameters(str(folder / "published.json"), "uci:pol:0", KernelGPRegressor)
    assert isinstance(found["kernel"], stochgp.kernels.Matern32)
    assert_allclose(float(found["kernel"].variance), 0.25, rtol=1e-6)
    assert_allclose(found["kernel"].lengthscale, [1.0, 2.0], rtol=1e-6)
    assert_allclose(found["noise_variance"], 0.01, rtol=1e-12)


@pytest.mark.parametrize(
    ("source", "estimator", "message"),
    [
        ("uci:poll:0", KernelGPRegressor, "no set 'poll'; did you mean 'pol'"),
        ("uci:pol:3", KernelGPRegressor, "pol, split 3: no such entry (there are '0')"),
        ("uci:bike:0", KernelGPRegressor, "'lenghtscale'; did you mean 'lengthscale'"),
        ("uci:bike:1", KernelGPRegressor, "'noise_std' is missing"),
        ("table.csv", KernelGPRegressor, "DATA must be one of these, such as uci:pol:0"),
        ("uci:pol:0", FeatureGPRegressor, "it is for --model kernel"),
    ],
)
def test_a_published_table_without_the_entry_is_refused(folder, source, estimator, message):
    with pytest.raises(ValueError) as caught:
        read_hyperparameters(str(folder / "published.json"), source, estimator)
    assert message in str(caught.value)


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
        read_hyperparameters(str(path), "table.csv", estimator)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_kernel_of_a_file_that_does_not_say_is_that_of_the_model(tmp_path):
    path = tmp_path / "h.json"
    path.write_text('{"lengthscale": [1.0, 2.0], "variance": 3.0}')
    found = read_hyperparameters(str(path), "table.csv", FeatureGPRegressor)
    assert isinstance(found["kernel"], stochgp.kernels.RBF) and set(found) == {"kernel"}
    assert_allclose(found["kernel"].lengthscale, [1.0, 2.0], rtol=1e-6)
    found = read_hyperparameters(str(path), "table.csv", KernelGPRegressor)
    assert isinstance(found["kernel"], stochgp.kernels.Matern32)


def test_a_simulated_set_is_evaluated_on_the_rows_that_the_fit_left_out(folder, capsys, tmp_path):
    out = tmp_path / "model"
    command = ["fit", "fun:levy:100", "--model", "kernel", "--set", "learner=none", "--out", out, "--json"]
    code, text, err = run(capsys, *command, "--seed", "3", "--test-fraction", "0.3", "--quiet")
    assert code == 0, err
    fitted = json.loads(text)
    code, text, _ = run(capsys, "evaluate", out, "fun:levy:100", "--json")
    assert code == 0 and json.loads(text) == {name: fitted[name] for name in json.loads(text)}
    assert fitted["n"] == 30
    for source, options, message in (
        ("fun:levy:200", [], "shares rows"),
        ("fun:levy:100", ["--seed", "0"], "leave --seed and --test-fraction out"),
        (folder / "table.csv", ["--seed", "0"], "not divided at random: leave --seed out"),
    ):
        code, text, err = run(capsys, "evaluate", out, source, *options)
        assert (code, text) == (2, "") and message in err


def test_a_model_that_does_not_know_its_division_asks_for_it(capsys, tmp_path):
    rows = stochgp.data.load("fun:levy:100", seed=2)
    table = {name: rows.X[:, j] for j, name in enumerate(rows.feature_names)}
    model = KernelGPRegressor(learner=None, random_state=0).fit(pa.table(table), rows.y)
    model.save(tmp_path / "model")
    code, _, err = run(capsys, "evaluate", tmp_path / "model", "fun:levy:100")
    assert code == 2 and "give that --seed" in err
    code, out, _ = run(capsys, "evaluate", tmp_path / "model", "fun:levy:100", "--seed", "2", "--json")
    table = pa.table({name: rows.X_test[:, j] for j, name in enumerate(rows.feature_names)})
    assert code == 0
    assert_allclose(json.loads(out)["rmse"], np.sqrt(np.mean((model.predict(table) - rows.y_test) ** 2)))
