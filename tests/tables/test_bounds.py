"""Values far beyond all others: codes for missing targets, extremes that stay, inputs that are moved near the others."""

import numpy as np
import pandas as pd
import pytest

from stochgp.tables.encoding import TableEncoder
from stochgp.tables.rules import bound_of
from stochgp.tables.targets import target_outliers

N = 300
NORMAL = np.random.default_rng(0).normal(size=N)
PRICES = np.exp(12 + 0.6 * np.random.default_rng(1).normal(size=1000))
CLAIMS = np.where(np.arange(1000) % 10 > 0, 0.0, np.exp(7 + 1.5 * np.random.default_rng(0).normal(size=1000)))
CODES = [
    -9999,
    -999,
    999,
    -99,
    99,
    -99.9,
    np.float32(-999.9),
    99999,
    1e5,
    1e9,
    -1e20,
    9.96921e36,
    32767,
    -(2**31),
    2**31 - 1,
]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("count", [1, 4, 120])
def test_codes_among_targets_are_found_at_any_number_of_rows(code, count):
    codes, far = target_outliers(np.append(NORMAL, np.full(count, code)))
    np.testing.assert_array_equal(codes, np.arange(N + count) >= N)
    assert not far.any()


def test_codes_are_found_beside_others_beside_missing_values_and_in_any_unit():
    y = np.concatenate([100 * NORMAL, [-9999.0] * 3, [np.nan], [1e9] * 2])
    codes, _ = target_outliers(y)
    np.testing.assert_array_equal(np.flatnonzero(codes), [N, N + 1, N + 2, N + 4, N + 5])


def test_where_most_targets_are_equal_the_scale_is_that_of_the_others():
    assert not np.any(target_outliers(CLAIMS))
    codes, far = target_outliers(np.append(CLAIMS, [-99999.0, 1e9]))
    assert codes[-2] and codes[-1] and codes.sum() == 2 and not far.any()
    assert not np.any(target_outliers(np.append(np.zeros(400), -9999.0)))  # no scale is known
    assert not np.any(target_outliers(np.full(400, -9999.0)))


EXTREMES = {
    "a number of no usual form": (np.append(NORMAL, 50.3), 1),
    "such, in two rows": (np.append(NORMAL, [-500.0, -500.0]), 2),
    "a price of ten million": (np.append(PRICES, 1e7), 1),
    "a limit of claims": (np.append(CLAIMS, [1e6] * 3), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_are_far_but_no_codes(name):
    y, count = EXTREMES[name]
    codes, far = target_outliers(y)
    assert not codes.any() and far[-count:].all() and far.sum() == count


def test_a_second_group_of_targets_is_neither():
    for other in (0.0, 5000.0):
        assert not np.any(target_outliers(np.append(100 + 0.5 * NORMAL, np.full(100, other))))


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
def test_heavy_tails_hold_no_codes_and_seldom_far_targets(draw, most_far):
    """Of 200 tables none may lose a row; the share with a warning is bounded, by 4 standard errors above what gaps of 5 have in theory."""
    found = [target_outliers(draw(np.random.default_rng(seed))) for seed in range(200)]
    assert not any(codes.any() for codes, _ in found)
    assert np.mean([far.any() for _, far in found]) <= most_far


def test_inputs_beyond_a_gap_are_moved_near_the_others_also_if_more_than_a_thousandth_are():
    """Four areas of 1e9 in 2,772 rows; the limit is the largest of the others, which stay as they are."""
    areas = np.exp(6 + np.random.default_rng(2).normal(size=2768))
    x = np.append(areas, [1e9] * 4)
    bound = bound_of(x)
    np.testing.assert_array_equal(bound(x)[:-4], areas)
    assert areas.max() < bound(x)[-1] < 2 * areas.max()
    rule = TableEncoder.fit(pd.DataFrame({"Area": x, "b": np.arange(2772.0)})).columns[0]
    assert "1e+09" in rule.note and rule.name == "Area"
