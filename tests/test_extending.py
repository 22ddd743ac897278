"""A part of a user's own, in a file of its own, is known by its name to the estimators, to the command line and to saved models."""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import stochgp
from stochgp import FeatureGPRegressor, KernelGPRegressor, SparseGPRegressor
from stochgp.cli import main
from stochgp.names import REGISTERED, load_code

pytestmark = pytest.mark.usefixtures("own_parts")
FILE = Path(__file__).parent / "support" / "own_parts.py"
generator = np.random.default_rng(0)
X = generator.uniform(-2, 2, size=(60, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * generator.normal(size=60)

OWN = {
    "kernel": ("kernel", lambda: KernelGPRegressor("cauchy", random_state=0)),
    "features": ("feature", lambda: FeatureGPRegressor("waves", learner="full-batch", random_state=0)),
    "solver": (
        "kernel",
        lambda: KernelGPRegressor(solver="richardson", learner=None, random_state=0),
    ),
    "learner": ("kernel", lambda: KernelGPRegressor(learner="differences", random_state=0)),
    "likelihood": (
        "sparse",
        lambda: SparseGPRegressor(likelihood="laplace", n_inducing=16, random_state=0),
    ),
    "family": ("constant", lambda: sys.modules["own_parts"].ConstantRegressor(random_state=0)),
}  # fmt: skip
SETTINGS = {
    "kernel": ["kernel=cauchy"],
    "features": ["features=waves", "learner=full-batch"],
    "solver": ["solver=richardson", "learner=none"],
    "learner": ["learner=differences"],
    "likelihood": ["likelihood=laplace", "n_inducing=16"],
    "family": [],
}


@pytest.fixture(scope="module", params=OWN)
def fitted(request, own_parts):
    return request.param, OWN[request.param][1]().fit(X, y)


def test_an_estimator_takes_it_by_name_and_its_model_is_saved(fitted, tmp_path):
    _, model = fitted
    model.save(tmp_path / "model")
    mean, std = model.predict(X[:5], return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()
    again = stochgp.load(tmp_path / "model")
    assert_array_equal(again.predict(X[:5], return_std=True), (mean, std))
    assert_array_equal(again.predict_interval(X[:5]), model.predict_interval(X[:5]))


def test_the_command_line_takes_it_by_name(fitted, tmp_path, capsys):
    """And predicts what the estimator does."""
    kind, model = fitted
    names = ["a", "b"]
    pd.DataFrame(X, columns=names).assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
    files = [str(tmp_path / name) for name in ("rows.csv", "model", "out.csv")]
    settings = [part for text in SETTINGS[kind] for part in ("--set", text)]
    own = ["--with", str(FILE)]
    asked = ["fit", files[0], "--target", "y", "--model", OWN[kind][0], "--out", files[1], "--quiet", "--json"]  # fmt: skip
    assert main([*asked, *settings, *own]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)
    assert main(["predict", files[1], files[0], "--out", files[2], *own]) == 0
    assert_allclose(pd.read_csv(files[2])["mean"], model.predict(X), rtol=1e-4, atol=1e-4)


def test_what_they_predict_is_what_they_say(own_parts):
    """The kernel's value, the noise that the learner finds, the solver's solution."""
    kernel = own_parts.Cauchy(2.0, 1.5)
    assert float(kernel(jnp.zeros(1), jnp.ones(1))) == pytest.approx(1.5 / (1 + 0.25))
    learned = OWN["learner"][1]().fit(X, y)
    order = np.argsort(X[:, 0])
    posterior = learned._fitted.posterior
    noise = float(getattr(posterior, "base", posterior).noise.level) * learned._fitted.target_scale**2
    assert noise == pytest.approx(np.mean(np.diff(y[order]) ** 2) / 2, rel=1e-4)
    exact = KernelGPRegressor(solver="cholesky", learner=None, random_state=0)
    assert_allclose(OWN["solver"][1]().fit(X, y).predict(X), exact.fit(X, y).predict(X), atol=0.02)


def test_names_are_refused_where_they_are_unknown_or_taken(own_parts, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"unknown kernel 'cauchi'; did you mean 'cauchy'\?"):
        KernelGPRegressor("cauchi").fit(X, y)
    with pytest.raises(ValueError, match="the name 'cauchy' is already registered for the kernel Cauchy"):
        stochgp.register("cauchy")(type("Other", (own_parts.Cauchy,), {}))
    assert main(["predict", "model", "rows", "--out", "x.csv", "--with", str(tmp_path / "no.py")]) == 2
    assert "there is no such file or module" in capsys.readouterr().err


def test_a_model_of_a_class_that_is_not_registered_says_which(tmp_path, monkeypatch):
    KernelGPRegressor("cauchy", random_state=0).fit(X, y).save(tmp_path / "model")
    monkeypatch.setitem(REGISTERED, "kernel", {})
    with pytest.raises(ValueError, match="registered kernel 'cauchy': register its class first"):
        stochgp.load(tmp_path / "model")


def test_a_file_is_run_whatever_it_is_called(tmp_path):
    """Also by the name of a module that is there."""
    path = tmp_path / "json.py"
    path.write_text('import stochgp\n\n\n@stochgp.register("own-part")\nclass Part:\n    pass\n')
    load_code([str(path)])
    first = REGISTERED["part"]["own-part"]
    load_code([str(path)])
    assert first.__name__ == "Part" and REGISTERED["part"]["own-part"] is first
