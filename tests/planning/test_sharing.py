"""When devices share a solve, and which way: what predicted seconds and bytes say."""

import pytest

from stochgp.budget import Budget
from stochgp.planning.devices import (
    ACROSS,
    INSIDE,
    Team,
    exchange_seconds,
    shared_bytes,
    shared_seconds,
    way_of,
)
from stochgp.planning.solver import choose
from stochgp.solvers import CG, SDD, SGD, Cholesky, Layout, SystemSize
from stochgp.solvers.base import CHECKS
from stochgp.solvers.sizes import TYPICAL, epoch_seconds

GPUS = Team("gpu", 4)
SIZE = SystemSize(100_000, 10, 64, row_bytes=48, has_neighbours=False)
LAYOUT = Layout(8192)
MUCH = Budget(10**12)


def test_seconds_are_those_of_one_device_less_the_shared_products_and_more_what_is_sent():
    for solver in (CG(), SDD(), SGD()):
        alone = solver.expected_seconds(SIZE, LAYOUT, TYPICAL, 0.01, 100)
        epochs = solver.expected_epochs(SIZE.n_rows, 0.01) + CHECKS
        found = shared_seconds(solver, SIZE, LAYOUT, TYPICAL, 0.01, 100, GPUS)
        products = epochs * epoch_seconds(SIZE, LAYOUT, TYPICAL)
        sent = epochs * exchange_seconds(solver, SIZE, GPUS)
        assert found == pytest.approx(alone - 0.75 * products + sent, rel=1e-12)


def test_an_epoch_sends_what_the_compiled_programs_send():
    """As `test_operators_sharded` counts: a product 3/4 of N (D + 1 + S) numbers, a step of SDD 2 · 3/4 of B (D + 2 + 4 S)."""
    N, B = SIZE.n_rows, SDD().batch_size
    product = exchange_seconds(CG(), SIZE, GPUS)
    assert product == pytest.approx(INSIDE.fixed + 0.75 * 4 * N * (10 + 1 + 65) / INSIDE.per_second)
    step = 2 * INSIDE.fixed + 1.5 * 4 * B * (10 + 2 + 4 * 65) / INSIDE.per_second
    assert exchange_seconds(SDD(), SIZE, GPUS) == pytest.approx(-(-N // B) * step)
    across = exchange_seconds(CG(), SIZE, Team("gpu", 4, 4))
    assert across == pytest.approx(ACROSS.fixed + 0.75 * 4 * N * (10 + 1 + 65) / ACROSS.per_second)


def test_devices_share_what_they_make_faster():
    alone, shared = choose(SIZE, MUCH, solver="sdd"), choose(SIZE, MUCH, solver="sdd", team=GPUS)
    assert alone.shared is None and "devices" not in alone.described()
    assert shared.way == "gather" and shared.seconds < 0.8 * alone.seconds and shared.keep_rows == 0
    assert shared.shared.count == 4 and "s on one device" in shared.shared.why
    assert shared.described()["devices"]["choice"] == {"count": 4, "solve": "gather"}


def test_devices_do_not_share_what_they_would_not_make_faster():
    """Few rows: a step's exchanges take longer than its product. Devices of one processor. Direct solves."""
    few = SIZE._replace(n_rows=5_000)
    slow = Team("gpu", 2, 2)
    for size, team, solver in (
        (few, slow, SDD(batch_size=64)),
        (SIZE, Team("cpu", 4), "sdd"),
        (few, GPUS, "cholesky"),
    ):
        alone, found = choose(size, MUCH, solver=solver), choose(size, MUCH, solver=solver, team=team)
        assert found.way is None and found._replace(shared=None) == alone
        assert found.shared.count == team.count
    assert "factorises on one device" in found.shared.why


def test_devices_share_what_they_are_told_to_but_no_factorisation():
    told = Team("cpu", 4, as_asked=True)
    assert choose(SIZE, MUCH, solver="cg", team=told).way == "gather"
    few = SIZE._replace(n_rows=100)
    assert choose(few, MUCH, team=told).way is None
    assert isinstance(choose(few, MUCH, team=told).solver, Cholesky)
    assert choose(few, MUCH, solver="sgd", team=told._replace(count=1)).shared.why == "one device"


def test_a_shared_cg_is_planned_without_neighbours():
    """Which one device finds: with them CG takes fewer steps, so that two devices hardly save time."""
    size = SIZE._replace(has_neighbours=True)
    shared = choose(size, MUCH, solver="cg", team=Team("gpu", 64))
    assert shared.way is not None and shared.solver.neighbours == 0
    assert choose(size, MUCH, solver="cg", team=Team("gpu", 2)).way is None


def test_rows_travel_where_not_all_fit_on_every_device():
    gathered = SIZE.n_rows * (48 + 4 * 65)
    assert way_of(SIZE, GPUS, 10 * gathered) == "gather" and way_of(SIZE, GPUS, 10 * gathered - 10) == "ring"
    assert way_of(SIZE, Team("cpu", 4), 40 * gathered - 40) == "ring"  # in one memory
    need, solver = SDD().need_bytes(SIZE, LAYOUT), SDD()
    assert shared_bytes(solver, SIZE, LAYOUT, "gather", GPUS) == need + gathered
    assert shared_bytes(solver, SIZE, LAYOUT, "ring", GPUS) == need + gathered // 2
    assert shared_bytes(solver, SIZE, LAYOUT, "ring", Team("cpu", 4)) == 4 * (need + gathered // 2)
