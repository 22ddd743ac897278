"""`fit` of a path: as of the table in memory where all rows are learned from; else θ of a sample, and the posterior of all rows."""

import equinox as eqx
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from sweeps import some_of

from stochgp import (
    FeatureGPRegressor,
    KernelGPRegressor,
    SparseGPClassifier,
    SparseGPRegressor,
    data,
    learners,
    likelihoods,
)
from stochgp.context import FitContext
from stochgp.data import reading
from stochgp.data.memory import MemorySource
from stochgp.models import FeatureGP
from stochgp.objectives import spectrum
from stochgp.objectives.moments import add_up
from stochgp.posteriors import FeaturePosterior

N = 600


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A smooth function of two inputs and a level, in three files."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("rows")
    X, level = rng.normal(size=(N, 2)), rng.integers(0, 2, N)
    y = 5 + np.sin(2 * X[:, 0]) + X[:, 1] * level + 0.1 * rng.normal(size=N)
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "level": np.array(["low", "high"])[level], "y": y})
    for part in range(3):
        pa_parquet.write_table(table.slice(part * 200, 200), folder / f"{part}.parquet")
    return folder


@pytest.fixture(scope="module")
def table(folder):
    return pa.concat_tables([data.read_table(path) for path in sorted(folder.iterdir())])


MODELS = {
    "feature": lambda: FeatureGPRegressor(n_features=16, learner=learners.SCGD(epochs=4), random_state=0),
    "kernel": lambda: KernelGPRegressor("rbf", random_state=0),
}


@pytest.mark.parametrize("family", MODELS)
def test_few_rows_give_the_fit_of_the_table(folder, table, family):
    of_files = MODELS[family]().fit(folder, "y")
    of_table = MODELS[family]().fit(table.drop_columns(["y"]), table["y"].to_numpy())
    rows = table.slice(0, 50).drop_columns(["y"])
    for a, b in zip(
        of_files.predict(rows, return_std=True), of_table.predict(rows, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert of_files.nlml_ == of_table.nlml_
    assert (of_files.target_name_, of_files.n_rows_) == ("y", N)
    assert list(of_files.feature_names_in_) == ["a", "b", "level"]


def test_rows_without_a_target_are_left_out_and_counted(folder, table, tmp_path):
    """The fit is that of the other rows; at predict missing inputs are filled in."""
    y = table["y"].to_numpy().copy()
    y[[3, 400]] = np.nan
    spoilt = table.set_column(3, "y", pa.array(y))
    pa_parquet.write_table(spoilt, tmp_path / "spoilt.parquet")
    pa_parquet.write_table(spoilt.filter(pa.array(np.isfinite(y))), tmp_path / "good.parquet")
    with pytest.warns(UserWarning, match="2 rows of the files are ignored"):
        found = MODELS["feature"]().fit(tmp_path / "spoilt.parquet", "y")
    whole = MODELS["feature"]().fit(tmp_path / "good.parquet", "y")
    rows = table.slice(0, 50).drop_columns(["y"])
    np.testing.assert_array_equal(found.predict(rows), whole.predict(rows))
    assert found.plan_["unused_rows"]["choice"] == 2 and "unused_rows" not in whole.plan_
    missing = rows.set_column(0, "a", pa.array([None] * 50, pa.float64()))
    with pytest.warns(UserWarning, match="column 'a': 50 missing"):
        assert np.isfinite(found.predict(missing)).all()


def test_weights_and_groups_of_files_are_those_of_the_table(table, tmp_path):
    weight, day = np.arange(N) % 3, np.arange(N) // 50
    rows = table.append_column("w", pa.array(weight)).append_column("day", pa.array(day))
    pa_parquet.write_table(rows, tmp_path / "rows.parquet")
    blocks = data.FileSource.of(tmp_path / "rows.parquet", weight="w", split_by=("day",))
    blocks = blocks.only(("a", "b", "level", "y"))
    X, y = table.drop_columns(["y"]), table["y"].to_numpy()
    found = MODELS["feature"]().fit(
        data.FileSource.of(tmp_path / "rows.parquet", weight="w").only(blocks.columns), "y"
    )
    whole = MODELS["feature"]().fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(found.predict(X), whole.predict(X))
    model = MODELS["feature"]()
    read = reading.read_files(model, blocks, "y", {}, FitContext(model), keeps_all=True)[0].rows
    there = {(x, t): d for x, t, d in zip(table["a"].to_pylist(), y, day, strict=True)}
    days = [there[x, t] for x, t in zip(read.X[:, 0], read.y, strict=True)]
    assert len(set(zip(days, read.group.tolist(), strict=True))) == len(set(days)) == 12
    with pytest.raises(ValueError, match="every split_by column is constant"):
        pa_parquet.write_table(rows.append_column("one", pa.array(np.ones(N))), tmp_path / "one.parquet")
        model.fit(data.FileSource.of(tmp_path / "one.parquet", split_by=("one",)), "y")


@pytest.mark.parametrize("missing", ["auto", "refuse"])
def test_a_category_that_the_sample_lacks_counts_as_none(table, tmp_path, monkeypatch, missing):
    """Each of three rows has its own; they are not all among the 200 of 600 that give the rules."""
    level = [*table["level"].to_pylist()[3:], "rare", "odd", "one"]
    pa_parquet.write_table(table.set_column(2, "level", pa.array(level)), tmp_path / "rare.parquet")
    monkeypatch.setattr(reading, "MAX_SAMPLE", 200)
    model = MODELS["feature"]().set_params(missing=missing)
    read, source = reading.read_files(
        model, tmp_path / "rare.parquet", "y", {}, FitContext(model), keeps_all=False
    )
    lacks = {"rare", "odd", "one"} - set(source.encoder.columns[2].categories)
    assert lacks and len(read.rows) == 200
    rows = np.concatenate([part.X for part in source.read()])
    assert len(rows) == N and (rows[:, 2:].sum(axis=1) == 0).sum() == len(lacks)


@pytest.fixture(scope="module")
def sampled(folder):
    """A fit that learns from 200 of the 600 rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_SAMPLE", 200)
        return MODELS["feature"]().fit(folder, "y")


def test_the_posterior_of_a_sample_is_of_all_rows(table, sampled):
    """To the rounding of features in float32."""
    fitted = sampled._fitted
    assert fitted.slope_rows == N
    X = fitted.encoder.transform(table)
    with jax.enable_x64(True):
        rows = MemorySource(
            fitted.inputs.transform(X, np.float32),
            fitted.targets.transform(table["y"].to_numpy()),
            dtype=np.float32,
        )
        posterior = fitted.posterior
        gp = FeatureGP(posterior.features, fitted.observation.noise_variance)
        variance = sampled.history_[-1]["variance"] / fitted.targets.scale**2
        whole = FeaturePosterior.of(
            gp.features, spectrum(add_up(gp, rows.blocks(256))), variance, fitted.observation.noise_variance
        )
        Z = fitted.inputs.transform(X[:50], np.float32)
        np.testing.assert_allclose(posterior.mean(Z), whole.mean(Z), atol=1e-4)
    assert sampled.plan_["closing_rows"]["choice"] == N
    assert sampled.n_rows_ == N
    seen = fitted.seen  # the bounds of inputs are those of all rows too
    np.testing.assert_array_equal([seen.low, seen.high], [X.min(axis=0), X.max(axis=0)])
    assert np.all(np.asarray(posterior.features.right(jax.numpy.asarray(Z))) == 0)


def test_q_of_a_sparse_model_is_of_all_rows_where_a_sample_chose_its_points(folder, table, monkeypatch):
    """SGPR's optimum of all rows at the points and the kernel that the sample gave, in float64 NumPy; its bound too."""
    monkeypatch.setattr(reading, "MAX_SAMPLE", 200)
    model = SparseGPRegressor(
        "rbf",
        n_inducing=12,
        n_inducing_mean=0,
        likelihood="gaussian",
        learner=learners.SVGP(epochs=5),
        dtype="float64",
        random_state=0,
    )
    model.fit(folder, "y")
    assert model.plan_["closing_rows"]["choice"] == model.n_rows_ == N
    assert "uniform sample of 200" in model.plan_["closing_rows"]["why"]
    fitted = model._fitted
    X = fitted.inputs.transform(fitted.encoder.transform(table), np.float64)
    y = fitted.targets.transform(table["y"].to_numpy())
    kernel, Z = fitted.posterior.kernel, np.asarray(fitted.posterior.process.points, np.float64)
    ell, v = np.asarray(kernel.lengthscale), float(kernel.variance)
    gram = lambda A, B: v * np.exp(-0.5 * np.sum(((A[:, None] - B[None]) / ell) ** 2, axis=2))
    K, across, s2 = gram(Z, Z) + 1e-8 * v * np.eye(12), gram(Z, X), fitted.observation.noise_variance
    A = K + across @ across.T / s2
    new = across[:, :40]
    np.testing.assert_allclose(
        model.predict(table.slice(0, 40).drop_columns(["y"])),
        fitted.targets.mean + fitted.targets.scale * new.T @ np.linalg.solve(A, across @ y) / s2,
        rtol=1e-6,
    )
    Q = across.T @ np.linalg.solve(K, across) + s2 * np.eye(N)
    bound = -0.5 * (y @ np.linalg.solve(Q, y) + np.linalg.slogdet(2 * np.pi * Q)[1])
    bound -= (N * v - np.trace(Q) + N * s2) / (2 * s2)
    assert model.elbo_ == pytest.approx(bound / N - np.log(fitted.targets.scale), rel=1e-6)


@pytest.mark.long
def test_a_sparse_model_of_few_rows_is_that_of_the_table(folder, table):
    settings = {"n_inducing": 12, "learner": learners.SVGP(epochs=5), "random_state": 0}
    of_files = SparseGPRegressor(**settings).fit(folder, "y")
    of_table = SparseGPRegressor(**settings).fit(table.drop_columns(["y"]), table["y"].to_numpy())
    rows = table.slice(0, 50).drop_columns(["y"])
    np.testing.assert_array_equal(of_files.predict(rows), of_table.predict(rows))


@pytest.fixture(scope="module")
def labelled(table, tmp_path_factory):
    """The same inputs with counts and with classes by text and by numbers, one row of a third class, in two files."""
    folder, f = tmp_path_factory.mktemp("labelled"), table["y"].to_numpy() - 5
    counts = np.random.default_rng(1).poisson(np.exp(1 + f))
    number = np.where(f > 0, 7, 2)
    number[-1] = 4
    whole = table.drop_columns(["y"]).append_column("counts", pa.array(counts))
    whole = whole.append_column("text", pa.array(np.array(["low", "up"])[(f > 0).astype(int)])).append_column(
        "number", pa.array(number)
    )
    for part in range(2):
        pa_parquet.write_table(whole.slice(part * 300, 300), folder / f"{part}.parquet")
    return folder, whole


SHORT = {"n_inducing": 12, "learner": learners.SVGP(epochs=5, learning_rate=0.03), "random_state": 0}
LABELLED = {
    "counts": ("counts", lambda: SparseGPRegressor(likelihood="negative-binomial", mean=2.0, **SHORT)),
    "poisson": ("counts", lambda: SparseGPRegressor(likelihood="poisson", **SHORT)),
    "log count": (
        "counts",
        lambda: SparseGPRegressor(
            likelihood=likelihoods.Warped("auto", "count"), mean=2.0, n_inducing_mean=0, **SHORT
        ),
    ),
    "two classes": ("text", lambda: SparseGPClassifier(**SHORT)),
    "three classes": ("number", lambda: SparseGPClassifier(**SHORT)),
}


def labelled_fits(labelled, name):
    """(Of the files, of the table), from the input columns a, b and level."""
    (folder, table), (target, make) = labelled, LABELLED[name]
    blocks = data.FileSource.of(folder).only(("a", "b", "level", target))
    X, read = (
        table.select(["a", "b", "level"]),
        data.label_column if target != "counts" else data.target_column,
    )
    return make().fit(blocks, target), make().fit(X, read(table, target)), X


@pytest.mark.parametrize("name", some_of(LABELLED, ("poisson", "two classes")))
@pytest.mark.long
def test_counts_and_classes_of_files_are_those_of_the_table(name, labelled):
    of_files, of_table, X = labelled_fits(labelled, name)
    assert of_files.elbo_ == of_table.elbo_ and of_files.target_name_ == LABELLED[name][0]
    if name.endswith("classes"):
        np.testing.assert_array_equal(of_files.classes_, of_table.classes_)
        np.testing.assert_array_equal(of_files.predict_proba(X), of_table.predict_proba(X))
    else:
        np.testing.assert_array_equal(of_files.predict_interval(X), of_table.predict_interval(X))


@pytest.mark.parametrize("name", some_of(("poisson", "log count", "three classes"), ("three classes",)))
@pytest.mark.long
def test_the_bound_of_a_sample_of_counts_or_classes_is_of_all_rows(name, labelled, monkeypatch):
    """In float64 and all rows, of the q(f) that a sample gave; a class that no row of the sample has is there."""
    monkeypatch.setattr(reading, "MAX_SAMPLE", 200)
    folder, table = labelled
    target, make = LABELLED[name]
    model = make().fit(data.FileSource.of(folder).only(("a", "b", "level", target)), target)
    fitted, y = model._fitted, table[target].to_numpy()
    assert model.n_rows_ == N and model.plan_["closing_rows"]["choice"] == (N if name == "log count" else 200)
    X = fitted.inputs.transform(fitted.encoder.transform(table), np.float32)
    np.testing.assert_allclose(
        fitted.inputs.scale, data.Standardiser.fit(fitted.encoder.transform(table)).scale, rtol=1e-11
    )
    shift = 0.0
    if name == "three classes":
        assert model.classes_.tolist() == [2, 4, 7]
        y = np.searchsorted(model.classes_, y)
    if name == "log count":
        shift, y = -np.mean(np.log(y + 0.5)), fitted.targets.transform(np.log(y + 0.5))
        shift -= np.log(fitted.target_scale)
    with jax.enable_x64(True):
        posterior = fitted.posterior
        rows = next(MemorySource(X, y, dtype=np.float64).blocks(N))
        likelihood = fitted.observation.likelihood
        expected, divergence = eqx.filter_jit(
            lambda q: (
                likelihood.expected_log_density(rows.y, *q.moments(rows.X), rows.X),
                q.divergence(),
            )
        )(posterior.process)
        bound = float(np.sum(expected) - divergence) / N
    assert model.elbo_ == pytest.approx(bound + shift, rel=1e-6)


def test_targets_of_files_that_cannot_be_learned_are_named_with_file_and_row(folder, table, tmp_path):
    one = table.append_column("one", pa.array(["a"] * N))
    pa_parquet.write_table(one, tmp_path / "one.parquet")
    half = table["y"].to_numpy() - 5
    first = int(np.argmax(half <= 0)) + 1
    pa_parquet.write_table(table.set_column(3, "y", pa.array(half)), tmp_path / "half.parquet")
    refused = [
        (
            SparseGPRegressor(likelihood="poisson"),
            folder,
            "y",
            "counts must be whole numbers .* at data row 1",
        ),
        (
            SparseGPRegressor(likelihood=likelihoods.Warped("auto", "log")),
            tmp_path / "half.parquet",
            "y",
            f"positive targets.* at data row {first}",
        ),
        (
            SparseGPRegressor(likelihood=likelihoods.Warped("gaussian", "sinh-arcsinh")),
            folder,
            "y",
            "only the transforms 'log' and 'count' are available",
        ),
        (SparseGPClassifier(), tmp_path / "one.parquet", "one", "'one' has only one class, 'a'"),
        (SparseGPClassifier(), folder, "y", "continuous"),
    ]
    for model, path, target, message in refused:
        with pytest.raises(ValueError, match=message):
            model.fit(path, target)


def test_labels_that_are_many_or_of_two_kinds_are_no_classes(table, tmp_path, monkeypatch):
    monkeypatch.setattr("stochgp.tables.targets.MAX_CLASSES", 100)
    many = table.append_column("id", pa.array([f"r{i}" for i in range(N)]))
    pa_parquet.write_table(many, tmp_path / "many.parquet")
    with pytest.raises(ValueError, match="more than 100 different labels"):
        SparseGPClassifier().fit(tmp_path / "many.parquet", "id")
    (tmp_path / "two").mkdir()
    for part, values in enumerate((["a"] * N, list(range(N)))):
        pa_parquet.write_table(
            table.append_column("id", pa.array(values)), tmp_path / "two" / f"{part}.parquet"
        )
    with pytest.raises(ValueError, match="text in some files and numbers in other files"):
        SparseGPClassifier().fit(tmp_path / "two", "id")


def test_inputs_are_standardised_by_all_rows(table, sampled):
    whole = data.Standardiser.fit(sampled._fitted.encoder.transform(table))
    np.testing.assert_allclose(sampled._fitted.inputs.scale, whole.scale, rtol=1e-11)


def test_without_time_for_a_pass_the_posterior_is_of_the_sample(folder, monkeypatch):
    monkeypatch.setattr(reading, "MAX_SAMPLE", 200)
    monkeypatch.setattr("stochgp.families.feature.SHARE_FOR_CLOSING", 0.0)
    model = FeatureGPRegressor(
        n_features=16, learner=learners.SCGD(epochs=5), random_state=0, time_limit=60
    ).fit(folder, "y")
    assert model.plan_["closing_rows"]["choice"] == 200
    assert not model.converged_
    assert model.plan_["ended"]["choice"] == "time_limit"


def test_a_model_that_keeps_all_rows_refuses_more_than_fit(folder, monkeypatch):
    monkeypatch.setattr(reading, "_sample_size", lambda *_: 100)
    monkeypatch.setattr(reading, "_row_bytes", lambda n_inputs: 10**12)
    with pytest.raises(ValueError, match=r"keeps 600 rows of 4 inputs needs .* but memory_limit is"):
        MODELS["kernel"]().fit(folder, "y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": None}, "y must be the name of the target column"),
        ({"y": "z"}, "column 'z' is not in the table"),
        ({"y": "y", "sample_weight": np.ones(N)}, "sample_weight cannot be used with rows in files"),
        ({"y": "y", "groups": np.ones(N)}, "groups cannot be used with rows in files"),
    ],
)
def test_what_does_not_go_with_files_is_refused(folder, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MODELS["feature"]().fit(folder, **arguments)
