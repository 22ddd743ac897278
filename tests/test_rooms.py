"""The arrows between rooms: a module imports only from rooms above its own, and no modules import each other in a circle."""

import ast
import functools
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
ROOMS = [
    "version",
    "results",
    "exceptions",
    "names",
    "deadline",
    "warning",
    "compiled",
    "numerics",
    "choosing",
    "sharding",
    "parameters",
    "networks",
    "kernels",
    "neighbours",
    "storage",
    "budget",
    "context",
    "tables",
    "data",
    "features",
    "priors",
    "transforms",
    "distributions",
    "metrics",
    "inspection",
    "likelihoods",
    "variational",
    "models",
    "observations",
    "operators",
    "solvers",
    "objectives",
    "learners",
    "learning",
    "posteriors",
    "estimators",
    "families",
    "pools",
    "thompson",
    "contrib",
    "plots",
    "cli",
    "__main__",
    "__init__",
]
# A package's own __init__ may gather its modules; the root's loads rooms when they are asked for.


@functools.cache
def _imports():
    """Module → the modules of the package that it imports when it is loaded."""
    modules = {_name(path): path for path in sorted(SRC.rglob("*.py"))}
    return {name: _imported(path, name, modules) for name, path in modules.items()}


def _name(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path, name, modules):
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in _at_load(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], base]
                ).strip(".")
            found |= {
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names
            }
    return {module for module in found if module in modules} - {name}


def _at_load(tree):
    """Statements that run when a module is loaded: not those in functions, nor those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _at_load(node)


def _room(module):
    return module.split(".")[1] if "." in module else "__init__"


def test_every_module_has_a_room():
    assert {_room(module) for module in _imports()} <= set(ROOMS)


def test_arrows_point_upwards():
    wrong = [
        f"{module} → {other}"
        for module, others in _imports().items()
        for other in others
        if other != "stochgp" and ROOMS.index(_room(other)) > ROOMS.index(_room(module))
    ]
    assert wrong == []


def test_nothing_imports_the_adapters():
    users = [
        m for m, others in _imports().items() if _room(m) != "contrib" and "contrib" in map(_room, others)
    ]
    assert users == []


def test_no_module_needs_itself():
    """Also across the __init__ of a package: a module of it that imports a name from it would be a circle."""
    graph, done = _imports(), set()

    def visit(module, path):
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph[module] - {"stochgp"}):
                visit(other, [*path, module])
            done.add(module)

    for module in graph:
        visit(module, [])
