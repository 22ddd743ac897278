"""What users do, as a process of its own: `python wheel_worker.py NAME` fits the estimator of that name, or runs the Python of the README.

No test's import hook is at work, and no flag of XLA. Only packages can be imported that `pip install stochgp` brings. It prints where the package was found.
"""

import importlib.metadata
import re
import runpy
import shlex
import sys
from pathlib import Path


class OnlyWhatComesAlong:
    """Hides the packages of extras and of tests."""

    def __init__(self):
        wanted, found = ["stochgp"], set()
        while wanted:
            name = re.split(r"[^\w.-]", wanted.pop())[0].lower().replace("_", "-")
            if name in found:
                continue
            found.add(name)
            try:
                lines = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:  # of another system or Python
                continue
            wanted += [line for line in lines if "extra ==" not in line]
        of_name = importlib.metadata.packages_distributions()
        normal = lambda name: name.lower().replace("_", "-")
        self.hidden = {
            module for module, names in of_name.items() if not found & {normal(name) for name in names}
        }

    def find_spec(self, name, path=None, target=None):
        if name in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r}: it does not come with stochgp", name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, OnlyWhatComesAlong())

import numpy as np  # noqa: E402  # after that

import stochgp  # noqa: E402

README = Path(__file__).parents[2] / "README.md"


def rows():
    """A small table: inputs, targets with noise, inputs to predict and their values of the function."""
    generator = np.random.default_rng(0)
    X, X_new = generator.uniform(-2, 2, (80, 2)), generator.uniform(-2, 2, (50, 2))
    value = lambda X: np.sin(2 * X[:, 0]) + X[:, 1]
    return X, value(X) + 0.1 * generator.normal(size=80), X_new, value(X_new)


def fit_at_defaults(name):
    """Fit, predict, score, save, load: as good as it must be, and the same after loading."""
    X, y, X_new, f = rows()
    classes = name.endswith("Classifier")
    model = getattr(stochgp, name)(random_state=0).fit(X, y > 0 if classes else y)
    model.save("model.stochgp")
    again = stochgp.load("model.stochgp")
    assert again.summary() == model.summary()
    if classes:
        assert model.score(X_new, f > 0) > 0.85
        np.testing.assert_array_equal(model.predict_proba(X_new), again.predict_proba(X_new))
        return
    mean, std = model.predict(X_new, return_std=True)
    assert (
        model.score(X_new, f) > 0.9 and np.all(std > 0) and np.isfinite(model.predict_interval(X_new)).all()
    )
    np.testing.assert_array_equal(again.predict(X_new, return_std=True), (mean, std))


def run_the_readme():
    """Its Python blocks, in order in one namespace, and its commands as `python -m` runs them."""
    names, text = {}, README.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    low, high = names["interval"].T
    inside = np.mean((low <= names["y_test"]) & (names["y_test"] <= high))
    assert abs(inside - 0.9) < 3 * (0.9 * 0.1 / len(low)) ** 0.5 and len(names["mean"]) == len(low)
    commands = re.findall(r"^stochgp .*$", text, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        sys.argv = shlex.split(command)
        try:
            runpy.run_module("stochgp", run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, command


if __name__ == "__main__":
    run_the_readme() if sys.argv[1] == "README" else fit_at_defaults(sys.argv[1])
    print(stochgp.__file__)
