"""When mini-batches are spread: what the predicted seconds of a step say."""

import jax
import pytest

from stochgp.devices import ONE, Devices
from stochgp.planning.devices import (
    ACROSS,
    INSIDE,
    STEP,
    StepSizes,
    Team,
    step_pays,
    step_seconds,
    with_steps,
)

LARGE = StepSizes(32_768, 4 * 4096**2, 20_000)
SMALL = StepSizes(256, 4 * 1024**2, 20_000)


def test_seconds_are_the_fixed_part_the_shared_work_and_the_exchange():
    step, work = STEP["gpu"], 32_768 * 4 * 4096**2 / STEP["gpu"].per_second
    one, four = step_seconds(LARGE, Team("gpu", 4))
    assert one == step.fixed + work == step_seconds(LARGE, Team("gpu", 1))[1]
    assert four == pytest.approx(step.fixed + work / 4 + INSIDE.fixed + 1.5 * 80_000 / INSIDE.per_second)
    across = step_seconds(LARGE, Team("gpu", 4, 4))[1]
    assert across == pytest.approx(step.fixed + work / 4 + ACROSS.fixed + 1.5 * 80_000 / ACROSS.per_second)


def test_large_batches_are_spread_and_small_ones_are_not():
    pays, why = step_pays(LARGE, Team("gpu", 4))
    assert pays and "so mini-batches are spread too" in why
    pays, why = step_pays(SMALL, Team("gpu", 4))
    assert not pays and "so only passes over the rows are shared" in why


def test_devices_of_one_processor_share_its_cores():
    assert not step_pays(LARGE, Team("cpu", 4))[0] and step_pays(LARGE, Team("cpu", 4, 4))[0]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (LARGE._replace(work_of_row=0), "the learner's steps are those of one device"),
        (LARGE._replace(batch_size=30), "batches of 30 rows have no equal parts"),
    ],
)
def test_what_cannot_be_spread_is_not(sizes, said):
    pays, why = step_pays(sizes, Team("gpu", 4))
    assert not pays and said in why


def test_one_device_is_kept_as_it_is():
    for devices in (ONE, Devices.of(jax.devices()[:1])):
        assert with_steps(devices, LARGE) == (devices, "one device")
