"""K V in one pass: its programs run one by one here, against float64; what a GPU would be given; and on a GPU where there is one."""

import sys

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from sweeps import some_of

from stochgp import kernels, operators
from stochgp.networks import Dense
from stochgp.operators import KernelOperator, fused
from stochgp.parameters import frozen

B, P = 70, 150
EPS = float(np.finfo(np.float32).eps)
DIMENSIONS = (1, 4, 5, 23)  # one by one; by a product of matrices, one or two of them
COLUMNS = (1, 2, 3, 17, 40, 130)  # narrow; filled up; wide and narrow; filled up; in several calls
KERNELS = {
    "rbf": lambda D: kernels.RBF(np.linspace(1.0, 2.0, D) * D**0.5, 2.0),
    "matern12": lambda D: kernels.Matern12(D**0.5),
    "matern32": lambda D: kernels.Matern32(np.linspace(1.0, 2.0, D) * D**0.5, 0.5),
    "matern52": lambda D: kernels.Matern52(D**0.5, active_dims=range(D)),
    "rational quadratic": lambda D: kernels.RationalQuadratic(D**0.5, alpha=0.7),
    "warped": lambda D: kernels.Warped(kernels.Matern32(), frozen(_turn(D))),
}
DEPRECATED = "ignore:The Pallas Triton backend is deprecated"  # from JAX 0.11 on
TRITON = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]


def _turn(D):
    W = np.random.default_rng(D).normal(size=(D, D)) / D
    return Dense(jnp.asarray(W, jnp.float32), jnp.zeros(D, jnp.float32))


def _data(D, S, seed=0):
    generator = np.random.default_rng(seed)
    sizes = ((B, D), (P, D), (P, S))
    return [jnp.asarray(generator.normal(size=size), jnp.float32) for size in sizes]


def _exact(kernel, X, Z, V):
    with jax.enable_x64(True):
        X, Z, V = (jnp.asarray(np.asarray(part), jnp.float64) for part in (X, Z, V))
        K = np.asarray(matrix(kernel, X, Z))
        return K @ np.asarray(V), np.abs(K) @ np.abs(np.asarray(V))


@pytest.fixture
def on_gpu(monkeypatch):
    """JAX says that it runs on a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def _interpreted(kernel, rows, columns, V, **kwargs):
    return jax.jit(lambda *parts: fused.product(kernel, *parts, interpret=True, **kwargs))(rows, columns, V)


def _is_close(kernel, D, S, product):
    X, Z, V = _data(D, S)
    found, (exact, scale) = jax.jit(product)(X, Z, V), _exact(kernel, X, Z, V)
    assert found.shape == (B, S) and found.dtype == jnp.float32
    np.testing.assert_array_less(np.abs(found - exact), 40 * EPS * scale)


CASES = [
    *((name, 5, 17) for name in KERNELS),
    *(("matern32", 5, S) for S in COLUMNS if S != 17),
    *(("matern32", D, S) for D in DIMENSIONS if D != 5 for S in (1, 17)),
]
FEW = [("rbf", 5, 17), ("warped", 5, 17), ("matern32", 5, 130), ("matern32", 1, 1), ("matern32", 23, 17)]


@pytest.mark.parametrize("case", some_of(CASES, FEW), ids=str)
def test_every_kernel_of_distances(case):
    name, D, S = case
    kernel = KERNELS[name](D)

    def product(X, Z, V):
        rows, columns = (kernel.prepare(part, jnp.zeros(D, jnp.float32)) for part in (X, Z))
        assert fused.serves(kernel.radial, rows, V)
        return _interpreted(kernel.radial, rows, columns, V)

    _is_close(kernel, D, S, product)


def test_repeated_rows_have_the_whole_variance():
    for D in (4, 23):
        kernel, (X, _, _) = kernels.Matern32(0.01, 1.7), _data(D, 1)

        rows = kernel.prepare(X, jnp.zeros(D, jnp.float32))
        found = _interpreted(kernel, rows, rows, np.eye(B, dtype=np.float32))
        np.testing.assert_array_equal(np.diag(found), np.float32(1.7))


@pytest.mark.parametrize("block", [(16, 16), (32, 64), (128, 16)])
def test_any_block_of_a_program(block, monkeypatch):
    monkeypatch.setattr(fused, "PROGRAMS", 8)  # so few that each has several steps
    kernel = kernels.RBF()
    prepared = lambda part: kernel.prepare(part, jnp.zeros(3, jnp.float32))
    _is_close(kernel, 3, 17, lambda X, Z, V: _interpreted(kernel, prepared(X), prepared(Z), V, block=block))


def _operator(kernel, D, dtype=jnp.float32):
    X = jnp.asarray(np.random.default_rng(2).normal(size=(P, D)), dtype)
    return KernelOperator.of(kernel, X, 0.1, tile=64)


@pytest.mark.filterwarnings(DEPRECATED)
def test_what_an_nvidia_gpu_is_given(on_gpu):
    def programs(operator, V, **kwargs):
        product = jax.jit(lambda operator, V: operator.matvec(V, **kwargs))
        exported = jax.export.export(product, platforms=["cuda"], disabled_checks=TRITON)
        return exported(operator, operator.pad(V)).mlir_module().count("kernel_product")

    V = jnp.ones((P, 3), jnp.float32)
    for name in ("rational quadratic", "warped"):  # the RBF kernel below
        assert programs(_operator(KERNELS[name](5), 5), V) > 0
    assert programs(_operator(kernels.RBF() + kernels.Linear(), 5), V) == 0
    assert programs(_operator(kernels.RBF(), fused.MOST + 1), V) == 0
    with jax.enable_x64(True):
        assert programs(_operator(kernels.RBF(), 5, jnp.float64), V.astype(jnp.float64)) == 0
        assert programs(_operator(kernels.RBF(), 5), V, wide=True) == 0
        assert programs(_operator(kernels.RBF(), 5), V) > 0


def test_a_jax_without_the_backend_has_tiles(on_gpu, monkeypatch):
    operator, V = _operator(kernels.RBF(), 5), jnp.ones((P, 1), jnp.float32)
    assert operator._is_fused(V)
    monkeypatch.delattr(operators, "fused")
    monkeypatch.setitem(sys.modules, "stochgp.operators.fused", None)
    assert not operator._is_fused(V)


def test_other_devices_have_tiles_and_derivatives_are_those_of_tiles(monkeypatch):
    operator = _operator(kernels.Matern32([1.0, 2.0, 3.0]), 3)
    generator = np.random.default_rng(4)
    V = operator.pad(jnp.asarray(generator.normal(size=(P, 2)), jnp.float32))
    Z = jnp.asarray(generator.normal(size=(7, 3)), jnp.float32)

    def value(parts):
        operator, Z, V = parts
        return jnp.sum(jnp.sin(operator.times(operator.prepare(Z), V)))

    def found():  # traced afresh
        product = lambda parts: (parts[0].matvec(parts[2]), eqx.filter_value_and_grad(value)(parts))
        return eqx.filter_jit(product)((operator, Z, V))

    tiles = found()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert operator._is_fused(V)
    passed = found()
    for one, other in zip(jax.tree.leaves(tiles), jax.tree.leaves(passed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings(DEPRECATED)
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU here")
def test_on_a_gpu():
    product = jax.jit(lambda operator, X, V: operator.times(operator.prepare(X), V))
    for name, make in KERNELS.items():
        for D in DIMENSIONS:
            kernel = make(D)
            on_gpu = lambda X, Z, V, kernel=kernel: product(KernelOperator.of(kernel, Z, 0.1), X, V)
            for S in COLUMNS if name == "matern32" else (1, 17):
                _is_close(kernel, D, S, on_gpu)
