"""Stand-ins of skpro's base classes: what of them `stochgp.contrib.skpro` calls, without broadcasting and checks."""

import contextlib
import importlib
import sys
import types
from unittest import mock


class BaseDistribution:
    def __init__(self, index=None, columns=None):
        self.index, self.columns, self.tags = index, columns, dict(self._tags)
        self.ndim = 0 if index is None else 2

    def set_tags(self, **tags):
        self.tags |= tags


class BaseProbaRegressor:
    def __init__(self):
        pass


MODULES = {
    "skpro": {},
    "skpro.distributions": {},
    "skpro.distributions.base": {"BaseDistribution": BaseDistribution},
    "skpro.regression": {},
    "skpro.regression.base": {"BaseProbaRegressor": BaseProbaRegressor},
}


@contextlib.contextmanager
def adapter(modules=MODULES):
    """`stochgp.contrib.skpro` on these modules, None for one that is not installed; everything is as before afterwards."""
    from stochgp import contrib

    made = {}
    for name, things in modules.items():
        made[name] = None
        if things is not None:
            made[name] = types.ModuleType(name)
            vars(made[name]).update(things)
    real = vars(contrib).get("skpro")
    with mock.patch.dict(sys.modules, made):
        sys.modules.pop("stochgp.contrib.skpro", None)
        try:
            yield importlib.import_module("stochgp.contrib.skpro")
        finally:
            vars(contrib).pop("skpro", None)
            if real is not None:
                contrib.skpro = real
