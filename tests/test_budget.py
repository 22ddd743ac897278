"""The memory limit: sizes are read as written, refusals name both numbers, and what is reported is what the process uses."""

import math

import jax
import numpy as np
import pytest

from stochgp import budget
from stochgp.budget import Budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GB", 10**9),
        ("512MiB", 512 * 2**20),
        (" 1.5 gb ", 1_500_000_000),
        ("100", 100),
        ("7B", 7),
        ("2e3kB", 2_000_000),
        ("1TiB", 2**40),
        (".5MB", 500_000),
        (12345, 12345),
        (1e9, 10**9),
        (np.int64(5), 5),
        (None, None),
    ],
)
def test_sizes_are_read_as_written(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "size", ["", "GB", "one GB", "1 GBit", "1,5GB", "-1GB", "1e999GB", "0", 0, -5, math.inf, math.nan]
)
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match="memory_limit") as caught:
        parse_bytes(size)
    assert "\n" not in str(caught.value)


def test_what_is_in_use_follows_what_is_allocated():
    before, size = budget.resident(), 80_000_000
    block = np.ones(size, np.uint8)
    assert budget.resident() - before > 0.9 * size
    assert budget.peak_resident() >= budget.resident() - 10_000_000
    del block
    assert budget.peak_resident() > before + 0.8 * size
    assert budget.available() > 0


def test_no_limit_means_half_of_what_is_available(monkeypatch):
    monkeypatch.setattr(budget, "in_use", lambda: 300)
    monkeypatch.setattr(budget, "available", lambda: 1000)
    assert Budget.of(None).limit == 800
    assert Budget.of("1kB").free() == 700
    assert Budget.of(200).free() == 0


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr(budget, "in_use", lambda: 300_000_000)
    limit = Budget.of("1GB")
    limit.require(700_000_000, "the posterior")
    with pytest.raises(ValueError, match="the posterior needs 700 MB") as caught:
        limit.require(700_000_001, "the posterior")
    message = str(caught.value)
    assert "300 MB in use" in message
    assert message.endswith("memory_limit is 1 GB")
    assert "\n" not in message


def test_a_container_s_limit_counts(tmp_path, monkeypatch):
    for name, text in (("max", "5000000\n"), ("current", "4000000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 300000\n")
    monkeypatch.setattr(budget, "_CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(budget, "_accelerator", lambda: None)
    assert budget.available() == 1_300_000
    (tmp_path / "memory.max").write_text("max\n")
    assert budget.available() > 5_000_000


def test_an_accelerator_s_allocator_is_asked(monkeypatch):
    class Device:
        platform = "gpu"

        def memory_stats(self):
            return {"bytes_in_use": 70, "bytes_limit": 1000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert budget.in_use() == 70
    assert budget.available() == 930
    assert Budget.of(None).limit == 535
