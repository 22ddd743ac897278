"""Compiled code in the user's cache folder: who finds it there, and whose settings of JAX stay."""

import logging
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import stochgp
from stochgp import compiled

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


def settings():
    return [getattr(jax.config, name) for name in NAMES]


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A user without settings of JAX, with a cache folder of their own."""
    before = settings()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    for name in ("XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    monkeypatch.setitem(compiled._STATE, "warned", False)
    _set([None, 1.0])
    compiled.compiled_folder.cache_clear()
    yield compiled.compiled_folder()
    compiled.compiled_folder.cache_clear()
    _set(before)


def _set(values):
    for name, value in zip(NAMES, values, strict=True):
        jax.config.update(name, value)
    reset_cache()


def kept(folder):
    return {path.name for path in Path(folder).rglob("*-cache")}


def test_a_fit_keeps_what_it_compiles_and_leaves_the_settings(fresh, tmp_path, caplog):
    X = np.linspace(0, 3, 20)[:, None]
    jax.clear_caches()
    with caplog.at_level(logging.INFO, logger="stochgp"):
        model = stochgp.KernelGPRegressor(
            stochgp.kernels.RationalQuadratic(), learner=None, n_samples=0, random_state=0
        ).fit(X, np.sin(X[:, 0]))
        model.predict(X)
    assert kept(fresh) and kept(tmp_path) == kept(fresh) and fresh.is_relative_to(tmp_path / "user")
    assert settings() == [None, 1.0]
    assert [record.name for record in caplog.records if str(fresh) in record.getMessage()] == ["stochgp"]
    before = kept(fresh)
    jax.jit(lambda x: x * 3 + 1)(np.arange(7.0))  # a program of the caller's
    assert kept(fresh) == before


def test_a_folder_that_the_program_sets_afterwards_is_taken(fresh, tmp_path):
    with compiled.kept_on_disk():
        jax.jit(lambda x: x * 5 + 1)(np.arange(7.0))
    _ = [
        jax.config.update(name, value)
        for name, value in zip(NAMES, (str(tmp_path / "own"), 0.0), strict=True)
    ]
    jax.jit(lambda x: x * 7 + 1)(np.arange(7.0))
    assert kept(tmp_path / "own") and kept(fresh)


def test_a_cache_switched_off_or_set_by_the_program_is_left_alone(fresh, tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        with compiled.kept_on_disk():
            assert settings() == [None, 1.0]
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update(NAMES[0], str(tmp_path / "own"))
    with compiled.kept_on_disk():
        assert settings() == [str(tmp_path / "own"), 1.0]


def test_the_last_one_out_puts_the_settings_back(fresh):
    with compiled.kept_on_disk():
        with pytest.raises(ZeroDivisionError), compiled.kept_on_disk():
            raise ZeroDivisionError
        assert settings() == [str(fresh), 0.0]
    assert settings() == [None, 1.0]


def test_the_folder_does_not_grow_without_bound(tmp_path):
    for i in range(10):
        (tmp_path / f"{i}-cache").write_bytes(bytes(100))
        os.utime(tmp_path / f"{i}-cache", (i, i))
    compiled._make_room(tmp_path, 1_000)
    assert len(list(tmp_path.iterdir())) == 10
    compiled._make_room(tmp_path, 900)
    assert {path.name for path in tmp_path.iterdir()} == {f"{i}-cache" for i in range(6, 10)}


def test_programs_that_run_seldom_compile_without_options_that_xla_does_not_know(monkeypatch):
    monkeypatch.setattr(compiled, "QUICK", {"no_such_option": True})
    assert float(compiled.quick_jit(lambda x: 2 * x)(np.float32(3))) == 6
