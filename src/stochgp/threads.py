"""How many threads the linear algebra of the host uses."""

import functools
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController


def one_blas_thread() -> AbstractContextManager:
    """One thread for each BLAS and LAPACK call made inside, by NumPy and by JAX on a CPU.

    Many small factorisations are several times faster so: a library's threads wait for one another longer than they work.
    """
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks at all libraries loaded, which takes milliseconds
