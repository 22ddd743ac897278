"""For all tests: one core a worker, compiled code let go after each file, and the annotations' shapes and dtypes checked.

Set STOCHGP_TYPECHECK=0 to leave that check out.
"""

import os

import jaxtyping

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # Before JAX starts: two workers (gw0, gw1, …) whose thread pools share the cores would wait for each other.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(cores)]})

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


@pytest.fixture(scope="module", autouse=True)
def compiled_code_is_let_go():
    """Every compiled function holds memory maps, of which Linux allows a process 65,530: thousands of tests would run out."""
    yield
    jax.clear_caches()
