"""Files: what goes in comes out to the last bit, nothing of a file runs, and what cannot be read or written says why in one line."""

import math
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from stochgp import data, features, kernels, networks
from stochgp.data.rows import Data
from stochgp.parameters import bounded, frozen
from stochgp.storage import checkpoint, trees
from stochgp.storage.trees import load_tree, save_tree
from stochgp.tables.rules import ColumnRule

D, KEY = 3, jax.random.key(2)
ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(7, D)), jnp.float32)


def _network(**options):
    return features.Network(networks.mlp(D, (5, 4), key=KEY, **options))


def _on_network():
    inside = features.RandomFourier.init(frozen(kernels.RBF(2.0)), 4, 6, key=KEY)
    return features.Composed(_network(activation=jnp.tanh), inside)


MAPS = {
    "fourier": lambda: features.RandomFourier.init(kernels.Matern32([1.0, 2.0, 3.0]), D, 8, key=KEY),
    "paired": lambda: features.RandomFourier.init(
        kernels.RBF(active_dims=[2, 0]), D, 8, key=KEY, paired=True
    ),
    "nystrom": lambda: features.Nystrom(kernels.RBF() + kernels.Linear(bounded(1.0, 0.0, 9.0)), ROWS[:4]),
    "mlp": _network,
    "gelu": lambda: _network(activation=jax.nn.gelu),
    "attention": lambda: features.Network(networks.attention(D, width=8, feedforward=8, key=KEY)),
    "equinox-mlp": lambda: features.Network(eqx.nn.MLP(D, 4, 5, 1, key=KEY, dtype=jnp.float32)),
    "equinox-list": lambda: features.Network(
        eqx.nn.Sequential([eqx.nn.Linear(D, 4, key=KEY, dtype=jnp.float32), eqx.nn.Lambda(jax.nn.relu)]), D
    ),
    "composed": _on_network,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.stochgp"


def refusal(call, *arguments):
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same(found, wanted):
    """The same structure, static fields included, and the same kind of arrays with the same bits."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert type(a) is type(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


@pytest.mark.parametrize("name", MAPS)
def test_a_loaded_feature_map_is_the_same_map(name, path):
    phi = MAPS[name]()
    save_tree(path, phi, {})
    found, _ = load_tree(path)
    assert_same(found, phi)
    np.testing.assert_array_equal(eqx.filter_jit(found)(ROWS), eqx.filter_jit(phi)(ROWS))


def test_every_kind_of_value_survives(path):
    encoder = data.TableEncoder((ColumnRule("a", "text", ("x", "y")),))
    tree = {
        "plain": [None, True, 3, -0.1, "ε", (), ((1,),), {}, math.inf, -math.inf],
        "standard": data.Standardiser.fit(np.arange(6.0).reshape(3, 2)),
        "rows": Data(ROWS, ROWS[:, 0], ROWS[:, 1]),
        "encoder": encoder,
        "jax": [jnp.arange(3), jnp.float32(2.0), jnp.zeros((0, 2), jnp.bfloat16), jnp.array([True])],
        "numpy": [np.arange(6.0).reshape(2, 3).T, np.float64(0.1), np.arange(3, dtype=">i4"), np.array(1.0)],
        "function": jax.nn.softplus,
    }
    save_tree(path, tree, {"history": [{"nlml": -1.5, "rate": math.nan}], "name": "σ"})
    found, metadata = load_tree(path)
    tree["numpy"][2] = tree["numpy"][2].astype("<i4")
    assert found["standard"].mean.tobytes() == tree["standard"].mean.tobytes()
    assert found["encoder"] == encoder
    for name in ("plain", "rows", "jax", "numpy", "function"):
        assert_same(found[name], tree[name])
    assert metadata["name"] == "σ"
    assert math.isnan(metadata["history"][0]["rate"])


def test_nan_and_double_precision_keep_their_bits_outside_an_x64_context(path):
    with jax.enable_x64(True):
        array = jnp.array([0.1, jnp.nan, 2.0**-1074, 1 / 3], jnp.float64)
    save_tree(path, array, {})
    found, _ = load_tree(path)
    assert found.dtype == jnp.float64
    assert np.asarray(found).tobytes() == np.asarray(array).tobytes()


def test_a_checkpoint_keeps_the_order_the_bits_and_the_fingerprint(path):
    with jax.enable_x64(True):
        leaves = [jnp.float64(i) / 7 for i in range(12)] + [np.int32(3), True, 0.5]
    checkpoint.write(path, leaves, {"step": 7}, "abc", {"seed": 3})
    with jax.enable_x64(True):
        found, facts = checkpoint.read(path, leaves, "abc")
    assert (facts, checkpoint.notes(path)) == ({"step": 7}, {"seed": 3})
    for a, b in zip(found, leaves, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    with pytest.raises(checkpoint.CheckpointError, match="another run"):
        checkpoint.read(path, leaves, "abd")


class Mine(eqx.Module):
    weight: jax.Array


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (features.Network(lambda x: x[:2], D), ["model.network", "'<lambda>'"]),
        (_network(activation=lambda x: x), ["model.network.activation", "'<lambda>'"]),
        ({"net": Mine(ROWS)}, ["model['net']", "test_files.Mine", "equinox.nn"]),
        ([np.array(["a"])], ["model[0]", "real numbers"]),
        ([np.array([1j])], ["model[0]", "complex128"]),
        (os.system, ["'system'"]),
        (Mine, ["'Mine'"]),
    ],
)
def test_what_cannot_be_saved_is_named_and_the_old_file_stays(tree, words, path):
    save_tree(path, 1, {})
    before = path.read_bytes()
    message = refusal(save_tree, path, tree, {})
    assert all(word in message for word in words), message
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    save_tree(path, [np.ones(3)], {})
    before = path.read_bytes()

    def fail(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        save_tree(path, [np.zeros(3)], {})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_every_truncation_is_refused(path):
    save_tree(path, _network(), {})
    whole = path.read_bytes()
    for size in [*range(40), *range(40, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        message = refusal(load_tree, path)
        assert str(path) in message
        assert ("too short" if size <= 8 else "truncated") in message


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n3,4\n", b"PK\x03\x04" * 20, b"\x80\x04\x95" + bytes(50), None]
)
def test_other_files_are_refused(content, path):
    if content is None:
        safetensors.numpy.save_file({"a": np.ones(2)}, path)
    else:
        path.write_bytes(content)
    assert refusal(load_tree, path).endswith("is not a file of stochgp")


def test_a_newer_format_asks_for_an_upgrade(path):
    trees._write(path, {}, {"format": 3, "version": "9.0"})
    message = refusal(load_tree, path)
    assert "in format 3 by stochgp 9.0; this version reads formats up to 2: upgrade stochgp" in message


def test_every_changed_byte_is_noticed(path):
    """Of header and arrays: 200 places, and both ends of the numbers."""
    array = np.random.default_rng(0).normal(size=(30, 2))
    save_tree(path, {"a": array, "kernel": kernels.RBF(2.0)}, {"note": "x"})
    whole = path.read_bytes()
    assert load_tree(path)[1] == {"note": "x"}
    header = 8 + int.from_bytes(whole[:8], "little")
    for at in {*range(8, len(whole), len(whole) // 200), header, len(whole) - 1}:
        if whole[at : at + 1] != b" ":  # the blanks that fill up the header
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert str(path) in refusal(load_tree, path), at


def test_a_model_is_not_a_checkpoint(path):
    save_tree(path, 1, {})
    assert "contains a model" in refusal(checkpoint.notes, path)


@pytest.mark.parametrize(
    "structure",
    [
        {"function": "os:system"},
        {"function": "builtins:eval"},
        {"function": "stochgp.storage.trees:json"},
        {"function": "stochgp.storage.trees:importlib"},
        {"function": "stochgp.__main__:main"},
        {"function": "jax.nn:no_such_function"},
        {"function": "jax.numpy:np.load"},
        {"class": "subprocess:Popen", "fields": {"args": "ls"}},
        {"class": "equinox:Module", "fields": {}},
        {"class": "stochgp.kernels:AbstractKernel", "fields": {}},
        {"class": "stochgp.kernels:RBF", "fields": {"lengthscale": 1.0}},
        {
            "class": "stochgp.kernels:RBF",
            "fields": {"variance": 1, "lengthscale": 1, "active_dims": 1, "new": 1},
        },
        {"class": "stochgp.kernels:resolve", "fields": {}},
        {"array": "b", "kind": "jax"},
        {"array": "a", "kind": "list"},
        {"default": "equinox.nn:MLP", "argument": "no"},
        {"pickle": "gASV"},
        [1, 2],
    ],
)
def test_nothing_that_is_not_on_the_list_is_made_or_called(structure, path):
    trees._write(path, {"a": np.ones(2)}, {"structure": structure, "metadata": {}})
    assert "cannot be read by stochgp" in refusal(load_tree, path)
