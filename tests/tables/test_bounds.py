"""Values far beyond all others: extremes among targets, inputs that are moved near the others."""

import numpy as np
import pandas as pd
import pytest

from stochgp.tables.bounds import bound_of, far_targets
from stochgp.tables.encoding import TableEncoder

N = 300
NORMAL = np.random.default_rng(0).normal(size=N)
PRICES = np.exp(12 + 0.6 * np.random.default_rng(1).normal(size=1000))
CLAIMS = np.where(np.arange(1000) % 10 > 0, 0.0, np.exp(7 + 1.5 * np.random.default_rng(0).normal(size=1000)))


def test_where_most_targets_are_equal_the_scale_is_that_of_the_others():
    assert far(CLAIMS) == far(np.append(np.zeros(400), -9999.0)) == far(np.full(400, -9999.0)) == ""
    assert "2 target(s)" in far(np.append(CLAIMS, [-99999.0, 1e9]))


def far(y, outliers="warn", weight=None):
    return far_targets(y, weight, outliers)


EXTREMES = {
    "a number of no usual form": (np.append(NORMAL, 50.3), 1),
    "such, in two rows": (np.append(NORMAL, [-500.0, -500.0]), 2),
    "a price of ten million": (np.append(PRICES, 1e7), 1),
    "a limit of claims": (np.append(CLAIMS, [1e6] * 3), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_are_far(name):
    y, count = EXTREMES[name]
    assert (
        far(y).startswith(f"{count} target(s)") and f"at data row {len(y)}" in far(y) and far(y, "keep") == ""
    )
    with pytest.raises(ValueError, match="target_outliers='keep'"):
        far(y, "refuse")
    assert far(y, weight=np.arange(len(y)) < len(y) - count) == ""


def test_a_second_group_of_targets_is_not_far():
    for other in (0.0, 5000.0):
        assert far(np.append(100 + 0.5 * NORMAL, np.full(100, other))) == ""


@pytest.mark.parametrize(
    ("draw", "most_far"),
    [
        (lambda g: np.exp(g.normal(size=1000)), 0.02),
        (lambda g: np.exp(2 * g.normal(size=1000)), 0.12),
        (lambda g: g.standard_t(3, size=1000), 0.06),
        (lambda g: 1 / g.uniform(size=1000), 0.35),
        (lambda g: np.ceil(1 / g.uniform(size=1000)), 0.35),
        (
            lambda g: np.where(
                g.uniform(size=1000) < 0.8, 0.0, np.round(np.exp(6 + 2 * g.normal(size=1000)), -2)
            ),
            0.2,
        ),
    ],
)
def test_heavy_tails_seldom_hold_far_targets(draw, most_far):
    """Of 200 tables; the share with a warning is bounded, by 4 standard errors above what gaps of 5 have in theory."""
    found = [far(draw(np.random.default_rng(seed))) != "" for seed in range(200)]
    assert np.mean(found) <= most_far


def test_inputs_beyond_a_gap_are_moved_near_the_others_also_if_more_than_a_thousandth_are():
    """Four areas of 1e9 in 2,772 rows; the limit is the largest of the others, which stay as they are."""
    areas = np.exp(6 + np.random.default_rng(2).normal(size=2768))
    x = np.append(areas, [1e9] * 4)
    bound = bound_of(x)
    np.testing.assert_array_equal(bound(x)[:-4], areas)
    assert areas.max() < bound(x)[-1] < 2 * areas.max()
    rule = TableEncoder.fit(pd.DataFrame({"Area": x, "b": np.arange(2772.0)})).columns[0]
    assert "1e+09" in rule.note and rule.name == "Area"
