"""Which learner a name and a number of rows stand for, and where options go."""

import dataclasses

import jax
import pytest

from stochgp import kernels, learners, networks
from stochgp.families.default_learners import (
    DEEP_STEPS,
    FULL_BATCH,
    FULL_BATCH_ROWS,
    ROW_BY_ROW,
    SPREAD,
    SUBSET_ROWS,
    kernel_learner,
)
from stochgp.kernels.warped import is_deep, networks_held
from stochgp.learners import (
    BSGD,
    ByLoss,
    FullBatch,
    LeaveOneOut,
    Uniform,
    Vecchia,
)
from stochgp.models import KernelGP
from stochgp.parameters import frozen


def test_the_automatic_learner_goes_with_the_rows():
    small, why = kernel_learner("auto", FULL_BATCH_ROWS)
    assert small == FULL_BATCH and str(FULL_BATCH_ROWS) in why
    for n_rows, loo in (
        (FULL_BATCH_ROWS + 1, ROW_BY_ROW),
        (16_385, LeaveOneOut()),
        (10_000_000, LeaveOneOut()),
    ):
        large, why = kernel_learner("auto", n_rows)
        assert large == loo
        assert f"from {large.n_neighbours + large.n_scored - 1} rows" in why
    hurried, why = kernel_learner("auto", FULL_BATCH_ROWS + 1, hurried=True)
    assert hurried == FullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD)
    assert "time limit" in why


def test_rows_in_groups_are_learned_from_by_leave_one_out_at_any_size():
    """Unless there is no time to search neighbours."""
    for n_rows in (50, FULL_BATCH_ROWS, 10_000_000):
        found, why = kernel_learner("auto", n_rows, grouped=True)
        assert found == ROW_BY_ROW and "groups" in why
        hurried = kernel_learner("auto", n_rows, grouped=True, hurried=True)
        assert hurried == kernel_learner("auto", n_rows, hurried=True)


def test_a_batch_size_asks_for_mini_batches():
    found, why = kernel_learner("auto", 100, batch_size=16)
    assert found == dataclasses.replace(BSGD(), batch_size=16)
    assert "batch" in why


def test_options_that_a_learner_does_not_have_are_refused():
    for learner in ("loo", "auto", Vecchia()):
        with pytest.raises(ValueError, match="learning_rate is 0.1, but .* has none: leave it None"):
            kernel_learner(learner, 10_000, learning_rate=0.1)


@pytest.mark.parametrize("n_rows", [1, 255, 10_000, 2_000_000])
@pytest.mark.parametrize("name", ["auto", "bsgd"])
def test_deep_kernels_learn_from_batches(name, n_rows):
    first, why = kernel_learner(name, n_rows, deep=True)
    assert "network" in why
    assert 0.8 * DEEP_STEPS < first.plan(n_rows, 3, ByLoss()).total_steps <= 1.1 * DEEP_STEPS
    assert first.sampling == Uniform()
    asked, _ = kernel_learner(name, n_rows, deep=True, batch_size=32, epochs=3, learning_rate=0.1)
    assert (asked.batch_size, asked.epochs) == (32, 3)


def test_a_kernel_is_deep_if_a_network_trains():
    network = networks.mlp(2, (3,), key=jax.random.key(0))
    deep = kernels.Warped(kernels.RBF(), network)
    assert is_deep(deep) and is_deep(deep + kernels.RBF())
    assert is_deep(kernels.Warped(deep, frozen(network)))
    for shallow in ("rbf", kernels.RBF(), kernels.Warped(kernels.RBF(), frozen(network)), frozen(deep)):
        assert not is_deep(shallow)
    assert not is_deep(kernels.Warped(kernels.RBF(), lambda x: 2 * x))
    assert not is_deep(networks_held(kernels.Warped(deep, network) * kernels.Linear()))


def test_a_learner_given_takes_the_options_that_it_leaves_open():
    found, _ = kernel_learner(learners.BSGD(batch_size=8), 100, epochs=3)
    assert isinstance(found, BSGD) and (found.batch_size, found.epochs) == (8, 3)


@pytest.mark.parametrize("name", ["full-batch"])
def test_learners_of_all_rows_take_no_batch_size(name):
    for n_rows in (100, SUBSET_ROWS + 1):
        with pytest.raises(ValueError, match="batch_size is 8"):
            kernel_learner(name, n_rows, batch_size=8)


@pytest.mark.parametrize("learner", ["auto", "bsgd", "full-batch"])
@pytest.mark.parametrize("n_rows", [1, 1000, 50_000, 2_000_000])
def test_what_learning_needs_grows_with_the_rows_and_never_is_all_pairs_by_default(learner, n_rows):
    found, _ = kernel_learner(learner, n_rows)
    need, more = (found.peak_bytes(KernelGP(kernels.RBF()), n, 10) for n in (n_rows, 2 * n_rows))
    assert 0 < need <= more
    if learner == "auto":
        assert need < 2.5e8 + 600 * n_rows
