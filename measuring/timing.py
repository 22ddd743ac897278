"""Fair timing of rivals inside one process (alternating blocks, never two thread pools at once), and resident memory."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

Epoch = Callable[[], object]

PAUSE = 0.3
"""Seconds between blocks: OpenMP's workers may spin for 0.2 s after their last task, slowing the next."""


def alternate(sides: Mapping[str, Epoch], *, blocks: int, epochs: int) -> dict[str, list[float]]:
    """Seconds of every timed epoch, by side.

    A block is one untimed epoch, which wakes the side's thread pool, and `epochs` timed ones. The sides take
    turns, and the order turns round after each round, so that a slow drift of the machine falls on all of
    them. A side returns when its work is done.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(blocks):
        names = list(sides) if block % 2 == 0 else list(sides)[::-1]
        for name in names:
            time.sleep(PAUSE)
            sides[name]()
            seconds[name] += [timed(sides[name]) for _ in range(epochs)]
    return seconds


def timed(call: Epoch) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_step(seconds: Sequence[float], n_steps: int) -> dict[str, float | int]:
    """Microseconds a step: median, least and greatest over the epochs of `n_steps` steps each."""
    steps = sorted(1e6 * epoch / n_steps for epoch in seconds)
    return {
        "median_us": round(median(steps), 2),
        "min_us": round(steps[0], 2),
        "max_us": round(steps[-1], 2),
        "epochs": len(steps),
    }


def speedups(sides: Mapping[str, Mapping]) -> dict[str, float]:
    """How many times longer each other side's median step takes than that of the first side."""
    first, *others = sides
    return {name: round(sides[name]["median_us"] / sides[first]["median_us"], 3) for name in others}


def can_reset_peak() -> bool:
    """Whether the high-water mark of resident memory can be reset: on Linux."""
    return Path("/proc/self/clear_refs").exists()


def reset_peak() -> None:
    """Set the high-water mark to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(field: str) -> int:
    """Bytes of "VmRSS" (resident now) or "VmHWM" (its greatest value)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])
