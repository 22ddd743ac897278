"""`fit` in several processes: each runs the same command, process 0 writes and speaks."""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

HEARTBEAT = 30  # seconds after which a silent process is given up
LOST = ("gloo", "nccl", "connection", "coordination", "heartbeat", "socket", "peer")  # in messages of JAX


@contextlib.contextmanager
def joined(
    distributed: bool, coordinator: str | None, processes: int | None, process: int | None
) -> Iterator[Any]:
    """The `Devices` of one process, or of several processes, in which the block ends together.

    Call it before anything uses a device. Raises ValueError for options that do not fit, and if no other process is found; ConnectionError
    if another process ends early.
    """
    _check(distributed, coordinator, processes, process)
    if not distributed and coordinator is None:
        from stochgp.devices import ONE

        yield ONE
        return
    speak = _keep_output()
    with _losses_named():
        devices = _join(coordinator, processes, process)
        speak(devices.is_writer)
        try:
            yield devices
        except KeyboardInterrupt:  # raised in all of them
            devices.agree("interrupted")
            raise
        devices.agree("done")  # the work of all: who leaves before is missed


def end_at_once() -> bool:
    """Whether this process is one of several: shutting down would wait for a lost one."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()


def _check(distributed: bool, coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Raises ValueError for options that do not fit together."""
    three = (coordinator, processes, process)
    if distributed and three != (None, None, None):
        raise ValueError(
            "--distributed finds the processes by itself: leave --coordinator, --processes and --process"
        )
    if not distributed and 0 < sum(part is not None for part in three) < 3:
        raise ValueError("--coordinator HOST:PORT, --processes H and --process I are given together")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise ValueError(f"--process is {process}; it must be from 0 to {processes - 1}")


def _join(coordinator: str | None, processes: int | None, process: int | None) -> Any:
    import jax

    try:
        jax.distributed.initialize(coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT)
    except ValueError as error:
        raise ValueError(
            f"--distributed finds no other processes here ({error}): give --coordinator, --processes and --process"
        ) from error
    from stochgp.devices import Devices

    return Devices.of("all")


@contextlib.contextmanager
def _losses_named() -> Iterator[None]:
    from jax.errors import JaxRuntimeError

    try:
        yield
    except JaxRuntimeError as error:
        if not any(word in str(error).lower() for word in LOST):
            raise
        raise ConnectionError(
            "another process of this run has ended; start all of them again: with --checkpoint they go on from the last evaluation"
        ) from error


def _keep_output() -> Callable[[bool], None]:
    """Send what libraries such as gloo print to the standard error.

    Returns a function of whether this process prints; until it is called, and if it does not, nothing comes out.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)

    def speak(writes: bool) -> None:
        sys.stdout = os.fdopen(kept if writes else os.open(os.devnull, os.O_WRONLY), "w")
        if not writes:
            warnings.simplefilter("ignore")  # process 0 gives them

    return speak
