"""Write one page of the API for each module, with the names of `__all__` or all public names."""

import importlib
import inspect
from pathlib import Path
from typing import Any

ESTIMATORS = [
    "GPRegressor", "GPClassifier", "KernelGPRegressor", "FeatureGPRegressor", "SparseGPRegressor", "SparseGPClassifier",
]  # fmt: skip
MODULES = {
    "data": "tables, files, columns, neighbours", "distributions": "predictive distributions",
    "exceptions": "classes of errors and warnings", "inspection": "importance of inputs",
    "metrics": "scores of held-out rows", "plots": "pictures as matplotlib figures",
    "kernels": "covariance functions", "features": "feature maps", "networks": "networks that map one row",
    "likelihoods": "likelihoods and noise models", "transforms": "increasing transforms of targets",
    "thompson": "Thompson sampling", "contrib.botorch": "fitted estimators as models of BoTorch",
    "learners": "methods that learn parameters", "learning": "the loop of learning, and streams",
    "solvers": "solvers of linear systems", "models": "models: prior, noise and approximation",
    "parameters": "bounded and frozen parameters", "objectives": "likelihoods and bounds",
    "operators": "products with matrices that are never stored", "posteriors": "posteriors of f",
    "variational": "inducing points and functions: q(f)", "priors": "functions drawn from the prior",
    "observations": "from f to an observation", "results": "results of a run",
}  # fmt: skip


def public(module: Any) -> list[str]:
    """Return the names that a module offers and that have a docstring of their own."""
    own = getattr(module, "__all__", None)
    if own is None:
        inside = lambda value: getattr(value, "__module__", "").startswith(module.__name__)
        own = [name for name, value in vars(module).items() if not name.startswith("_") and inside(value)]
    values = {name: getattr(module, name) for name in own}
    return sorted(
        name for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)
    )


def entry(module: str, name: str, value: Any) -> str:
    """Return the directive of one class or function."""
    if not inspect.isclass(value):
        return f".. autofunction:: stochgp.{module}.{name}\n"
    if inspect.isabstract(value) and module == "estimators":
        return f".. autoclass:: stochgp.{module}.{name}\n"
    return f".. autoclass:: stochgp.{module}.{name}\n   :members:\n"


def estimator(name: str, kind: Any) -> str:
    """Return an estimator with all that it inherits but scikit-learn's own methods."""
    names = [n for n in dir(kind) if not n.startswith("_")]
    theirs = [n for n in names if str(getattr(getattr(kind, n), "__module__", "")).startswith("sklearn")]
    left_out = ", ".join(
        sorted({*theirs, *(n for n in names if n.endswith("_request")), "get_metadata_routing", "score"})
    )
    options = f"   :members:\n   :inherited-members:\n   :exclude-members: {left_out}\n"
    return f"# {name}\n\n```{{eval-rst}}\n.. autoclass:: stochgp.{name}\n{options}```\n"


def heading(module: str) -> str:
    """Return the title of a module's page and a sentence on its content."""
    about = MODULES[module]
    return f"# stochgp.{module}\n\n{about[0].upper()}{about[1:]}."


def page(module: str) -> str:
    """Return the page of a module, without names from other modules that have a page."""
    found = importlib.import_module(f"stochgp.{module}")
    others = tuple(f"stochgp.{other}." for other in MODULES if other != module)
    own = [name for name in public(found) if not f"{getattr(found, name).__module__}.".startswith(others)]
    text = "\n".join(entry(module, name, getattr(found, name)) for name in own)
    return f"{heading(module)}\n\n```{{eval-rst}}\n.. module:: stochgp.{module}\n\n{text}```\n"


def write_pages(app: Any) -> None:
    """Write `api/generated/*.md`, but only files whose text changes; the page of BoTorch needs its extra."""
    import stochgp

    folder = Path(app.srcdir) / "api" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {name: estimator(name, getattr(stochgp, name)) for name in ESTIMATORS}
    pages["load"] = (
        "# load\n\n```{eval-rst}\n.. autofunction:: stochgp.load\n\n.. autofunction:: stochgp.register\n\n.. autofunction:: stochgp.show_versions\n```\n"
    )
    for module in MODULES:
        try:
            pages[module] = page(module)
        except ImportError:
            pages[module] = f"{heading(module)} This site was built without its extra: see the docstrings.\n"
    rows = [f"| [stochgp.{name}](generated/{name}.md) | {about} |" for name, about in MODULES.items()]
    pages["modules.txt"] = "\n".join(["| module | content |", "|---|---|", *rows, ""])
    files = {folder / (name if name.endswith(".txt") else f"{name}.md"): text for name, text in pages.items()}
    for path in set(folder.iterdir()) - files.keys():  # pages of removed modules
        path.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Sphinx asks for it."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
