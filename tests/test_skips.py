"""A test that is skipped for no named reason fails the run: what nobody runs proves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REASONS = {
    "a test": ('def test_it():\n    pytest.skip("{}")\n', "no time today", False),
    "a module": ('pytest.skip("{}", allow_module_level=True)\n', "no time today", False),
    "a named reason": (
        'def test_it():\n    pytest.skip("{}")\n',
        "needs the data sets in ../shared/data",
        True,
    ),
    "an extra": ('def test_it():\n    pytest.skip("{}")\n', "could not import 'gymnasium'", True),
    "a failure that is expected": ("@pytest.mark.xfail\ndef test_it():\n    assert False\n", "", True),
}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_skip_without_a_name_fails_the_run(workers, tmp_path):
    """In one process and with workers."""
    wrong = {name for name, (_, _, fine) in REASONS.items() if not fine}
    _written(tmp_path, set(REASONS))
    code, said = _run(tmp_path, workers, extras="0")
    assert code == 1 and said.count("skipped for no reason of conftest.SKIPS") == len(wrong)
    assert said.count("no time today") >= len(wrong)


@pytest.mark.long
def test_named_skips_and_expected_failures_pass_but_no_extra_that_is_installed(tmp_path):
    _written(tmp_path, {name for name, (_, _, fine) in REASONS.items() if fine})
    assert _run(tmp_path, "0", extras="0")[0] == 0
    assert _run(tmp_path, "0", extras="1")[0] == 1


def _written(folder, names):
    """A file for each, and one whose test passes."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_passes.py").write_text("def test_it():\n    pass\n")
    for i, name in enumerate(sorted(names)):
        text, reason, _ = REASONS[name]
        (folder / f"test_{i}.py").write_text(f"import pytest\n\n\n{text.format(reason)}")


def _run(folder, workers, extras):
    command = ["-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-n", workers, str(folder)]
    paths = os.pathsep.join(filter(None, [str(TESTS), str(TESTS / "support"), os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    kept |= {"PYTHONPATH": paths, "STOCHGP_TYPECHECK": "0", "STOCHGP_EXTRAS": extras}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=kept, capture_output=True, text=True)
    return done.returncode, done.stdout
