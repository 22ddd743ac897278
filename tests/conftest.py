"""Settings of all tests: one core per worker, a cache of programs, allowed skips.

STOCHGP_TYPECHECK=1 checks shapes and dtypes of annotations. With STOCHGP_EXTRAS=1, the tests of extras may
not be skipped.
"""

import gc
import importlib
import inspect
import os
import sys
from pathlib import Path

import jaxtyping

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # Set before JAX starts: workers (gw0, gw1, …) whose thread pools share cores would wait for each other.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(cores)]})

# Most of a first run is compiling. All files, workers and later runs share the compiled programs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
# Small programs are stored too, because loading one is three times as fast as compiling it.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

if os.environ.get("STOCHGP_TYPECHECK") == "1":
    jaxtyping.install_import_hook("stochgp", "typecheck.checked")  # before the first import of the package

import hypothesis
import jax
import lowering
import psutil
import pytest
from costs import Costs
from hypothesis.internal.conjecture import providers
from sweeps import long_cells

lowering.share_contexts()
jax.config.update("jax_traceback_in_locations_limit", 0)  # not needed in programs

# Hypothesis would search all loaded modules for constants, which takes seconds in each process.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants
# The same examples in every run, on machines of any speed; STOCHGP_FUZZ sets a larger number.
hypothesis.settings.register_profile("stochgp", derandomize=True, deadline=None)
hypothesis.settings.load_profile("stochgp")


# Parts of the allowed reasons for skipping a test. Any other skip fails the run.
SKIPS = (
    "../shared/data",  # data sets outside the repository
    "the shared tables are not at hand",
    "UCI's data set 275",
    "the whole history is not at hand",  # a shallow clone, or files without git
    "no GPU here",
    "SCIPY_ARRAY_API is not set",  # a check of scikit-learn
    "reset by Linux alone",
    "read from Linux and macOS",
)
# Only `make test-all` installs these packages.
SKIPS_OF_EXTRAS = ("torch", "PyTorch", "BoTorch", "gymnasium")
_skipped: dict[str, str] = {}  # reason for each test


# Workers start with these slow files, so that none of them runs last. The summary of a run lists the times.
FIRST = (
    "tests/test_devices.py",
    "tests/families/test_growing.py",
    "tests/pools/test_classifier.py",
    "tests/test_wheel.py",
    "tests/families/test_targets.py",
    "tests/estimators/test_mean_function.py",
    "tests/families/test_sparse.py",
    "tests/objectives/test_decoupled.py",
    "tests/learners/test_decoupled.py",
    "tests/data/test_files.py",
    "tests/families/test_observation.py",
    "tests/pools/test_regressor.py",
    "tests/families/test_update.py",
    "tests/thompson/test_sampler.py",
    "tests/families/test_error_distribution.py",
    "tests/distributions/test_distributions.py",
    "tests/variational/test_variational.py",
    "tests/test_priors.py",
    "tests/variational/test_decoupled_mean.py",
    "tests/test_deadline.py",
    "tests/test_fork.py",
    "tests/pools/test_interrupts.py",
    "tests/test_fuzz.py",
    "tests/test_simulated.py",
)


# For each collected test, whether its own file marks it as long.
COLLECTED = pytest.StashKey[dict[str, bool]]()


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests
def pytest_collection_modifyitems(config, items):
    config.stash[COLLECTED] = {item.nodeid: item.get_closest_marker("long") is not None for item in items}
    long = set(long_cells())
    for item in items:
        if item.nodeid in long:
            item.add_marker(pytest.mark.long)
    places = {file: place for place, file in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(FIRST)))


@pytest.fixture
def collected(request):
    """For each collected test, whether its own file marks it as long."""
    return request.config.stash[COLLECTED]


def pytest_collection_finish():
    """Collect garbage less often, because traced programs are large and live long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def pytest_configure(config):
    config.pluginmanager.register(Costs())


def pytest_runtest_logreport(report):
    _note(report)


def pytest_collectreport(report):
    _note(report)


def _note(report):
    """Record a skipped test. The main process receives the reports of all workers."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped[report.nodeid] = str(
            report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        )


def _without_a_name():
    allowed = SKIPS if os.environ.get("STOCHGP_EXTRAS", "0") != "0" else SKIPS + SKIPS_OF_EXTRAS
    return {node: why for node, why in _skipped.items() if not any(part in why for part in allowed)}


def pytest_sessionfinish(session, exitstatus):
    if _without_a_name() and not hasattr(session.config, "workerinput") and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    for node, why in _without_a_name().items():
        terminalreporter.write_line(f"skip not allowed by conftest.SKIPS: {node}: {why}", red=True)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def double():
    """Use float64 arrays in the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def strict_double(double):
    """Use float64 arrays, and refuse implicit promotion."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


MOST_MAPS = 40_000  # memory maps; Linux allows 65,530 per process
MOST_BYTES = 3_000_000_000  # resident memory of one worker


def _memory_is_short() -> bool:
    """Return True if compiled programs use too many memory maps or too much memory."""
    maps = Path("/proc/self/maps")
    many = maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS
    return many or psutil.Process().memory_info().rss > MOST_BYTES


@pytest.fixture(scope="module", autouse=True)
def compiled_code_is_let_go():
    """Clear compiled programs if memory is short; otherwise the next files reuse them."""
    yield
    if _memory_is_short():
        jax.clear_caches()


# Files in which kernel GPs use the default number of hyperparameter draws. Each draw takes a tenth of a fit.
ALL_DRAWS = (
    "families/test_hyperparameters.py",
    "families/test_few_rows.py",
    "test_docstrings.py",
    "test_pages.py",
    "test_simulated.py",
)


@pytest.fixture(scope="session", autouse=True)
def own_draws():
    """The default number of hyperparameter draws."""
    from stochgp.families import kernel_posterior

    return kernel_posterior.DRAWS


@pytest.fixture(scope="module", autouse=True)
def few_draws(own_draws, request):
    """Use four hyperparameter draws, which run the same code."""
    from stochgp.families import kernel_posterior

    kernel_posterior.DRAWS = own_draws if request.node.nodeid.endswith(ALL_DRAWS) else 4


# Files that use the default numbers of random features and points. Other files use fewer to save time.
AS_USERS = (
    "test_priors.py",
    "likelihoods/test_contract.py",
    "test_simulated.py",
    "test_docstrings.py",
    "test_pages.py",
)


@pytest.fixture(scope="module", autouse=True)
def few_features(request):
    """Use 200 random features for prior functions, and fewer points for class probabilities."""
    from stochgp.likelihoods import classes
    from stochgp.priors import prior_functions

    if request.node.nodeid.endswith(AS_USERS):
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(inspect.unwrap(prior_functions).__kwdefaults__, "n_features", 200)
        patched.setattr(classes, "PREDICTED", 64)
        yield


@pytest.fixture
def traced_afresh():
    """Clear compiled programs before and after a test that replaces values in traced code."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def own_parts():
    """Register the parts of `support/own_parts.py` for the tests of one file."""
    from stochgp.names import REGISTERED

    yield importlib.import_module("own_parts")
    REGISTERED.clear()
    del sys.modules["own_parts"]
