"""Stand-ins of skpro's base classes: what of them `stochgp.skpro` calls, without broadcasting and checks."""

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
    """`stochgp.skpro` on these modules, None for one that is not installed; everything is as before afterwards."""
    import stochgp

    made = {}
    for name, things in modules.items():
        made[name] = None
        if things is not None:
            made[name] = types.ModuleType(name)
            vars(made[name]).update(things)
    real = vars(stochgp).get("skpro")
    with mock.patch.dict(sys.modules, made):
        sys.modules.pop("stochgp.skpro", None)
        try:
            yield importlib.import_module("stochgp.skpro")
        finally:
            vars(stochgp).pop("skpro", None)
            if real is not None:
                stochgp.skpro = real
