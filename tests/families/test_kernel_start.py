"""Where the learning of a kernel GP starts."""

import numpy as np

from stochgp import kernels
from stochgp.data.memory import MemorySource
from stochgp.families import kernel as family
from stochgp.families.kernel import optimum_of_few
from stochgp.models import KernelGP
from stochgp.objectives.kernel import nlml


class Context:
    """The part of a `FitContext` that the start uses."""

    def seed(self, name):
        return 0


def test_learning_starts_at_the_optimum_of_few_rows(monkeypatch):
    """Of a quarter of the rows; with fewer rows than that takes, at the parameters given."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * generator.normal(size=400)
    source, gp = MemorySource(X, y), KernelGP(kernels.Matern32(1.0), 0.5)
    assert optimum_of_few(gp, source, Context()) is gp
    monkeypatch.setattr(family, "MIN_START_ROWS", 100)
    start = optimum_of_few(gp, source, Context())
    subset = source.some(np.sort(np.random.default_rng(0).permutation(400)[:100]))
    best, few = family.START.optimum(start, gp, subset), subset.on_host(np.arange(100))
    assert nlml(start, few) < nlml(gp, few) - 0.1
    np.testing.assert_allclose(nlml(best, few), nlml(start, few), atol=2e-2)
