"""What `make test` leaves to `make test-all` are cells of sweeps: no test loses all of its cells by the list."""

from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).parent / "support" / "long_cells.txt"


def unknown_and_lost(lines, collected):
    """(Lines that are no node of the files that were collected, tests of which every cell is in the list)."""
    files = {node.partition("::")[0] for node in collected}
    unknown = [line for line in lines if line.partition("::")[0] in files and line not in collected]
    cells = defaultdict(list)
    for node in collected:
        cells[node.partition("[")[0]].append(node)
    lost = [test for test, nodes in cells.items() if set(nodes) <= set(lines)]
    return unknown, lost


def test_cells_of_the_list_exist_and_every_test_keeps_one(collected, request):
    if any("::" in argument for argument in request.config.invocation_params.args):
        return  # some nodes of a file alone
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert unknown_and_lost(lines, collected) == ([], [])
    assert lines == sorted(set(lines))


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["a.py::t[1]"], ([], [])),
        (["a.py::t[3]"], (["a.py::t[3]"], [])),
        (["b.py::t"], ([], [])),
        (["a.py::t[1]", "a.py::t[2]"], ([], ["a.py::t"])),
    ],
)
def test_faults_of_a_list_are_found(lines, found):
    assert unknown_and_lost(lines, {"a.py::t[1]": True, "a.py::t[2]": False}) == found
