"""Threads of the host's linear algebra."""

import pytest
from threadpoolctl import ThreadpoolController

from stochgp.numerics import threads


@pytest.mark.parametrize(("size", "inside"), [(threads.SMALL, 1), (threads.SMALL + 1, 2)])
def test_small_factorisations_have_one_thread_and_the_setting_comes_back(size, inside):
    controller = ThreadpoolController()
    count = lambda: {library["num_threads"] for library in controller.select(user_api="blas").info()}
    with controller.limit(limits=2, user_api="blas"):
        with threads.few_blas_threads(size):
            assert count() == {inside}
        assert count() == {2}
