"""No product of float32 matrices is left to the device's default precision, which on GPUs is TensorFloat-32: read from what is traced."""

import jax
import numpy as np
import pytest
from jax import lax
from sweeps import some_of

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners
from stochgp.kernels import RBF, Warped
from stochgp.networks import mlp

N = 80
WIDE = (
    "kernel full-batch",
    "kernel loo",
    "kernel vecchia",
    "solver cholesky",
    "local",
)  # few rows: float64, or factors alone


@pytest.fixture
def products(monkeypatch):
    """(dtype, precision) of every product that is traced from here on."""
    jax.clear_caches()
    found, bind = [], lax.dot_general_p.bind

    def recorded(*operands, **params):
        found.append((str(operands[0].dtype), str(params["precision"])))
        return bind(*operands, **params)

    monkeypatch.setattr(lax.dot_general_p, "bind", recorded)
    return found


FEATURE_LEARNERS = {
    "scgd": learners.SCGD,
    "minimax": learners.Minimax,
    "bsgd": learners.BSGD,
    "full-batch": learners.FullBatch,
}
KERNEL_LEARNERS = {
    "bsgd": learners.BSGD,
    "full-batch": learners.FullBatch,
    "loo": learners.LeaveOneOut,
}


def deep():
    return Warped(RBF(1.0), mlp(2, (8, 2), key=jax.random.key(0)))


FITS = {
    **{f"feature {name}": lambda kind=kind: FeatureGPRegressor(learner=kind(epochs=3), n_features=8) for name, kind in FEATURE_LEARNERS.items()},
    **{f"map {name}": lambda name=name: FeatureGPRegressor(name, n_features=8, learner=learners.SCGD(epochs=3)) for name in ("attention", "rff", "orf", "nystrom")},
    **{f"kernel {name}": lambda kind=kind: KernelGPRegressor(learner=kind(epochs=3)) for name, kind in KERNEL_LEARNERS.items()},
    **{f"solver {name}": lambda name=name: KernelGPRegressor(learner=None, solver=name) for name in ("cholesky", "cg", "sdd")},
    "deep kernel": lambda: KernelGPRegressor(deep(), learner=learners.BSGD(epochs=3)),
    "local": lambda: KernelGPRegressor(learner=None, solver="local"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_of(FITS, ["feature scgd", "solver cg"]))
def test_products_name_their_precision(name, products):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    model = FITS[name]().set_params(random_state=0).fit(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=N))
    model.predict(X[:5], return_std=True)
    if name != "local":
        model.sample_functions(2)(X[:5])
    assert any(dtype == "float32" for dtype, _ in products) or name in WIDE
    assert all(
        "DEFAULT" not in precision and precision.count("HIGHEST") == 2
        for dtype, precision in products
        if dtype == "float32"
    ), set(products)
