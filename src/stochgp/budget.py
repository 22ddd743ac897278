"""The memory limit and the memory in use. 1 GB = 10⁹ bytes.

Memory means the resident memory of the process; on an accelerator, the bytes in use by JAX's allocator.
"""

import contextlib
import ctypes
import math
import re
import sys
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

import jax
import psutil

from stochgp.exceptions import MemoryLimitError

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**i for i, letter in enumerate("KMGT", start=1)},
    **{f"{letter}IB": 1024**i for i, letter in enumerate("KMGT", start=1)},
}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_CONTROL_GROUP = Path("/sys/fs/cgroup")  # memory limits of containers


@dataclass(frozen=True)
class Budget:
    """The maximum number of bytes that may be in use."""

    limit: int
    kept: int = 0  # bytes reserved for compiled programs

    @classmethod
    def of(cls, memory_limit: Any = None) -> "Budget":
        """Return the limit. None means the memory in use plus half of the available memory."""
        limit = parse_bytes(memory_limit)
        return cls(in_use() + available() // 2 if limit is None else limit)

    def free(self) -> int:
        """Return the bytes below the limit, at least 0."""
        return max(self.limit - self.kept - in_use(), 0)

    def keeping(self, n_bytes: float) -> "Budget":
        """Return the same limit, with `n_bytes` more reserved for compiled programs."""
        return Budget(self.limit, self.kept + int(n_bytes))

    def require(self, need_bytes: int, what: str) -> None:
        """Raise MemoryLimitError if `what` needs more memory than the limit allows."""
        if in_use() + self.kept + need_bytes > self.limit:
            release()
        if in_use() + self.kept + need_bytes > self.limit:
            self.refuse(need_bytes, what)

    def refuse(self, need_bytes: int, what: str) -> NoReturn:
        """Raise MemoryLimitError with the needed memory and the limit."""
        used = in_use()
        kept = f" and {format_bytes(self.kept)} for compiled programs" if self.kept else ""
        raise MemoryLimitError(
            f"{what} needs {format_bytes(need_bytes)} on top of the {format_bytes(used)} in use{kept}, together "
            f"{format_bytes(used + self.kept + need_bytes)}, but memory_limit is {format_bytes(self.limit)}"
        )


def parse_bytes(size: Any) -> int | None:
    """Return a size in bytes: "1GB" is 10⁹, "512MiB" is 512 · 2²⁰, None remains None."""
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, str | Real):
        raise TypeError(f'memory_limit must be a string ("1GB"), a number of bytes, or None, not {size!r}')
    match = _SIZE.fullmatch(size if isinstance(size, str) else repr(float(size)))
    if isinstance(size, str) and (match is None or match[2].upper() not in _UNITS):
        raise ValueError(
            f'memory_limit {size!r} is not a size: write a number and a unit, such as "1GB" or "512MiB"'
        )
    value = float(size) if match is None else float(match[1]) * _UNITS[match[2].upper()]
    if not (math.isfinite(value) and value >= 1):
        raise ValueError(f"memory_limit is {size!r}; it must be finite and at least 1 byte")
    return round(value)


def format_bytes(size: float) -> str:
    """Return the size with four digits and a decimal unit, such as "1.213 GB"."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 999.95:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def in_use() -> int:
    """Return the bytes in use on the accelerator; without an accelerator, resident memory."""
    stats = _accelerator()
    return resident() if stats is None else int(stats["bytes_in_use"])


def available() -> int:
    """Return the free bytes of the accelerator, or of the machine and the container."""
    stats = _accelerator()
    if stats is not None and "bytes_limit" in stats:
        return max(int(stats["bytes_limit"]) - int(stats["bytes_in_use"]), 0)
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
        limit = int((_CONTROL_GROUP / "memory.max").read_text())
        used = int((_CONTROL_GROUP / "memory.current").read_text())
        cached = re.search(
            r"^inactive_file (\d+)$", (_CONTROL_GROUP / "memory.stat").read_text(), re.MULTILINE
        )
        free = min(free, max(limit - used + (int(cached[1]) if cached else 0), 0))
    return free


def release() -> None:
    """Return freed memory of glibc and pyarrow to the operating system."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


def peak_resident() -> int:
    """Return the peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent process
        found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)
        return max(int(found[1]) * 1024 if found else 0, resident())
    import resource  # missing on Windows

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _accelerator() -> dict[str, int] | None:
    """Return allocator statistics of JAX's default device, or None on a CPU."""
    device = getattr(jax.config, "jax_default_device", None) or jax.local_devices()[0]
    if isinstance(device, str):
        device = jax.devices(device)[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    return stats if stats and "bytes_in_use" in stats else None
