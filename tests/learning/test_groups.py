"""Which rows are held out where rows have groups; how they are scored where rows have weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from reference import dense_posterior
from toy import make_gp, make_toy

from stochgp.data.memory import MemorySource
from stochgp.learners import ByEvidence
from stochgp.learners.evaluators import held_out_rows


def test_held_out_rows_of_any_weight_are_single_observations(double):
    """Of variance v + σ², by the dense posterior; ρ weighs them in the mean, and ten times as much of all changes nothing before they join."""
    toy, gp, n = make_toy(500), make_gp(M=6), 420
    weight, evaluator = np.random.default_rng(0).uniform(0.2, 3, 80), ByEvidence()
    train = MemorySource(toy.X[:n], toy.y[:n], dtype=jnp.float64)

    def judged(times):
        held_out = MemorySource(toy.X[n:], toy.y[n:], times * weight, dtype=jnp.float64)
        evaluation = evaluator.evaluate(gp, {}, (train, held_out))
        return evaluation, evaluator.finalize(evaluation, (train, held_out))[1]

    evaluation, evidence = judged(1)
    v, s2 = evaluation.chosen
    Phi = np.sqrt(v) * np.asarray(gp.features(jnp.asarray(toy.X)), np.float64)
    mean, covariance = dense_posterior(Phi[:n], toy.y[:n], s2, Phi[n:])
    V, error = np.diag(covariance) + s2, toy.y[n:] - mean
    np.testing.assert_allclose(evidence.held_out.y, error / np.sqrt(V), rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(evidence.held_out.X, toy.X[n:])
    of = lambda e, V: np.average(np.log(2 * np.pi * V) + e**2 / V, weights=weight) / 2
    np.testing.assert_allclose(evaluation.nlpd, of(error, V), rtol=1e-6)
    centre, spread = toy.y[:n].mean(), toy.y[:n].var()
    np.testing.assert_allclose(evidence.constant_nlpd, of(toy.y[n:] - centre, spread), rtol=1e-6)
    other, more = judged(10)
    np.testing.assert_allclose(other.chosen, evaluation.chosen, rtol=1e-6)
    np.testing.assert_allclose(other.nlpd, evaluation.nlpd, rtol=1e-9)
    np.testing.assert_allclose(more.held_out.y, evidence.held_out.y, rtol=1e-6)
    np.testing.assert_allclose(more.held_out.weight, 10 * weight, rtol=1e-12)


@pytest.mark.parametrize("sizes", [[5] * 40, [1] * 100 + [50, 50], [150, 50], [199, 1], [110, 90]])
def test_whole_groups_are_held_out(sizes):
    """No group is in both parts, most rows train, and no group that may join would bring the number held out nearer to the one wanted."""
    wanted = held_out_rows(200, ByEvidence().validation_fraction)
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = np.arange(200.0)[:, None]
    for seed in range(5):
        rows, left_out = ByEvidence().divide(MemorySource(X, X[:, 0], group=group), (seed,))
        train, held_out = rows.indices, left_out.indices
        np.testing.assert_array_equal(np.sort(np.concatenate([train, held_out])), np.arange(200))
        assert not set(group[train]) & set(group[held_out])
        np.testing.assert_array_equal(left_out.group, group[held_out])
        left = np.unique(group[train], return_counts=True)[1]
        assert len(left) > 0 and len(held_out) > 0
        left = left[2 * (len(held_out) + left) < 200]
        assert (np.abs(len(held_out) + left - wanted) >= abs(len(held_out) - wanted)).all()
        assert len(held_out) < len(train)  # also where one group has most of the rows


def test_one_group_cannot_be_divided():
    source = MemorySource(np.zeros((200, 1)), np.zeros(200), group=np.ones(200, int))
    assert ByEvidence(validation_fraction=0.0).divide(source, (0,))[1] is None
    with pytest.raises(ValueError, match="in one group.*validation_fraction=0"):
        ByEvidence().divide(source, (0,))
