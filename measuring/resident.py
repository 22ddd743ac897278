"""Resident memory of this process, as Linux counts it; elsewhere its high-water mark cannot be reset."""

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def can_reset_peak() -> bool:
    return _CLEAR.exists()


def reset_peak() -> None:
    """The high-water mark becomes what is resident now."""
    _CLEAR.write_text("5")


def resident(field: str) -> int:
    """Bytes of "VmRSS" (resident now) or "VmHWM" (its greatest value)."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])
