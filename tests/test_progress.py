"""The progress bar: when it appears, and its text."""

import io

import numpy as np
import pytest

from stochgp import GPRegressor, KernelGPRegressor, warning

X = np.random.default_rng(0).uniform(-1, 1, (120, 1))
Y = np.sin(3 * X[:, 0])


class _Stream(io.StringIO):
    def __init__(self, is_terminal: bool):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def said(monkeypatch):
    """Return what a fit writes to a terminal or a file, with a clock that advances by `step` at each look."""

    def run(model, is_terminal: bool, step: float) -> str:
        stream, now = _Stream(is_terminal), [0.0]

        def clock() -> float:
            now[0] += step
            return now[0]

        monkeypatch.setattr(warning.sys, "stderr", stream)
        monkeypatch.setattr(warning.time, "monotonic", clock)
        model.fit(X, Y)
        monkeypatch.undo()
        return stream.getvalue()

    return run


@pytest.mark.parametrize(
    ("verbose", "is_terminal", "step", "is_shown"),
    [("auto", True, 5.0, True), ("auto", True, 1e-3, False), ("auto", False, 5.0, False)]
    + [(0, True, 5.0, False), (1, True, 1e-3, True), (1, False, 5.0, True)],
)
def test_long_fits_are_shown_on_terminals_and_on_request(said, verbose, is_terminal, step, is_shown):
    model = KernelGPRegressor(verbose=verbose, random_state=0)
    assert ("learning" in said(model, is_terminal, step)) == is_shown


def test_a_pool_shows_its_part_and_the_remaining_time_and_removes_the_line(said):
    text = said(GPRegressor(random_state=0), True, 5.0)
    lines = text.split("\r")
    assert any("member 'kernel' (2 of" in line for line in lines)
    assert any("s left" in line for line in lines)
    assert not lines[-1].strip() and not lines[-2].strip()
