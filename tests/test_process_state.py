"""Warning filters and settings of JAX are the same before, during and after a fit. BLAS may have one thread during a fit."""

import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from stochgp import FeatureGPRegressor, GPRegressor
from stochgp.compiled import in_threads
from stochgp.data.rows import Data
from stochgp.pools.targets import update_member
from stochgp.warning import silent, warn

SRC = Path(__file__).parents[1] / "src" / "stochgp"
CHANGES = re.compile(
    r"catch_warnings|simplefilter|filterwarnings|warnings\.warn\(|threadpool|config\.update|set_config|environ\[[^]]*\] *=|random\.seed|setrecursionlimit"
)
X = np.random.default_rng(0).uniform(-2, 2, (150, 2))
Y = X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=150)
JAX = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_x64")


def state():
    """As another thread sees it, without the number of threads of BLAS."""
    with ThreadPoolExecutor(1) as pool:
        settings = pool.submit(lambda: [getattr(jax.config, name) for name in JAX]).result()
    return list(warnings.filters), warnings.showwarning, settings


def threads():
    return [(library["prefix"], library["num_threads"]) for library in threadpool_info()]


def pool(seed):
    members = {"a": FeatureGPRegressor("linear"), "b": FeatureGPRegressor("linear")}
    return GPRegressor(members=members, random_state=seed)


def test_no_statement_of_the_package_changes_it():
    """The command line has its own process. `warning.warn` gives warnings, and `compiled` limits threads of BLAS."""
    allowed = SRC / "warning.py", SRC / "compiled.py"
    files = [path for path in SRC.rglob("*.py") if "cli" not in path.parts and path not in allowed]
    lines = [(path, line) for path in files for line in path.read_text().splitlines()]
    found = [f"{path.relative_to(SRC)}: {line.strip()}" for path, line in lines if CHANGES.search(line)]
    assert found == []


def test_it_is_the_same_in_the_middle_of_a_pool_s_fit(monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    before, during, blas = state(), [], threads()
    model = pool(0).fit(X, Y, callback=lambda _: during.append(state()))
    model.predict(X)
    assert len(during) >= 2 and all(found == before for found in [*during, state()])
    assert threads() == blas


def test_fits_in_two_threads_leave_it():
    pool(0).fit(X, Y)
    before = state(), threads()
    with ThreadPoolExecutor(2) as workers:
        list(workers.map(lambda seed: pool(seed).fit(X, Y), range(2)))
    assert (state(), threads()) == before
    with pytest.warns(UserWarning, match="shown"):
        warnings.warn("shown", UserWarning, stacklevel=1)


def test_silence_is_that_of_one_thread_and_of_the_work_that_it_shares():
    inside, outside = threading.Event(), threading.Event()

    def quiet():
        with silent():
            inside.set()
            outside.wait(10)
            in_threads(lambda k: warn(f"shared {k}"), range(3))
        warn("after")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        thread = threading.Thread(target=quiet)
        thread.start()
        inside.wait(10)
        warn("other thread")
        outside.set()
        thread.join()
    assert [str(one.message) for one in said] == ["other thread", "after"]


def test_rows_join_a_member_silently():
    member = FeatureGPRegressor("linear", random_state=0).fit(X, Y)
    rows = Data(X[:9] + 50.0, Y[:9], np.ones(9))
    update_member(member, rows)  # where a warning would be an error
    assert member.n_rows_ == len(X) + 9
