"""For all tests: one core a worker, compiled code on disk instead of in memory, and the annotations' shapes and dtypes checked.

Set STOCHGP_TYPECHECK=0 to leave that check out.
"""

import os
from pathlib import Path

import jaxtyping

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # Before JAX starts: two workers (gw0, gw1, …) whose thread pools share the cores would wait for each other.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(cores)]})

# Most of a first run is XLA compiling. What it made serves the other files, workers, processes that tests start, and the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

if os.environ.get("STOCHGP_TYPECHECK", "1") != "0":
    jaxtyping.install_import_hook("stochgp", "typecheck.checked")  # before the first import of the package

import hypothesis
import jax
import pytest

# The same examples in every run, however slow the machine; STOCHGP_FUZZ asks for more.
hypothesis.settings.register_profile("stochgp", derandomize=True, deadline=None)
hypothesis.settings.load_profile("stochgp")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def double():
    """Arrays of float64, in the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def strict_double(double):
    """The same, and nothing is promoted silently."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def compiled_code_is_let_go():
    """Every compiled function holds memory maps, of which Linux allows a process 65,530: thousands of tests would run out."""
    yield
    jax.clear_caches()
