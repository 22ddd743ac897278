"""Fitted feature GPs as ONNX files (`pip install stochgp[onnx]`): predictions wherever ONNX Runtime runs, without Python, JAX or this package.

`onnx` itself is loaded by `to_onnx` alone. The file computes

    z = (x − mean)/scale,   Φ = φ(z),   E f = m + s Φŵ,   var f = c(z) s² Σ_j (ΦR)_j²,   var y = var f + c(z) s² σ²

with the names of `posteriors.FeaturePosterior`; c is that of `observations.Dispersion`, 1 for Gaussian errors. The features are computed in the dtype of the
model, all the rest in float64, as `predict` does it.
"""
# pyright: reportMissingImports=false
# onnx is an extra.

import dataclasses
import functools
import importlib
import os
import typing
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from stochgp import features, networks
from stochgp.data import TableEncoder
from stochgp.estimators.fitted import Fitted
from stochgp.families import FeatureGPRegressor
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import LARGEST_OF_TREES, ConstantNoise
from stochgp.networks import embeddings
from stochgp.numerics.trees import Trees
from stochgp.observations import Dispersion, Observation
from stochgp.parameters import value_of
from stochgp.posteriors import FeaturePosterior
from stochgp.storage.files import replacing
from stochgp.version import __version__

HOW_TO_INSTALL = "pip install 'stochgp[onnx]'"
OPSET, IR_VERSION = 18, 8  # of 2022: older runtimes read the file too
INT64 = 7  # the number of ONNX
OUTPUTS = ("mean", "function_std", "observation_std")
ACTIVATIONS = {
    networks.relu: "Relu",
    jax.nn.relu: "Relu",
    jnp.tanh: "Tanh",
    jax.nn.sigmoid: "Sigmoid",
    jax.nn.softplus: "Softplus",
}


def to_onnx(model: Any, path: str | os.PathLike) -> None:
    """Writes mean and standard deviations of a fitted `FeatureGPRegressor` to an ONNX file.

    The input "X" is float64 [N, D], in the units and the order of the columns of `fit`. The outputs are float64 [N], in the units of the targets:
    "mean"; "function_std", of f, as `predict(X, return_std=True)`; "observation_std", with the noise, as with `include_noise=True`. They equal
    those of `predict` up to rounding. Predictions of a row with NaN are NaN. The file holds no training rows. Its metadata name the columns of a
    data frame, and the distribution of an observation.

    Features may be "mlp", "robust-mlp", "piecewise-mlp", "periodic-mlp", "rff", "orf" and "linear", and sums and chains of them; networks are of
    `stochgp.networks.mlp` with ReLU, tanh, sigmoid or softplus; noise is constant, or Student-t whose scale depends on the inputs. Raises TypeError
    for other estimators, ValueError for other features, for a table whose columns are encoded, for transformed targets, counts and calibrations, and
    ImportError without `onnx`.

    Parameters
    ----------
    model : FeatureGPRegressor
        Fitted to numbers.
    path : path
        The file, such as "model.onnx".
    """
    if not isinstance(model, FeatureGPRegressor):
        raise TypeError(f"to_onnx writes a FeatureGPRegressor, not a {type(model).__name__}")
    check_is_fitted(model)
    fitted = model._fitted
    _check_inputs(fitted)
    _check_observation(fitted.observation)
    graph = _Graph(np.dtype("float64"))
    _write(fitted, graph)
    _save(graph, len(fitted.inputs.mean), _about(model), path)


def _save(graph: "_Graph", n_inputs: int, about: dict[str, str], path: str | os.PathLike) -> None:
    """The graph as a checked file. Raises ImportError where onnx is not installed."""
    try:
        onnx: Any = importlib.import_module("onnx")  # pyright takes `import onnx` for this file
    except ImportError as error:
        raise ImportError(f"to_onnx needs the package onnx: {HOW_TO_INSTALL}") from error
    makers, double = onnx.helper, onnx.TensorProto.DOUBLE
    X = makers.make_tensor_value_info("X", double, ["N", n_inputs])
    outputs = [makers.make_tensor_value_info(name, double, ["N"]) for name in OUTPUTS]
    nodes = [makers.make_node(op, names, [out], **options) for op, names, out, options in graph.nodes]
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in graph.arrays.items()]
    whole = makers.make_graph(nodes, "stochgp", [X], outputs, arrays)
    versions = {"opset_imports": [makers.make_opsetid("", OPSET)], "ir_version": IR_VERSION}
    model = makers.make_model(whole, producer_name="stochgp", producer_version=__version__, **versions)
    makers.set_model_props(model, about)
    onnx.checker.check_model(model)
    with replacing(path) as partial:
        onnx.save(model, os.fspath(partial))


@dataclass(frozen=True)
class _Graph:
    """Nodes (operator, inputs, output, attributes) and constant arrays by name, in `dtype`."""

    dtype: np.dtype
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def to(self, dtype: DTypeLike) -> "_Graph":
        """The same graph with constants of this dtype."""
        return dataclasses.replace(self, dtype=np.dtype(dtype))

    def array(self, value: Any) -> str:
        """The name of a constant; whole numbers are indices and sizes."""
        found = np.asarray(value)
        name = f"c{len(self.arrays)}"
        self.arrays[name] = found.astype(np.int64 if found.dtype.kind == "i" else self.dtype)
        return name

    def add(self, op: str, *inputs: Any, out: str | None = None, **attributes: Any) -> str:
        """The name of the output of a new node; inputs are names or constants."""
        names = [given if isinstance(given, str) else self.array(given) for given in inputs]
        out = f"v{len(self.nodes)}" if out is None else out
        self.nodes.append((op, names, out, attributes))
        return out

    def cast(self, name: str) -> str:
        """In the graph's dtype."""
        return self.add("Cast", name, to=1 if self.dtype == np.float32 else 11)  # the numbers of ONNX


def _write(fitted: Fitted, graph: _Graph) -> None:
    posterior, observation, s = fitted.posterior, fitted.observation, fitted.target_scale
    posterior = typing.cast(FeaturePosterior, posterior)
    shifted = graph.add("Sub", "X", np.asarray(fitted.inputs.mean))
    narrow = graph.to(fitted.dtype)
    Z = narrow.cast(graph.add("Div", shifted, np.asarray(fitted.inputs.scale)))
    Phi = graph.cast(_features(posterior.features, narrow, Z))
    mean = graph.add("MatMul", Phi, np.asarray(posterior.weights))
    graph.add("Add", graph.add("Mul", mean, s), float(fitted.targets.mean), out="mean")
    half = graph.add("MatMul", Phi, np.asarray(posterior.root))
    variance = graph.add("ReduceSum", graph.add("Mul", half, half), np.array([1]), keepdims=0)
    level = float(observation.likelihood.noise.level)  # pyright: ignore[reportAttributeAccessIssue]
    total, inflation = graph.add("Add", variance, level), observation.inflation
    if inflation is not None:
        factor = _factor(inflation, graph, graph.cast(Z))
        variance, total = graph.add("Mul", variance, factor), graph.add("Mul", total, factor)
    graph.add("Mul", graph.add("Sqrt", variance), s, out="function_std")
    graph.add("Mul", graph.add("Sqrt", total), s, out="observation_std")


def _factor(inflation: Dispersion, graph: _Graph, Z: str) -> str:
    """c s(z): one number, or one of each row."""
    if inflation.trees is None:
        return graph.array(inflation.variance)
    eta = graph.add("Clip", _log_scale(inflation.trees, graph, Z), -LARGEST_OF_TREES, LARGEST_OF_TREES)
    return graph.add("Mul", graph.add("Exp", eta), inflation.variance)


def _log_scale(trees: Trees, graph: _Graph, Z: str) -> str:
    """Σ_t leaves[t, b_t(z)]."""
    inputs, thresholds, leaves = (np.asarray(part) for part in (trees.inputs, trees.thresholds, trees.leaves))
    (T, d), L = inputs.shape, leaves.shape[1]
    values = graph.add("Gather", Z, inputs.ravel().astype(np.int64), axis=1)
    digits = graph.cast(graph.add("Greater", values, thresholds.ravel()))
    digits = graph.add("Reshape", digits, np.array([-1, T, d]))
    leaf = graph.add("MatMul", digits, 2.0 ** np.arange(d - 1, -1, -1))
    place = graph.add("Cast", graph.add("Add", leaf, L * np.arange(T, dtype=np.float64)), to=INT64)
    return graph.add(
        "ReduceSum", graph.add("Gather", leaves.ravel(), place, axis=0), np.array([1]), keepdims=0
    )


def _check_inputs(fitted: Fitted) -> None:
    encoder = fitted.encoder
    if encoder is None:
        return
    if not isinstance(encoder, TableEncoder):
        raise ValueError("to_onnx writes models of numbers, not of molecules or fingerprints")
    other = [rule.name for rule in encoder.columns if not rule.is_plain or rule.reading is not None]
    if other:
        raise ValueError(
            f"to_onnx writes models of numbers that stay as they are, and the column(s) {', '.join(map(repr, other))} do not: encode "
            "such columns before `fit`"
        )


def _check_observation(observation: Observation) -> None:
    if observation.outward is not None:
        raise ValueError(
            "to_onnx writes no transformed targets and no counts: fit targets that are transformed before, such as log(y)"
        )
    if observation.mean_function is not None:
        raise ValueError("to_onnx writes no prior mean that was fitted: fit with mean=None")
    if observation.correction is not None:
        raise ValueError("to_onnx writes no calibration: fit with calibration=None")
    likelihood = observation.likelihood
    if not isinstance(likelihood, Gaussian) or not isinstance(likelihood.noise, ConstantNoise):
        raise ValueError(
            "to_onnx writes no noise model of your own: fit with likelihood='auto' or 'gaussian'"
        )


def _about(model: FeatureGPRegressor) -> dict[str, str]:
    fitted = model._fitted
    inflation, names = fitted.observation.inflation, getattr(model, "feature_names_in_", None)
    df = None if inflation is None else inflation.df
    kind = "Gaussian" if df is None else f"Student-t, {df:.4g} degrees of freedom"
    columns = {} if names is None else {"columns": ", ".join(names)}
    return {"distribution": kind} | columns


@functools.singledispatch
def _map(features: Any, graph: _Graph, X: str) -> str:
    """The name of the output of a feature map or a network for rows X [N, D], in the graph's dtype."""
    _refuse(type(features).__name__)


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"to_onnx does not write {what}: it writes the features 'mlp', 'robust-mlp', 'piecewise-mlp', 'periodic-mlp', 'rff', 'orf' and 'linear', "
        "sums and chains of them, and networks of stochgp.networks.mlp with ReLU, tanh, sigmoid or softplus"
    )


def _features(features: Any, graph: _Graph, X: str) -> str:
    return _map(value_of(features), graph, X)


def _value(parameter: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(value_of(parameter))


@_map.register(features.Linear)
def _linear(phi: features.Linear, graph: _Graph, X: str) -> str:
    with_one = graph.add("Pad", X, np.array([0, 1, 0, 0]), 1.0)  # one column of ones in front
    return graph.add("Div", with_one, phi.n_features**0.5)


@_map.register(features.RandomFourier)
def _fourier(phi: features.RandomFourier, graph: _Graph, X: str) -> str:
    kernel = value_of(phi.kernel)
    if kernel.active_dims is not None:
        X = graph.add("Gather", X, np.array(kernel.active_dims, np.int64), axis=1)
    scaled = graph.add("Div", X, _value(kernel.lengthscale))
    angles = graph.add("MatMul", scaled, _value(phi.frequencies))
    if phi.phases is None:
        waves = graph.add("Concat", graph.add("Cos", angles), graph.add("Sin", angles), axis=1)
    else:
        waves = graph.add("Cos", graph.add("Add", angles, _value(phi.phases)))
    return graph.add("Mul", waves, np.sqrt(2 * _value(kernel.variance) / phi.n_features))


@_map.register(features.Extrapolation)
def _beyond(phi: features.Extrapolation, graph: _Graph, X: str) -> str:
    nearest = _nearest(graph, X, phi.low, phi.high)
    within = graph.add("ReduceMin", graph.cast(graph.add("Equal", X, nearest)), np.array([1]), keepdims=1)
    difference = graph.add("Sub", *(_features(phi.fourier, graph, rows) for rows in (X, nearest)))
    return graph.add("Mul", difference, graph.add("Sub", 1.0, within))


@_map.register(features.Sum)
def _sum(phi: features.Sum, graph: _Graph, X: str) -> str:
    return graph.add("Concat", *(_features(part, graph, X) for part in (phi.left, phi.right)), axis=1)


@_map.register(features.Scaled)
def _scaled(phi: features.Scaled, graph: _Graph, X: str) -> str:
    return graph.add("Mul", _features(phi.features, graph, X), np.sqrt(_value(phi.variance)))


@_map.register(features.Composed)
def _composed(phi: features.Composed, graph: _Graph, X: str) -> str:
    return _features(phi.features, graph, _features(phi.network, graph, X))


@_map.register(features.Network)
def _network(phi: features.Network, graph: _Graph, X: str) -> str:
    return _features(phi.network, graph, X)


@_map.register(networks.Embedded)
def _embedded(network: networks.Embedded, graph: _Graph, X: str) -> str:
    return _features(network.network, graph, _features(network.embedding, graph, X))


@_map.register(networks.MLP)
def _mlp(network: networks.MLP, graph: _Graph, X: str) -> str:
    if network.activation not in ACTIVATIONS:
        _refuse(f"the activation {network.activation!r}")
    for i, layer in enumerate(network.layers):
        X = graph.add("Add", graph.add("MatMul", X, _value(layer.weight)), _value(layer.bias))
        if network.final_activation or i + 1 < len(network.layers):
            X = graph.add(ACTIVATIONS[network.activation], X)
    return X


@_map.register(embeddings.Within)
def _within(embedding: embeddings.Within, graph: _Graph, X: str) -> str:
    nearest, width = _nearest(graph, X, embedding.low, embedding.high), _value(embedding.width)
    share = graph.add("Div", graph.add("Sub", X, nearest), np.where(width > 0, width, 1))
    return graph.add("Add", nearest, graph.add("Mul", graph.add("Tanh", share), width))


@_map.register(embeddings.SmoothClip)
def _smooth_clip(embedding: embeddings.SmoothClip, graph: _Graph, X: str) -> str:
    u = graph.add("Mul", graph.add("Sub", X, _value(embedding.center)), _value(embedding.slope))
    v = graph.add("Div", u, embeddings.BOUND)
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", v, v), 1.0))
    clipped = graph.add("Sub", graph.add("Div", u, root), _value(embedding.mean))
    return graph.add("Div", clipped, _value(embedding.scale))


@_map.register(embeddings.PiecewiseLinear)
def _piecewise_linear(embedding: embeddings.PiecewiseLinear, graph: _Graph, X: str) -> str:
    edges = _value(embedding.edges)
    above = graph.add("Sub", graph.add("Unsqueeze", X, np.array([2])), edges[:, :-1])
    share = graph.add("Clip", graph.add("Div", above, np.diff(edges)), 0.0, 1.0)
    centred = graph.add("Sub", graph.add("Flatten", share, axis=1), 0.5)
    return graph.add("Concat", _features(embedding.clip, graph, X), centred, axis=1)


@_map.register(embeddings.Periodic)
def _periodic(embedding: embeddings.Periodic, graph: _Graph, X: str) -> str:
    u = _features(embedding.clip, graph, X)
    turns = graph.add("Mul", graph.add("Unsqueeze", u, np.array([2])), _value(embedding.frequencies))
    angles = graph.add("Mul", graph.add("Add", turns, _value(embedding.phases)), 2 * np.pi)
    waves = graph.add("Einsum", graph.add("Cos", angles), _value(embedding.weight), equation="ndh,dhk->ndk")
    v = graph.add("Flatten", graph.add("Add", waves, _value(embedding.bias)), axis=1)
    return graph.add("Concat", u, v, axis=1)


def _nearest(graph: _Graph, X: str, low: Any, high: Any) -> str:
    return graph.add("Min", graph.add("Max", X, _value(low)), _value(high))
