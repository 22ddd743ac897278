"""For all tests: one core a worker, compiled code on disk too, and no skip without a name.

Set STOCHGP_TYPECHECK=1 to check the shapes and dtypes of annotations, and STOCHGP_EXTRAS=1 if the extras are installed, whose tests may then
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
    # Before JAX starts: two workers (gw0, gw1, …) whose thread pools share the cores would wait for each other.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(cores)]})

# Most of a first run is XLA compiling. What it made serves the other files, workers, processes that tests start, and the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
# Small programs too: they are found in a third of the time that they are compiled in, and written in next to none.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

if os.environ.get("STOCHGP_TYPECHECK") == "1":
    jaxtyping.install_import_hook("stochgp", "typecheck.checked")  # before the first import of the package

import hypothesis
import jax
import lowering
import psutil
import pytest
from costs import Costs
from sweeps import long_cells

lowering.share_contexts()
jax.config.update("jax_traceback_in_locations_limit", 0)  # nobody reads in programs which line made them

# The same examples in every run, however slow the machine; STOCHGP_FUZZ asks for more.
hypothesis.settings.register_profile("stochgp", derandomize=True, deadline=None)
hypothesis.settings.load_profile("stochgp")


# What a test may be skipped for: a part of its reason. Any other skip fails the run.
SKIPS = (
    "../shared/data",  # data sets and tables beside the checkout
    "the shared tables are not at hand",
    "UCI's data set 275",
    "the whole history is not at hand",  # a shallow clone, or files without git
    "no GPU here",
    "SCIPY_ARRAY_API is not set",  # one of scikit-learn's checks
    "reset by Linux alone",
    "read from Linux and macOS",
)
# Heavy ones: `make test-all` installs them.
SKIPS_OF_EXTRAS = ("torch", "PyTorch", "BoTorch", "gymnasium")
_skipped: dict[str, str] = {}  # reasons by node


# Workers take files in this order, then the others: a slow one that came last would be waited for. From the list that is printed at the end.
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


COLLECTED = pytest.StashKey[
    dict[str, bool]
]()  # of every node that was collected, whether its own file marks it long


@pytest.hookimpl(tryfirst=True)  # before what is not chosen is taken away
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
    """Of every node that was collected, whether its own file marks it long."""
    return request.config.stash[COLLECTED]


def pytest_collection_finish():
    """Traced programs are large heaps that live long: looking through them for garbage is a tenth of the time."""
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
    """Of processes with workers the one that starts them hears of all; an expected failure is none."""
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
        terminalreporter.write_line(f"skipped for no reason of conftest.SKIPS: {node}: {why}", red=True)


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


MOST_MAPS = 40_000  # memory maps: Linux allows a process 65,530
MOST_BYTES = 3_000_000_000  # resident, of one worker


def _memory_is_short() -> bool:
    """Every compiled program holds memory maps, of which thousands of tests would run out."""
    maps = Path("/proc/self/maps")
    many = maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS
    return many or psutil.Process().memory_info().rss > MOST_BYTES


@pytest.fixture(scope="module", autouse=True)
def compiled_code_is_let_go():
    """Where maps or memory run short. Else the files that follow use the programs of those before them."""
    yield
    if _memory_is_short():
        jax.clear_caches()


# Files in which kernel GPs of few rows have as many draws of their hyperparameters as those of users. Each is a factor of the rows, and a tenth of a fit.
ALL_DRAWS = (
    "families/test_hyperparameters.py",
    "families/test_few_rows.py",
    "test_docstrings.py",
    "test_pages.py",
    "test_simulated.py",
)


@pytest.fixture(scope="session", autouse=True)
def own_draws():
    """How many there are."""
    from stochgp.families import kernel_posterior

    return kernel_posterior.DRAWS


@pytest.fixture(scope="module", autouse=True)
def few_draws(own_draws, request):
    """Four, which take the same way through the code."""
    from stochgp.families import kernel_posterior

    kernel_posterior.DRAWS = own_draws if request.node.nodeid.endswith(ALL_DRAWS) else 4


# Files that take prior functions, and probabilities of classes, as users do. Moments do not depend on the number of features, but the time does.
AS_USERS = (
    "test_priors.py",
    "likelihoods/test_contract.py",
    "test_simulated.py",
    "test_docstrings.py",
    "test_pages.py",
)


@pytest.fixture(scope="module", autouse=True)
def few_features(request):
    """200 random features of a prior function, not 2,000, and 128 points for the probabilities of three or more classes, not 2,048."""
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
    """For a test that replaces what traced code reads: no program of before serves it, and none of its own serves others."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def own_parts():
    """`support/own_parts.py`, whose parts are registered for the tests of one file alone."""
    from stochgp.names import REGISTERED

    yield importlib.import_module("own_parts")
    REGISTERED.clear()
    del sys.modules["own_parts"]
