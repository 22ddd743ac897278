"""Public docstrings: numpydoc sections that state every parameter, examples that run, and a page of the API for every name."""

import ast
import doctest
import enum
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from numpydoc.validate import validate

import stochgp
from docs._ext import api

CODES = {
    "GL07",
    "GL08",
    "SS01",
    "PR01",
    "PR02",
    "PR10",
}  # sections in order, a summary, every parameter, no other
INTERNAL = {
    "budget", "choosing", "cli", "compiled", "context", "contrib", "deadline", "sharding", "estimators", "families", "names", "neighbours", "numerics",
    "pools", "storage", "tables", "version", "warning",
}  # fmt: skip
MODULES = [name for name in api.MODULES if name != "contrib.botorch"]  # it needs its extra


def values_of(module):
    """Name → class or function, of what the module's page of the API shows."""
    found = importlib.import_module(f"stochgp.{module}")
    text = api.page(module)
    shown = {name: getattr(found, name) for name in api.public(found) if f"stochgp.{module}.{name}\n" in text}
    return {name: value for name, value in shown.items() if not is_enumeration(value)}


def is_enumeration(value):
    return inspect.isclass(value) and issubclass(value, enum.Enum)


def faults(path):
    return [f"{path}: {code} {said}" for code, said in validate(path)["errors"] if code in CODES]


@pytest.mark.parametrize("module", MODULES)
def test_every_parameter_is_documented(module):
    assert [fault for name in values_of(module) for fault in faults(f"stochgp.{module}.{name}")] == []


@pytest.mark.parametrize("name", [*api.ESTIMATORS, "load", "register"])
def test_every_parameter_of_an_estimator_and_of_its_fit_is_documented(name):
    found = faults(f"stochgp.{name}")
    if name in api.ESTIMATORS:
        found += faults(f"stochgp.{name}.fit")
    assert found == []


def test_docstrings_open_with_an_imperative_or_a_noun():
    opening, found = re.compile(r"(What|Whether|How|Which)\b|\("), []
    for path in Path(stochgp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                found += [f"{path.name}: {text[:60]}"] if opening.match(text) else []
    assert found == []


def test_every_public_module_and_name_has_a_page():
    rooms = {info.name for info in pkgutil.iter_modules(stochgp.__path__) if not info.name.startswith("_")}
    assert rooms - INTERNAL == {name for name in api.MODULES if not name.startswith("contrib.")}
    assert set(stochgp.__all__) - {"__version__"} - rooms == {
        *api.ESTIMATORS,
        "load",
        "register",
        "show_versions",
    }
    for module in MODULES:  # what another module of the list defines stands on that one's page
        own = importlib.import_module(f"stochgp.{module}")
        elsewhere = [getattr(own, name).__module__.split(".")[1] for name in api.public(own)]
        assert set(elsewhere) - {module.split(".")[0]} <= set(api.MODULES) | INTERNAL


@pytest.mark.parametrize("name", api.ESTIMATORS)
def test_examples_run(name):
    kind = getattr(stochgp, name)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(kind), {}, name, None, 0)
    assert len(example.examples) >= 4
    said = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert said == []


def test_a_parameter_without_a_word_is_found(monkeypatch):
    """The check itself."""
    said = re.sub(r"(?s)lengthscale : .*?(?=\S+ : )", "", stochgp.kernels.Periodic.__doc__, count=1)
    monkeypatch.setattr(stochgp.kernels.Periodic, "__doc__", said)
    assert any("PR01" in fault and "lengthscale" in fault for fault in faults("stochgp.kernels.Periodic"))
