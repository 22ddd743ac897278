"""A test that is skipped for no named reason fails the run: what nobody runs proves nothing."""

from types import SimpleNamespace

import pytest

from tests import conftest

REASONS = {
    "no time today": False,
    "needs the data sets in ../shared/data": True,
    "could not import 'gymnasium'": True,
}


@pytest.fixture
def skipped(monkeypatch):
    monkeypatch.setattr(conftest, "_skipped", {})
    monkeypatch.delenv("STOCHGP_EXTRAS", raising=False)
    for reason in REASONS:
        conftest._note(SimpleNamespace(skipped=True, nodeid=reason, longrepr=("file", 1, reason)))
    failed = SimpleNamespace(skipped=True, nodeid="expected", longrepr="it fails", wasxfail="")
    conftest._note(failed)


def test_a_skip_without_a_name_fails_the_run(skipped):
    assert list(conftest._without_a_name()) == [reason for reason, fine in REASONS.items() if not fine]
    session = SimpleNamespace(config=SimpleNamespace(), exitstatus=0)
    conftest.pytest_sessionfinish(session, pytest.ExitCode.OK)
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED


def test_extras_that_are_installed_may_not_be_skipped(skipped, monkeypatch):
    monkeypatch.setenv("STOCHGP_EXTRAS", "1")
    assert len(conftest._without_a_name()) == 2
