"""Fitted feature GPs as ONNX files (`pip install stochgp[onnx]`): predictions wherever ONNX Runtime runs, without Python, JAX or this package.

`onnx` itself is loaded by `to_onnx` alone. The file computes, in float64,

    z = (x − mean)/scale,   Φ = φ(z),   E f = m + s Φŵ,   var f = c(z) s² Σ_j (ΦR)_j²,   var y = var f + c(z) s² σ²

with the names of `posteriors.FeaturePosterior`; c is that of `observations.Dispersion`, 1 for Gaussian errors, and z is rounded to the dtype of the model.
"""
# pyright: reportMissingImports=false
# onnx is an extra.

import importlib
import os
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from stochgp import features, networks
from stochgp.data import TableEncoder
from stochgp.estimators.fitted import Fitted
from stochgp.families import FeatureGPRegressor
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import LARGEST_OF_TREES, ConstantNoise
from stochgp.numerics.trees import Trees
from stochgp.observations import Observation
from stochgp.parameters import value_of
from stochgp.storage.trees import replacing
from stochgp.version import __version__

OPSET, IR_VERSION = 18, 8  # of 2022: older runtimes read the file too
FLOAT, INT64, DOUBLE = 1, 7, 11  # the numbers of ONNX
OUTPUTS = ("mean", "function_std", "observation_std")
ACTIVATIONS = {
    networks.relu: "Relu", jax.nn.relu: "Relu", jnp.tanh: "Tanh", jax.nn.sigmoid: "Sigmoid", jax.nn.softplus: "Softplus"
}  # fmt: skip


def to_onnx(model: Any, path: str | os.PathLike) -> None:
    """Write mean and standard deviations of a fitted `FeatureGPRegressor` to an ONNX file.

    The input "X" is float64 [N, D], in the units and the order of the columns of `fit`. The outputs are float64 [N], in the units of the targets:
    "mean"; "function_std", of f, as `predict(X, return_std=True)`; "observation_std", with the noise, as with `include_noise=True`. They equal
    those of `predict` up to rounding. Predictions of a row with NaN are NaN. The file holds no training rows. Its metadata name the columns of a
    data frame, and the distribution of an observation.

    Features may be "mlp", "rff", "orf" and "linear", and sums and chains of them; networks are of `stochgp.networks.mlp` with ReLU, tanh, sigmoid or
    softplus; noise is constant, or Student-t whose scale depends on the inputs. Raises TypeError for other estimators, ValueError for other features,
    for a table whose columns are encoded, for transformed targets, counts and calibrations, and ImportError without `onnx`.

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
    fitted, graph = model._fitted, Graph()
    _check(fitted.encoder, fitted.observation)
    _write(fitted, graph)
    inflation, names = fitted.observation.inflation, getattr(model, "feature_names_in_", None)
    df = None if inflation is None else inflation.df
    about = {"distribution": "Gaussian" if df is None else f"Student-t, {df:.4g} degrees of freedom"}
    about |= {} if names is None else {"columns": ", ".join(names)}
    _save(graph, len(fitted.inputs.mean), about, path)


class Graph:
    """Nodes (operator, inputs, output, attributes) and constant arrays by name."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, op: str, *inputs: Any, out: str | None = None, **attributes: Any) -> str:
        """Return the name of the output of a new node; inputs are names, numbers, or whole numbers that are indices and sizes."""
        names = [given if isinstance(given, str) else self._constant(given) for given in inputs]
        out = f"v{len(self.nodes)}" if out is None else out
        self.nodes.append((op, names, out, attributes))
        return out

    def _constant(self, value: Any) -> str:
        value, name = np.asarray(value), f"c{len(self.arrays)}"
        self.arrays[name] = value.astype(np.int64 if value.dtype.kind == "i" else np.float64)
        return name


def _save(graph: Graph, n_inputs: int, about: dict[str, str], path: str | os.PathLike) -> None:
    """Write the graph as a checked file. Raises ImportError if onnx is not installed."""
    try:
        onnx: Any = importlib.import_module("onnx")  # pyright takes `import onnx` for this file
    except ImportError as error:
        raise ImportError("to_onnx needs the package onnx: pip install 'stochgp[onnx]'") from error
    makers = onnx.helper
    X = makers.make_tensor_value_info("X", DOUBLE, ["N", n_inputs])
    outputs = [makers.make_tensor_value_info(name, DOUBLE, ["N"]) for name in OUTPUTS]
    nodes = [makers.make_node(op, names, [out], **options) for op, names, out, options in graph.nodes]
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in graph.arrays.items()]
    whole = makers.make_graph(nodes, "stochgp", [X], outputs, arrays)
    versions = {"opset_imports": [makers.make_opsetid("", OPSET)], "ir_version": IR_VERSION}
    model = makers.make_model(whole, producer_name="stochgp", producer_version=__version__, **versions)
    makers.set_model_props(model, about)
    onnx.checker.check_model(model)
    with replacing(path) as partial:
        onnx.save(model, os.fspath(partial))


def _check(encoder: Any, observation: Observation) -> None:
    """Raise ValueError for inputs and observations that cannot be written."""
    if encoder is not None and not isinstance(encoder, TableEncoder):
        raise ValueError("to_onnx writes models of numbers, not of molecules or fingerprints")
    rules = () if encoder is None else encoder.columns
    is_plain = lambda rule: rule.kind in ("number", "boolean") and not rule.indicator
    other = [rule.name for rule in rules if not is_plain(rule) or (rule.bound, rule.reading) != (None, None)]
    noise = observation.likelihood.noise if isinstance(observation.likelihood, Gaussian) else None
    for is_other, what in (
        (other, f"encoded columns ({', '.join(map(repr, other))}): encode them before `fit`"),
        (observation.outward is not None, "transformed targets and counts: fit targets such as log(y)"),
        (observation.mean_function is not None, "fitted prior means: fit with mean=None"),
        (observation.correction is not None, "calibrations: fit with calibration=None"),
        (not isinstance(noise, ConstantNoise), "noise models of your own: fit with likelihood='auto'"),
    ):
        if is_other:
            raise ValueError(f"to_onnx does not write {what}")


def _write(fitted: Fitted, graph: Graph) -> None:
    posterior: Any = fitted.posterior
    observation, s = fitted.observation, fitted.target_scale
    Z = graph.add("Div", graph.add("Sub", "X", fitted.inputs.mean), fitted.inputs.scale)
    if np.dtype(fitted.dtype) == np.float32:
        Z = graph.add("Cast", graph.add("Cast", Z, to=FLOAT), to=DOUBLE)
    Phi = _features(posterior.features, graph, Z)
    mean = graph.add("MatMul", Phi, posterior.weights)
    graph.add("Add", graph.add("Mul", mean, s), float(fitted.targets.mean), out="mean")
    half = graph.add("MatMul", Phi, posterior.root)
    variance = graph.add("ReduceSum", graph.add("Mul", half, half), np.array([1]), keepdims=0)
    level = float(observation.likelihood.noise.level)  # pyright: ignore[reportAttributeAccessIssue]
    total, inflation = graph.add("Add", variance, level), observation.inflation
    if inflation is not None:
        factor: Any = inflation.variance
        if inflation.trees is not None:
            factor = graph.add("Mul", _scales(inflation.trees, graph, Z), factor)
        variance, total = graph.add("Mul", variance, factor), graph.add("Mul", total, factor)
    graph.add("Mul", graph.add("Sqrt", variance), s, out="function_std")
    graph.add("Mul", graph.add("Sqrt", total), s, out="observation_std")


def _scales(trees: Trees, graph: Graph, Z: str) -> str:
    """exp Σ_t leaves[t, b_t(z)], the sum within ± LARGEST_OF_TREES."""
    inputs, thresholds, leaves = (np.asarray(part) for part in (trees.inputs, trees.thresholds, trees.leaves))
    (T, d), L = inputs.shape, leaves.shape[1]
    values = graph.add("Gather", Z, inputs.ravel().astype(np.int64), axis=1)
    digits = graph.add("Cast", graph.add("Greater", values, thresholds.ravel()), to=DOUBLE)
    leaf = graph.add("MatMul", graph.add("Reshape", digits, np.array([-1, T, d])), 2.0 ** np.arange(d)[::-1])
    place = graph.add("Cast", graph.add("Add", leaf, L * np.arange(T, dtype=np.float64)), to=INT64)
    logs = graph.add("Gather", leaves.ravel(), place, axis=0)
    eta = graph.add("ReduceSum", logs, np.array([1]), keepdims=0)
    return graph.add("Exp", graph.add("Clip", eta, -LARGEST_OF_TREES, LARGEST_OF_TREES))


def _features(phi: Any, graph: Graph, X: str) -> str:
    """Return the name of the output of a feature map or a network for rows X [N, D]."""
    phi = value_of(phi)
    match phi:
        case features.Linear():
            with_one = graph.add("Pad", X, np.array([0, 1, 0, 0]), 1.0)  # one column of ones in front
            return graph.add("Div", with_one, phi.n_features**0.5)
        case features.RandomFourier():
            return _fourier(phi, graph, X)
        case features.Extrapolation():
            nearest = _nearest(phi, graph, X)
            equal = graph.add("Cast", graph.add("Equal", X, nearest), to=DOUBLE)
            outside = graph.add("Sub", 1.0, graph.add("ReduceMin", equal, np.array([1]), keepdims=1))
            difference = graph.add("Sub", *(_features(phi.fourier, graph, rows) for rows in (X, nearest)))
            return graph.add("Mul", difference, outside)
        case features.Sum():
            parts = (_features(part, graph, X) for part in (phi.left, phi.right))
            return graph.add("Concat", *parts, axis=1)
        case features.Scaled():
            return graph.add("Mul", _features(phi.features, graph, X), np.sqrt(_value(phi.variance)))
        case features.Composed():
            return _features(phi.features, graph, _features(phi.network, graph, X))
        case features.Network():
            return _features(phi.network, graph, X)
        case networks.Within():
            nearest, width = _nearest(phi, graph, X), _value(phi.width)
            share = graph.add("Div", graph.add("Sub", X, nearest), np.where(width > 0, width, 1))
            inside = graph.add("Add", nearest, graph.add("Mul", graph.add("Tanh", share), width))
            return _features(phi.network, graph, inside)
        case networks.MLP():
            return _mlp(phi, graph, X)
    _refuse(type(phi).__name__)


def _fourier(phi: features.RandomFourier, graph: Graph, X: str) -> str:
    kernel = value_of(phi.kernel)
    if kernel.active_dims is not None:
        X = graph.add("Gather", X, np.array(kernel.active_dims, np.int64), axis=1)
    angles = graph.add("MatMul", graph.add("Div", X, _value(kernel.lengthscale)), _value(phi.frequencies))
    if phi.phases is None:
        waves = graph.add("Concat", graph.add("Cos", angles), graph.add("Sin", angles), axis=1)
    else:
        waves = graph.add("Cos", graph.add("Add", angles, _value(phi.phases)))
    return graph.add("Mul", waves, np.sqrt(2 * _value(kernel.variance) / phi.n_features))


def _mlp(network: networks.MLP, graph: Graph, X: str) -> str:
    if network.activation not in ACTIVATIONS:
        _refuse(f"the activation {network.activation!r}")
    for i, layer in enumerate(network.layers):
        X = graph.add("Add", graph.add("MatMul", X, layer.weight), layer.bias)
        if network.final_activation or i + 1 < len(network.layers):
            X = graph.add(ACTIVATIONS[network.activation], X)
    return X


def _nearest(box: Any, graph: Graph, X: str) -> str:
    return graph.add("Min", graph.add("Max", X, _value(box.low)), _value(box.high))


def _value(parameter: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(value_of(parameter))


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"to_onnx does not write {what}: it writes the features 'mlp', 'rff', 'orf' and 'linear', sums and chains of them, and networks of "
        "stochgp.networks.mlp with ReLU, tanh, sigmoid or softplus"
    )
