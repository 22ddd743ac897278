"""ONNX files of feature GPs predict what the estimator predicts: by ONNX Runtime where it is installed, and node by node in NumPy everywhere."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from stochgp import FeatureGPRegressor, KernelGPRegressor, features, kernels, networks
from stochgp.contrib import onnx as ours
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import TreeNoise, known_noise
from stochgp.numerics.trees import Trees
from stochgp.observations import Dispersion
from stochgp.parameters import frozen
from stochgp.posteriors import FeaturePosterior

NEEDS = "needs onnxruntime: pip install stochgp[onnx]"
D, M = 3, 16
LOW, HIGH = np.array([-2.0, 1000.0, 0.0]), np.array([2.0, 1010.0, 5.0])
_generator = np.random.default_rng(0)
X = _generator.uniform(LOW, HIGH, (60, D))
y = 40 + 5 * X[:, 0] + 2 * (X[:, 1] - 1005) * np.sin(X[:, 2]) + 3 * X[:, 2] + 0.1 * _generator.normal(size=60)
ROWS = np.concatenate([X[:5], _generator.uniform(LOW - 5, HIGH + 5, (30, D))])  # also beyond the rows of fit
Z = _generator.normal(size=(200, D))
KEY = jax.random.key(0)


def fitted(**settings):
    settings = {"learner": "full-batch", "epochs": 2, "likelihood": "gaussian", "random_state": 0} | settings
    return FeatureGPRegressor(settings.pop("features", "linear"), **settings).fit(X, y)


@pytest.fixture(scope="module")
def model():
    return fitted(dtype="float64")


def with_parts(model, phi=None, noise=None, **observation):
    """The same estimator with another feature map, whose weights and root are random, or another observation."""
    found, known = model.__sklearn_clone__(), model._fitted
    vars(found).update(vars(model))
    with jax.enable_x64(True):
        if phi is not None:
            weights, root = (
                _generator.normal(size=phi.n_features),
                _generator.normal(size=[phi.n_features] * 2),
            )
            parts = jax.numpy.asarray(weights), jax.numpy.asarray(root), known_noise(0.1)
            known = dataclasses.replace(known, posterior=FeaturePosterior(phi, *parts))
        if noise is not None:
            observation["likelihood"] = Gaussian(noise)
        changed = dataclasses.replace(known.observation, **observation)
        found._fitted = dataclasses.replace(known, observation=changed)
    return found


def dense(width=M, **options):
    return networks.mlp(D, (8, width), key=KEY, dtype="float64", **options)


def fourier(kernel, n_inputs=D, **options):
    return features.RandomFourier.init(kernel, n_inputs, M, key=KEY, dtype="float64", **options)


def beyond():
    return features.Extrapolation.init(
        np.array([[-1.0] * D, [1.0] * D]), 2.0, np.ones(D), key=KEY, dtype="float64"
    )


WIDE = "float64"
MAPS = {
    "linear": lambda: features.Linear(D),
    "cosines": lambda: fourier(kernels.Matern32(np.array([0.5, 1.0, 2.0]), np.array(1.7))),
    "paired": lambda: fourier(kernels.RBF(np.array(1.3), np.array(0.6)), paired=True),
    "active": lambda: fourier(kernels.RBF(np.array([0.5, 2.0]), np.array(0.6), active_dims=(2, 0)), orthogonal=True),
    "relu": lambda: features.Network(dense()),
    "tanh": lambda: features.Network(dense(activation=jax.numpy.tanh, final_activation=False)),
    "sigmoid": lambda: features.Network(dense(activation=jax.nn.sigmoid)),
    "softplus": lambda: features.Network(frozen(dense(activation=jax.nn.softplus))),
    "within": lambda: features.Network(networks.within(dense(), Z, np.array([[-1.0] * D, [1.0] * D]), dtype=WIDE)),
    "beyond": beyond,
    "sum": lambda: features.Sum(features.Linear(D), features.Scaled(features.Network(dense()), np.array(2.5))),
    "deep": lambda: features.Composed(features.Network(dense(4)), fourier(kernels.RBF(np.array(1.5), np.array(0.9)), 4)),
}  # fmt: skip


def in_numpy(model, X):
    """The three outputs by the nodes that would be written."""
    graph = ours.Graph()
    ours._write(model._fitted, graph)
    values = {"X": X} | graph.arrays
    for op, names, out, options in graph.nodes:
        values[out] = OPERATORS[op](*(values[name] for name in names), **options)
    return [values[name] for name in ours.OUTPUTS]


OPERATORS = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "MatMul": np.matmul, "Equal": np.equal, "Greater": np.greater,
    "Min": np.minimum, "Max": np.maximum, "Cos": np.cos, "Sin": np.sin, "Tanh": np.tanh, "Exp": np.exp, "Sqrt": np.sqrt,
    "Clip": np.clip, "Relu": lambda a: np.maximum(a, 0), "Sigmoid": lambda a: 1 / (1 + np.exp(-a)), "Softplus": lambda a: np.logaddexp(a, 0),
    "Cast": lambda a, to: a.astype({1: np.float32, 7: np.int64, 11: np.float64}[to]),
    "Gather": lambda a, at, axis: np.take(a, at, axis),
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Pad": lambda a, sizes, value: np.pad(a, sizes.reshape(2, -1).T, constant_values=value),
    "ReduceSum": lambda a, axes, keepdims: a.sum(tuple(axes), keepdims=bool(keepdims)),
    "ReduceMin": lambda a, axes, keepdims: a.min(tuple(axes), keepdims=bool(keepdims)),
    "Reshape": np.reshape,
}  # fmt: skip


def by_runtime(model, X, path):
    onnxruntime = pytest.importorskip("onnxruntime", reason=NEEDS)
    ours.to_onnx(model, path / "model.onnx")
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(list(ours.OUTPUTS), {"X": X}), session.get_modelmeta().custom_metadata_map


def by(how, model, X, path):
    return in_numpy(model, X) if how == "numpy" else by_runtime(model, X, path)[0]


def assert_same(found, model, X, within):
    """Within a share of the spread of y."""
    mean, of_f = model.predict(X, return_std=True)
    of_y = model.predict(X, return_std=True, include_noise=True)[1]
    for values, expected in zip(found, (mean, of_f, of_y), strict=True):
        assert values.shape == (len(X),) and values.dtype == np.float64
        assert_allclose(values, expected, rtol=0, atol=within * y.std())


both = pytest.mark.parametrize("how", ["numpy", "onnxruntime"])


@both
@pytest.mark.parametrize("name", MAPS)
def test_every_feature_map(name, how, model, tmp_path, double):
    other = with_parts(model, MAPS[name]())
    assert_same(by(how, other, ROWS, tmp_path), other, ROWS, 1e-10)


@both
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mlp", "rff"])
def test_fitted_models(name, dtype, how, tmp_path):
    one = fitted(features=name, dtype=dtype, n_features=40)
    within = 1e-5 if dtype == "float32" else 1e-10
    assert_same(by(how, one, X, tmp_path), one, X, within)
    assert_same(by(how, one, X[:1], tmp_path), one, X[:1], within)


def some_trees():
    with jax.enable_x64(True):
        inputs = np.array([[0, 1, 1], [2, 0, 1]], np.int32)
        return Trees(
            *map(jax.numpy.asarray, (inputs, _generator.normal(size=(2, 3)), _generator.normal(size=(2, 8))))
        )


def observations():
    return {
        "student": {"noise": known_noise(0.2), "inflation": Dispersion(0.8, 4.5)},
        "trees": {"noise": known_noise(0.2), "inflation": Dispersion(0.7, 5.0, some_trees())},
    }


@both
@pytest.mark.parametrize("name", observations())
def test_distributions_of_errors(name, how, model, tmp_path):
    other = with_parts(model, **observations()[name])
    assert_same(by(how, other, ROWS, tmp_path), other, ROWS, 1e-9)


def test_the_file_says_columns_and_distribution(model, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = FeatureGPRegressor("linear", learner="full-batch", epochs=2, likelihood="gaussian").fit(frame, y)
    found, about = by_runtime(named, X, tmp_path)
    assert about == {"columns": "a, b, c", "distribution": "Gaussian"}
    assert_same(found, named, frame, 1e-9)
    heavy = with_parts(model, **observations()["student"])
    assert by_runtime(heavy, X, tmp_path)[1] == {"distribution": "Student-t, 4.5 degrees of freedom"}


def test_a_missing_value_gives_nan(model):
    rows = X[:2].copy()
    rows[0, 1] = np.nan
    for values in in_numpy(model, rows):
        assert np.isnan(values[0]) and np.isfinite(values[1])


def test_what_cannot_be_written_is_refused_in_one_line(model, tmp_path, double):
    path = tmp_path / "model.onnx"
    trees = Trees(np.zeros((1, 1), np.int32), np.zeros((1, 1)), np.ones((1, 2)))
    landmarks = features.Nystrom(kernels.RBF(), Z[:4])
    activation = features.Network(dense(activation=jax.nn.elu))
    for other, words in {
        "Nystrom": (with_parts(model, landmarks), "does not write Nystrom: it writes the features 'mlp'"),
        "elu": (with_parts(model, activation), "does not write the activation .*: it writes"),
        "trees": (with_parts(model, noise=TreeNoise(known_noise(1.0).level, frozen(trees))), "does not write noise models of your own"),
        "positive": (fitted(target="positive"), "does not write transformed targets"),
    }.values():  # fmt: skip
        with pytest.raises(ValueError, match=words) as refusal:
            ours.to_onnx(other, path)
        assert "\n" not in str(refusal.value)
    kernel = KernelGPRegressor(kernels.RBF(), learner=None, noise_variance=0.1).fit(X, y)
    with pytest.raises(TypeError, match="writes a FeatureGPRegressor, not a KernelGPRegressor"):
        ours.to_onnx(kernel, path)
    assert not path.exists()


def test_tables_and_calibrations_are_refused(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(colour=["red", "blue"] * 30)
    settings = {"learner": "full-batch", "likelihood": "gaussian"}
    table = FeatureGPRegressor("linear", **settings).fit(frame, y)
    with pytest.raises(ValueError, match=r"encoded columns \('colour'\): encode them before `fit`"):
        ours.to_onnx(table, tmp_path / "model.onnx")
    generator = np.random.default_rng(4)
    rows = np.tile(X, (20, 1)) + generator.normal(size=(1200, D))
    calibrated = FeatureGPRegressor("linear", calibration="conformal", **settings).fit(
        rows, rows[:, 0] + generator.normal(size=1200)
    )
    with pytest.raises(ValueError, match="calibration=None"):
        ours.to_onnx(calibrated, tmp_path / "model.onnx")
