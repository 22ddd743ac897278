"""The rule that spreads mini-batches over devices."""

from types import SimpleNamespace

import pytest

from stochgp import KernelGPRegressor
from stochgp.context import FitContext
from stochgp.devices import Devices
from stochgp.estimators.report import MIN_SHARED_BATCH, shared_steps
from stochgp.learners import BSGD, SCGD


def devices_of(count, platform="gpu", processes=1, steps=False):
    """Devices that this machine does not have."""
    flat = [SimpleNamespace(platform=platform, process_index=i * processes // count) for i in range(count)]
    return Devices(SimpleNamespace(size=count, devices=SimpleNamespace(flat=flat)), steps=steps)


@pytest.mark.parametrize(
    ("devices", "learner", "batch_size", "shares", "why"),
    [
        (devices_of(4), SCGD, MIN_SHARED_BATCH, True, "each device has its part"),
        (devices_of(4, "cpu", 4), SCGD, MIN_SHARED_BATCH, True, "each device has its part"),
        (devices_of(4), SCGD, MIN_SHARED_BATCH - 4, False, "fewer than"),
        (devices_of(4), SCGD, MIN_SHARED_BATCH + 2, False, "no equal parts"),
        (devices_of(4, "cpu"), SCGD, MIN_SHARED_BATCH, False, "share its cores"),
        (devices_of(4), BSGD, MIN_SHARED_BATCH, False, "takes the learner's steps whole"),
        (devices_of(4, "cpu", steps=True), SCGD, 8, True, "as asked"),
        (devices_of(1), SCGD, MIN_SHARED_BATCH, False, "one device"),
    ],
)
def test_batches_are_spread_if_that_saves_time(devices, learner, batch_size, shares, why):
    context = FitContext(KernelGPRegressor(random_state=0))
    context.devices = devices
    found = shared_steps(learner(batch_size=batch_size), 10**6, context)
    entry = context.plan_["devices"]
    assert found.steps == shares and why in entry["why"]
    assert entry["choice"]["batches"] == ("spread" if shares else "whole")


def test_without_devices_nothing_is_said():
    context = FitContext(KernelGPRegressor(random_state=0))
    assert shared_steps(SCGD(), 100, context) == Devices() and not context.plan_
