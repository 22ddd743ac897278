"""Parameters: values survive their transform, stay in range, and train exactly when they should."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import networks
from stochgp.parameters import (
    AbstractParameter,
    Frozen,
    Positive,
    as_positive,
    bounded,
    cast,
    frozen,
    partition,
    positive,
    trainable_mask,
)


class Model(eqx.Module):
    scale: AbstractParameter
    fixed: Frozen
    weights: jax.Array
    network: Frozen
    steps: jax.Array


@pytest.fixture
def model():
    network = networks.mlp(2, (3,), key=jax.random.key(0))
    return Model(positive([1.0, 2.0]), frozen(3.0), jnp.ones(2, jnp.float32), frozen(network), jnp.arange(2))


@pytest.mark.parametrize("lower", [0.0, 1e-3, 2.0])
@pytest.mark.parametrize("excess", [1e-6, 1.0, 1e6, [0.5, 3.0]])
def test_positive_is_worth_what_it_was_given(excess, lower):
    with jax.enable_x64(True):
        value = np.add(lower, excess)
        np.testing.assert_allclose(positive(value, lower).value, value, rtol=1e-12)


@pytest.mark.parametrize("value", [-0.999, 0.0, 2.5, [1.0, 2.999]])
def test_bounded_is_worth_what_it_was_given(value):
    np.testing.assert_allclose(bounded(value, -1.0, 3.0).value, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("raw", [-1e3, -1.0, 0.0, 5.0])
def test_no_raw_value_leaves_the_range(raw):
    raw = jnp.asarray(raw, jnp.float32)
    assert float(Positive(raw, lower=0.1).value) >= np.float32(0.1)
    limits = eqx.tree_at(lambda p: p.raw, bounded(0.5, 0.0, 1.0), raw)
    assert 0 <= float(limits.value) <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: positive(0.0),
        lambda: positive(-1.0),
        lambda: positive([1.0, float("nan")]),
        lambda: positive(float("inf")),
        lambda: positive(1.0, lower=1.0),
        lambda: positive(1.0, lower=-1.0),
        lambda: bounded(1.0, 1.0, 2.0),
        lambda: bounded(2.5, 1.0, 2.0),
        lambda: bounded(1.0, 2.0, 0.0),
        lambda: as_positive(-3.0),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ValueError, match="parameter|bounds"):
        make()


def test_dtypes_are_explicit():
    with jax.enable_x64(True):
        for parameter in (positive(2.0), bounded(2.0, 1.0, 3.0), frozen(2.0), positive(2), frozen([1, 2])):
            assert parameter.value.dtype == jnp.float32
            assert not parameter.value.weak_type
        assert positive(np.array([1.0, 2.0])).dtype == jnp.float64
        assert positive(2.0, dtype=jnp.float64).dtype == jnp.float64
        assert positive(np.float64(2.0), dtype=jnp.float32).dtype == jnp.float32


def test_a_parameter_may_be_made_under_jit():
    made = jax.jit(lambda value: positive(value))(jnp.asarray(2.0, jnp.float32))
    np.testing.assert_allclose(made.value, 2.0, rtol=1e-6)


def test_only_floating_arrays_outside_frozen_train(model):
    mask = trainable_mask(model)
    assert (mask.scale.raw, mask.weights) == (True, True)
    assert not any(jax.tree.leaves((mask.fixed, mask.network, mask.steps)))
    assert jax.tree.structure(mask) == jax.tree.structure(model)


def test_partition_and_combine_give_the_model_back(model):
    trainable, rest = partition(model)
    assert len(jax.tree.leaves(trainable)) == 2
    assert eqx.tree_equal(eqx.combine(trainable, rest), model)


def test_no_gradient_passes_through_frozen(model):
    @eqx.filter_grad
    def gradient(model):
        output = model.network(jnp.ones(2, jnp.float32))
        return model.fixed.value * (jnp.sum(output) + jnp.sum(model.scale.value) + jnp.sum(model.weights))

    found = gradient(model)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves((found.fixed, found.network)))
    np.testing.assert_allclose(found.scale.raw, [3.0, 6.0], rtol=1e-6)  # d exp(raw) = value


def test_a_frozen_network_computes_what_the_network_does():
    network = networks.mlp(2, (3,), key=jax.random.key(0))
    x = jnp.ones(2, jnp.float32)
    np.testing.assert_array_equal(frozen(network)(x), network(x))


def test_repr_shows_the_value_where_it_is_known(model):
    assert repr(bounded(0.5, 0.0, 1.0)) == "Bounded(0.5)"
    assert "fixed=Frozen(3.)" in repr(model)
    assert "raw=None" in repr(partition(model)[1])
    assert "raw=True" in repr(trainable_mask(model))
    seen = []
    jax.jit(lambda p: seen.append(repr(p)))(positive(2.0))
    assert seen == ["Positive(raw=f32[])"]


def test_cast_changes_floating_arrays_only(model):
    with jax.enable_x64(True):
        wide = cast(model, jnp.float64)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide) if eqx.is_inexact_array(leaf)} == {
        np.dtype("float64")
    }
    assert wide.steps.dtype == model.steps.dtype


def test_double_precision_is_read_back_without_the_64_bit_mode():
    with jax.enable_x64(True):
        parameters = [positive(np.array([0.1, 2.0]), dtype=jnp.float64), bounded(np.array(0.3), 0.0, 1.0)]
        parameters[1] = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), parameters[1])
    assert np.asarray(parameters[0]).dtype == np.float64
    np.testing.assert_allclose(parameters[0], [0.1, 2.0], rtol=1e-15)
    assert abs(float(parameters[1]) - 0.3) < 1e-7 and "0.1" in repr(parameters[0])
