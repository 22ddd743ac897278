"""Threads of the host's linear algebra, and programs that are compiled quickly."""

import time

import jax
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from stochgp import compiled, deadline


def test_shared_work_comes_back_in_order_and_an_error_ends_what_has_not_begun(monkeypatch):
    monkeypatch.setattr(compiled, "cores", lambda: 2)
    assert compiled.in_threads(lambda item: item**2, range(9)) == [item**2 for item in range(9)]
    begun = []

    def work(item):
        begun.append(item)
        if item == 1:
            raise ValueError("of item 1")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="of item 1"):
        compiled.in_threads(work, range(1000))
    assert len(begun) < 1000


def test_shared_work_knows_the_deadline_and_the_precision_of_its_caller(monkeypatch):
    monkeypatch.setattr(compiled, "cores", lambda: 2)
    for wide in (True, False):
        with deadline.within(1000.0), jax.enable_x64(wide):
            found = compiled.in_threads(lambda _: (deadline.left(), jax.config.jax_enable_x64), range(4))
        assert all(left < 1000 and x64 is wide for left, x64 in found)


def blas_threads():
    return {entry["num_threads"] for entry in threadpool_info() if entry["user_api"] == "blas"}


@pytest.mark.skipif(not blas_threads(), reason="no BLAS with a setting for threads is loaded")
def test_blas_has_one_thread_until_the_last_block_ends():
    """Blocks of two threads overlap. The block that began first ends first."""
    with threadpool_limits(2, user_api="blas"):
        first, second = compiled.one_blas_thread(), compiled.one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {2}
        assert compiled.in_threads(lambda _: blas_threads(), range(3)) == [{1}] * 3
        assert blas_threads() == {2}


def test_programs_that_run_seldom_compile_without_options_that_xla_does_not_know(monkeypatch):
    monkeypatch.setattr(compiled, "QUICK", {"no_such_option": True})
    assert float(compiled.quick_jit(lambda x: 2 * x)(np.float32(3))) == 6
