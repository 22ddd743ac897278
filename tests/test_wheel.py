"""The path of users: a wheel is built and unpacked, and runs in processes without the tests' flags of XLA and without checks of annotations."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import stochgp

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).parent / "support" / "wheel_worker.py"
OF_TESTS = (
    "JAX_DISABLE_MOST_OPTIMIZATIONS",
    "XLA_FLAGS",
    "STOCHGP_TYPECHECK",
    "JAX_ENABLE_X64",
    "PYTHONPATH",
)
DEFAULTS = [name for name in stochgp.__all__ if name.endswith(("Regressor", "Classifier"))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder of the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as file:
        file.extractall(folder / "unpacked")
    return folder / "unpacked"


def run(wheel, folder, *command):
    """What a process with the package of the wheel prints."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder, env=kept | {"PYTHONPATH": str(wheel)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_module_its_metadata_and_nothing_else(wheel):
    of = lambda folder: {
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.suffix in (".py", ".typed")
    }
    assert of(wheel / "stochgp") == of(ROOT / "src" / "stochgp")
    (information,) = wheel.glob("stochgp-*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"stochgp", information.name}
    assert f"Version: {stochgp.__version__}\n" in (information / "METADATA").read_text(encoding="utf-8")
    assert "stochgp = stochgp.__main__:run" in (information / "entry_points.txt").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("name", DEFAULTS)
def test_estimators_run_at_their_defaults(name, wheel, tmp_path):
    """On a small table."""
    found = run(wheel, tmp_path, WORKER, name).strip().splitlines()[-1]
    assert Path(found).parent == wheel / "stochgp"


def test_the_readme_runs(wheel, tmp_path):
    """Its Python, which fits a kernel GP, and its commands, which fit a feature GP."""
    generator = np.random.default_rng(0)
    distance, carrier = generator.uniform(0, 3, 150), generator.choice(["AA", "UA"], 150)
    delay = np.sin(2 * distance) + (carrier == "AA") + 0.1 * generator.normal(size=150)
    lines = [f"{d},{c},{y}" for d, c, y in zip(distance, carrier, delay, strict=True)]
    (tmp_path / "flights.csv").write_text("\n".join(["distance,carrier,delay", *lines]))
    (tmp_path / "new.csv").write_text(
        "\n".join(["distance,carrier", *(line.rpartition(",")[0] for line in lines[:20])])
    )
    found = run(wheel, tmp_path, WORKER, "README").strip().splitlines()[-1]
    assert Path(found).parent == wheel / "stochgp"
    header, *rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(rows) == 20 and "lower_95" in header
