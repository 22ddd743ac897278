"""How many threads the linear algebra of the host uses."""

import functools
from contextlib import AbstractContextManager, nullcontext

from threadpoolctl import ThreadpoolController

SMALL = 512  # on two cores a step with one factorisation of 512 × 512 was 1.3 times faster on one thread, of 128 × 128 1.2 to 1.5 times


def one_blas_thread() -> AbstractContextManager:
    """One thread for each BLAS and LAPACK call made inside, by NumPy and by JAX on a CPU.

    Many small factorisations are several times faster so: a library's threads wait for one another longer than they work.
    """
    return _controller().limit(limits=1, user_api="blas")


def few_blas_threads(size: int) -> AbstractContextManager:
    """`one_blas_thread` where the matrices are at most `SMALL` wide."""
    return one_blas_thread() if size <= SMALL else nullcontext()


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks at all libraries loaded, which takes milliseconds
