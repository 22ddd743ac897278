"""What `import stochgp` and help on the command line load, and that the public names are there all the same."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

import stochgp

HEAVY = ("jax", "equinox", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "matplotlib")
LOADED = "; import json, sys; sys.stderr.write(json.dumps(sorted(sys.modules)))"
HELP = "from stochgp.cli import main; main({})"


def modules_after(code):
    """The modules that a fresh interpreter has after the code."""
    environment = os.environ | {"STOCHGP_TYPECHECK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code + LOADED], capture_output=True, text=True, check=True, env=environment
    )
    return set(json.loads(done.stderr)), done.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import stochgp; dir(stochgp)", ""),
        (HELP.format(["--help"]), "evaluate"),
        (HELP.format(["fit", "--help"]), "--test-fraction"),
        (HELP.format(["predict", "--help"]), "--out"),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(code, words):
    modules, printed = modules_after(code)
    assert modules.isdisjoint(HEAVY) and words in printed


def test_versions_for_reports_name_installed_packages_without_loading_them():
    modules, printed = modules_after("import stochgp; stochgp.show_versions()")
    lines = dict(line.split(maxsplit=1) for line in printed.splitlines())
    assert modules.isdisjoint(HEAVY)
    assert lines["stochgp"] == stochgp.__version__ and lines["numpy"] == version("numpy")


def test_a_room_loads_only_what_it_needs():
    modules, _ = modules_after(
        "from stochgp import features; from stochgp.data import TableEncoder, read_table"
    )
    assert "jax" in modules
    assert modules.isdisjoint({"sklearn", "pandas", "matplotlib", "scipy.stats", "scipy.spatial"})


def test_every_public_name_is_there():
    for name in stochgp.__all__:
        assert getattr(stochgp, name) is not None and name in dir(stochgp)
    assert stochgp.load is stochgp.estimators.saving.load
    assert stochgp.FeatureGPRegressor.__name__ == "FeatureGPRegressor"
    with pytest.raises(AttributeError, match="module 'stochgp' has no attribute 'KernelGP'"):
        _ = stochgp.KernelGP
    with pytest.raises(ImportError, match="KernelGP"):
        exec("from stochgp import KernelGP")
