"""The machine of a measurement: commit, processor, memory, versions and threads."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from measuring.store import ROOT

PACKAGES = (
    "stochgp", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn", "torch", "catboost", "lightgbm", "ngboost", "quantile-forest", "xrfm",
)  # fmt: skip
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "XLA_FLAGS",
    "JAX_PLATFORMS",
)
WRITTEN = (
    "experiments/results", "experiments/floors.jsonl", "benchmarks/results", "docs/measured.md", "docs/comparison.md", "docs/solvers.md",
)  # fmt: skip
"""Files that runs write. Changes in them do not make a commit dirty."""


def describe() -> dict:
    """Return the commit, the machine, the versions and the thread settings."""
    return {"commit": commit(), "machine": machine(), "versions": versions(PACKAGES), "threads": threads()}


def commit(root: Path = ROOT, ignore: Iterable[str] = WRITTEN) -> str | None:
    """Return the commit, with "-dirty" for changes outside `ignore`; None without git."""
    revision = _git(root, "rev-parse", "HEAD")
    if revision is None:
        return None
    paths = [f":(exclude){path}" for path in ignore]
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *paths)
    return f"{revision}-dirty" if changes else revision


def history(root: Path = ROOT) -> frozenset[str] | None:
    """Return the commit and all its ancestors; None without git or in a shallow clone."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    found = _git(root, "rev-list", "HEAD")
    return None if found is None else frozenset(found.split())


def machine() -> dict:
    """Return processor, cores, bytes of memory, system, and load averages."""
    return {
        "processor": next(_cpuinfo("model name"), platform.processor() or platform.machine()),
        "cores_physical": physical_cores(),
        "cores_usable": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def accelerators() -> list[str]:
    """Return the names of accelerators, if this process uses JAX."""
    jax = sys.modules.get("jax")
    return [] if jax is None else [d.device_kind for d in jax.devices() if d.platform != "cpu"]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of the installed packages in the list."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def threads() -> dict:
    """Return the usable cores, and the environment variables that limit threads."""
    return {"cores_usable": usable_cores()} | {v: os.environ[v] for v in THREAD_VARIABLES if v in os.environ}


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_cores() -> int | None:
    """Return the number of physical cores on Linux, otherwise None."""
    return len(set(zip(_cpuinfo("physical id"), _cpuinfo("core id"), strict=True))) or None


def _cpuinfo(field: str) -> Iterator[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return iter([line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == field])


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
