"""The words of the field, not the house's: in what users and readers see."""

import re

import pytest

from measuring.store import ROOT

HOUSE = re.compile(r"\b(?:laws?|told|visit(?:s|ed)?|doors?|rows left out)\b", re.IGNORECASE)
MEANT = (  # other meanings
    "visits of one patient",
    "visits of one\npatient",
    "when the doors close",
    "power-law",
    "asked and told",
    "until something is told",
    '"told": len(values)',
)
FILES = [
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "generated"} & set(path.parts)),
    *sorted((ROOT / "measuring").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


def found_in(text):
    for meant in MEANT:
        text = text.replace(meant, "")
    return [match[0] for match in HOUSE.finditer(text)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_house_words(path):
    assert found_in(path.read_text(encoding="utf-8")) == []


def test_house_words_are_found():
    assert found_in("The law of rows left out, told at a visit; a power-law, visits of one patient") == [
        "law",
        "rows left out",
        "told",
        "visit",
    ]
