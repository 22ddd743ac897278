"""Lines of results by their settings, and the numbers of a page that come from them."""

import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measuring import store
from measuring.places import BENCHMARKS, EXPERIMENTS


class Lines(NamedTuple):
    """Some lines of one file. A field is a name in a line's results, or a path such as `curves.last.-1.3`."""

    records: tuple[store.Record, ...]

    def where(self, **settings: Any) -> "Lines":
        """Those with these settings; a tuple means any of its values. `ValueError` where there are none."""
        found = tuple(r for r in self.records if _has(r, settings))
        if not found:
            raise ValueError(f"none of {len(self.records)} lines has {settings}")
        return Lines(found)

    def matching(self, condition: Callable[[dict], bool]) -> "Lines":
        """Those whose results satisfy the condition, perhaps none."""
        return Lines(tuple(r for r in self.records if condition(r["results"])))

    def values(self, field: str) -> list[Any]:
        return [_field(r["results"], field) for r in self.records]

    def settings(self, name: str) -> list[Any]:
        """The values of a setting, each once, in order of the lines."""
        return list(dict.fromkeys(r["settings"].get(name) for r in self.records))

    def one(self, field: str) -> Any:
        """The value of the only line; `ValueError` where there are more."""
        if len(self.records) != 1:
            raise ValueError(f"{len(self.records)} lines have {field}, wanted one")
        return self.values(field)[0]

    def mean(self, field: str) -> float:
        return statistics.fmean(self.values(field))

    def median(self, field: str) -> float:
        return statistics.median(self.values(field))

    def deviation(self, field: str) -> float:
        """The sample standard deviation."""
        return statistics.stdev(self.values(field))

    def least(self, field: str) -> float:
        return min(self.values(field))

    def most(self, field: str) -> float:
        return max(self.values(field))

    def total(self, field: str) -> float:
        return sum(self.values(field))

    @property
    def count(self) -> int:
        return len(self.records)

    def best(self, field: str) -> "Lines":
        """The line of the lowest value."""
        known = [r for r in self.records if _field(r["results"], field) is not None]
        return Lines((min(known, key=lambda r: _field(r["results"], field)),))


@functools.cache
def lines(name: str) -> Lines:
    """The lines of an experiment or, where there is none of that name, of a benchmark."""
    return Lines(tuple(store.read(path_of(name))))


def path_of(name: str) -> Path:
    path = EXPERIMENTS / f"{name}.jsonl"
    return path if path.exists() else BENCHMARKS / f"{name}.jsonl"


def names() -> list[str]:
    """All files of results."""
    return sorted(path.stem for folder in (EXPERIMENTS, BENCHMARKS) for path in folder.glob("*.jsonl"))


def _has(record: store.Record, settings: dict[str, Any]) -> bool:
    for name, wanted in settings.items():
        choices = wanted if isinstance(wanted, tuple) else (wanted,)
        if record["settings"].get(name) not in choices:
            return False
    return True


def _field(results: Any, path: str) -> Any:
    for part in path.split("."):
        results = results[int(part)] if isinstance(results, list) else results[part]
    return results
