"""Which programs JAX compiles: a program's name and its seconds, also where it is found on disk."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import jax.monitoring

EVENT = "/jax/core/compile/backend_compile_duration"

Compiled = list[tuple[str, float]]  # (name, seconds) of each, in their order


@contextmanager
def compiled() -> Iterator[Compiled]:
    """The programs that are compiled inside, of all threads."""
    found: Compiled = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == EVENT:
            found.append((str(kwargs.get("fun_name", "?")), duration_secs))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def counts(found: Compiled) -> dict[str, int]:
    """How often programs of each name were compiled, the most often first."""
    return dict(Counter(name for name, _ in found).most_common())
