"""How large the source is, and how far one default fit walks through it.

    python benchmarks/structure.py               # lines, files, classes, named tuples, constants, functions that return (value, dict), modules with one importer
    python benchmarks/structure.py --fit kernel  # functions, files, calls from a lower to a higher layer, stack depth and compiled programs of a fit
    python benchmarks/structure.py --fit pool    # of 442 rows

Layers are those of `tests/test_rooms.py`. A line of JSON is printed.
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "stochgp"
CONSTANT = re.compile(r"^[A-Z][A-Z0-9_]*$")
PROGRAM_EVENT = "/jax/core/compile/backend_compile_duration"


def sizes(folder: Path) -> dict[str, int]:
    """Counts of one folder of Python files."""
    found, importers = Counter(), Counter()
    paths = sorted(folder.rglob("*.py"))
    for path in paths:
        text = path.read_text()
        tree = ast.parse(text)
        found["lines"] += text.count("\n")
        found["files"] += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found["classes"] += 1
                found["named_tuples"] += any(ast.unparse(base).endswith("NamedTuple") for base in node.bases)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found["functions"] += 1
                found["value_and_dict"] += _returns_value_and_dict(node)
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [name.id for target in targets if target is not None for name in ast.walk(target) if isinstance(name, ast.Name)]  # fmt: skip
            if isinstance(node, ast.Assign | ast.AnnAssign):
                found["constants"] += sum(bool(CONSTANT.match(name)) for name in names)
        if path.name != "__init__.py":
            modules = {
                node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
            }
            importers.update(modules)
    names = {".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in paths}
    found["modules_with_one_importer"] = sum(importers[name] == 1 for name in names)
    return dict(found)


def _returns_value_and_dict(node: Any) -> bool:
    """Whether the annotation of the result is a tuple that ends with a dict."""
    text = "" if node.returns is None else ast.unparse(node.returns)
    return bool(re.search(r"tuple\[.*dict\[str, Any\]\]$", text))


class Walk:
    """A profile function of `sys.setprofile` that follows calls inside of the package; depth of the stack, functions and files entered."""

    def __init__(self, rooms: list[str]):
        self.rooms, self.layers = rooms, dict[str, int]()
        self.functions, self.files = set[tuple[str, str]](), set[str]()
        self.counts, self.stack, self.depth = Counter[str](), list[int](), 0

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(str(SRC)):
            return
        if event == "call":
            here = self._layer(path)
            self.counts["calls"] += 1
            self.counts["upward_calls"] += bool(self.stack) and self.stack[-1] < here
            self.counts["fits"] += frame.f_code.co_name == "fit" and "self" in frame.f_code.co_varnames[:1]
            self.functions.add((path, frame.f_code.co_qualname))
            self.files.add(path)
            self.stack.append(here)
            self.depth = max(self.depth, len(self.stack))
        elif event == "return" and self.stack:
            self.stack.pop()

    def _layer(self, path: str) -> int:
        if path not in self.layers:
            room = Path(path).relative_to(SRC).parts[0].removesuffix(".py")
            self.layers[path] = self.rooms.index(room) if room in self.rooms else -1
        return self.layers[path]


def walk(kind: str) -> dict[str, Any]:
    """What a default fit enters, after an import of the package."""
    sys.path.insert(0, str(ROOT / "tests"))
    import jax
    import numpy as np
    from test_rooms import ROOMS

    import stochgp

    generator = np.random.default_rng(0)
    n, d = (442, 10) if kind == "pool" else (4_000, 8)
    X = generator.normal(size=(n, d))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * generator.normal(size=n)
    family = stochgp.GPRegressor if kind == "pool" else stochgp.KernelGPRegressor
    model, profile, programs = family(random_state=0), Walk(ROOMS), Counter[str]()
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: programs.update([event]))
    sys.setprofile(profile)
    try:
        model.fit(X, y)
    finally:
        sys.setprofile(None)
    return {
        "functions": len(profile.functions), "files": len(profile.files), "depth": profile.depth,
        "programs": programs[PROGRAM_EVENT], "plan_entries": len(model.plan_), **profile.counts,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", choices=("kernel", "pool"))
    chosen = parser.parse_args()
    if chosen.fit:
        found: dict[str, Any] = {"fit": chosen.fit, **walk(chosen.fit)}
    else:
        found = {name: sizes(ROOT / name) for name in ("src/stochgp", "tests", "benchmarks", "experiments", "examples", "measuring") if (ROOT / name).exists()}  # fmt: skip
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
