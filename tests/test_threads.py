"""Threads of the host's linear algebra."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import independent_batches

from stochgp import compiled, deadline, priors
from stochgp.kernels import RBF, Linear, Matern12, Matern32


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


def program_of(function, *given):
    return jax.jit(function).lower(*given).compile().as_text()


def test_batches_that_do_not_need_each_other_are_found():
    A = jnp.tile(jnp.eye(4), (3, 1, 1))
    assert independent_batches(program_of(lambda A: (jnp.linalg.cholesky(A), jnp.linalg.qr(A + 1)), A))
    assert not independent_batches(program_of(lambda A: jnp.linalg.qr(jnp.linalg.cholesky(A) + 1), A))


def test_draws_of_all_terms_of_a_kernel_wait_for_each_other():
    """On two threads functions of such a kernel might never have been drawn."""
    ard = np.ones(3)
    kernel = RBF(ard) * Linear(1.0) + Matern32(ard) * Matern12(2 * ard) + Linear(1.0) * Linear(2.0)
    draws = lambda key: priors.random_features(kernel, 3, 200, key=key).draws
    program = program_of(draws, jax.random.key(0))
    assert "lapack_" in program and not independent_batches(program)
