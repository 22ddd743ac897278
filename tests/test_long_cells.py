"""What `make test` leaves to `make test-all` are cells of sweeps: no test loses all of its cells by the list."""

from collections import defaultdict
from pathlib import Path

import pytest
from sweeps import long_cells

ROOT = Path(__file__).parents[1]


def faults(lines, collected):
    """(Lines that are no node of the files that were collected, lines of nodes that are long without them, tests of which the list takes the last cell)."""
    files = {node.partition("::")[0] for node in collected}
    unknown = [line for line in lines if line.partition("::")[0] in files and line not in collected]
    twice = [line for line in lines if collected.get(line)]
    cells = defaultdict(list)
    for node in collected:
        cells[node.partition("[")[0]].append(node)
    lost = [
        test
        for test, nodes in cells.items()
        if not all(collected[node] for node in nodes)
        and all(collected[node] or node in lines for node in nodes)
    ]
    return unknown, twice, lost


def test_cells_of_the_list_exist_and_every_test_keeps_one(collected, request):
    if any("::" in argument for argument in request.config.invocation_params.args):
        return  # some nodes of a file alone
    lines = long_cells()
    assert faults(lines, collected) == ([], [], [])
    assert lines == sorted(set(lines))
    assert [line for line in lines if not (ROOT / line.partition("::")[0]).is_file()] == []


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["a.py::t[1]"], ([], [], [])),
        (["a.py::t[4]"], (["a.py::t[4]"], [], [])),
        (["b.py::t"], ([], [], [])),
        (["a.py::t[3]"], ([], ["a.py::t[3]"], [])),
        (["a.py::t[1]", "a.py::t[2]"], ([], [], ["a.py::t"])),
    ],
)
def test_faults_of_a_list_are_found(lines, found):
    assert (
        faults(lines, {"a.py::t[1]": False, "a.py::t[2]": False, "a.py::t[3]": True, "a.py::u": True})
        == found
    )
