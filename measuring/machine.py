"""Where a line was measured: commit, processor, memory, versions, threads."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from measuring.places import ROOT, WRITTEN

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


def describe(packages: Iterable[str] = PACKAGES) -> dict:
    """Everything beside the figures themselves: {"commit", "machine", "versions", "threads"}."""
    return {"commit": commit(), "machine": machine(), "versions": versions(packages), "threads": threads()}


def commit(root: Path = ROOT, ignore: Iterable[str] = WRITTEN) -> str | None:
    """The checked-out commit, "-dirty" added when tracked files outside `ignore` differ; None outside a git checkout."""
    revision = _git(root, "rev-parse", "HEAD")
    if revision is None:
        return None
    paths = [f":(exclude){path}" for path in ignore]
    changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *paths)
    return f"{revision}-dirty" if changes else revision


def history(root: Path = ROOT) -> frozenset[str] | None:
    """All commits that the checked-out one comes from, itself too; None outside a git checkout, and in one that has only the latest of them."""
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        return None
    found = _git(root, "rev-list", "HEAD")
    return None if found is None else frozenset(found.split())


def machine() -> dict:
    """Processor, cores, memory in bytes, system, the load averages (1, 5, 15 minutes) when asked, and JAX's GPUs where it has some."""
    found = accelerators()
    return ({"accelerators": found} if found else {}) | {
        "processor": _processor(),
        "cores_physical": physical_cores(),
        "cores_usable": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def accelerators() -> list[str]:
    """Names of the devices that this process computes on by JAX, other than the processor."""
    jax = sys.modules.get("jax")
    return [] if jax is None else [d.device_kind for d in jax.devices() if d.platform != "cpu"]


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Python's version and that of every package of the list that is installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def threads() -> dict:
    """Cores this process may use and the environment variables that limit threads, where set."""
    return {"cores_usable": usable_cores()} | {
        name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ
    }


def usable_cores() -> int:
    """Cores this process may run on; an affinity mask counts."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_cores() -> int | None:
    """Cores without their second threads, as Linux counts them; None where that is not known."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return None
    cores = set()
    for block in cpuinfo.read_text().split("\n\n"):
        fields = dict(line.split(":", 1) for line in block.splitlines() if ":" in line)
        fields = {name.strip(): value.strip() for name, value in fields.items()}
        if "physical id" in fields and "core id" in fields:
            cores.add((fields["physical id"], fields["core id"]))
    return len(cores) or None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
