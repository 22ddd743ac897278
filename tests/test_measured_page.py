"""The pages in docs that come from lines of results say what the lines say: recomputed here, without running anything."""

import re

import pytest

from measuring import machine, report
from measuring.report import records, value, values
from measuring.store import ROOT
from measuring.tables import printed

FILES = report.names()
REFERENCED = (
    "bike",
    "elevators",
    "pol",
    "protein",
    "keggdirected",
)  # sets with an exact posterior of published hyperparameters


@pytest.mark.parametrize("name", report.PAGES)
def test_a_page_is_what_the_lines_say(name):
    text = report.path_of(name).read_text(encoding="utf-8")
    assert text == report.filled(report.template_of(name)), "run: python -m measuring"


def test_a_placeholder_without_lines_is_named():
    with pytest.raises(ValueError, match=r'\{\{value\("defaults".*none of \d+ records has'):
        report.filled('{{value("defaults", "rmse", set="nowhere") | .3f}}')


@pytest.mark.parametrize(
    ("number", "spec", "text"), [(-1.5, ".2f", "−1.50"), (2.2e-6, ".1e", "2.2e-6"), (1e8, ".0e", "1e8"), (-3e-10, ".0e", "−3e-10")]
)  # fmt: skip
def test_numbers_are_printed_with_true_minus_signs_and_short_exponents(number, spec, text):
    assert printed(number, spec) == text


@pytest.mark.parametrize("name", FILES)
def test_each_line_has_command_commit_machine_versions_and_date(name):
    for record in records(name):
        assert record["machine"]["processor"]
        assert record["versions"]["jax"] and record["threads"]["cores_usable"] >= 1
        assert record["command"].startswith("python -m ")
        assert re.match(r"20\d\d-\d\d-\d\d", record["finished"])


@pytest.mark.parametrize("name", FILES)
def test_each_line_was_measured_at_a_commit_of_this_history(name):
    """And without changes beside it: the code that made a number can be looked at, and run again."""
    known = machine.history()
    if known is None:
        pytest.skip("the whole history is not at hand")
    known |= {commit[:7] for commit in known}
    assert {record["commit"] for record in records(name)} - known == set()


def test_other_pages_say_what_the_lines_say():
    """The README and pages on methods repeat numbers of measured.md."""
    seconds, demo = values("kernel_defaults", "fit_seconds"), records("demo")
    excess = max(
        value("kernel_defaults", "rmse", set=s)
        / value("posteriors", "rmse", set=s, split=0, solver="cholesky")
        - 1
        for s in REFERENCED
    )
    readme = [
        f"in {min(seconds):.0f} to {max(seconds):.0f} s",
        f"at most {100 * excess:.1f} % above the RMSE of the exact posterior",
        f"{value('demo', 'peak_bytes', side='stochgp') / 1e9:.2f} GB at its peak",
        f"{value('demo', 'n_train', side='stochgp'):,d} flights to learn from",
        f"{value('demo', 'n_test', side='stochgp'):,d} flights of {value('demo', 'test_days', side='stochgp')} held-out days",
    ]
    for found in (r["results"] for r in demo):
        nlpd = "–" if found["nlpd"] is None else f"{found['nlpd']:.3f}"
        shares = f"{found['coverage_50']:.3f}, {found['coverage_95']:.3f}"
        readme.append(
            f"| {found['rmse']:.2f} | {nlpd} | {found['crps']:.2f} | {shares} | {found['seconds']:.0f} |"
        )
    worst = posterior_excess("elevators", "bike", "protein", "keggdirected", "pol")
    kernel = [f"at most {100 * worst:.1f} % higher than with exact solves"]
    scale = [f"{value('kernel_defaults', 'fit_seconds', set=s):.0f} s on {s}" for s in ("kin40k", "protein")]
    files = [
        f"{value('files', 'seconds', type='parquet', n_rows=n):.0f} s for {said}"
        for n, said in ((10**6, "10⁶ rows"), (10**7, "10⁷"), (3 * 10**7, "3·10⁷"))
    ]
    pages = {"README.md": readme, "docs/methods/kernel_gp.md": kernel, "docs/methods/scale.md": scale + files}
    for page, said in pages.items():
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [part for part in said if part not in text] == []


def posterior_excess(*sets):
    """The greatest RMSE of an iterative solver on a split, relative to that of Cholesky, less 1."""
    cells = [
        r
        for r in records("posteriors")
        if r["settings"]["set"] in sets and r["settings"]["solver"] in ("cg", "sdd")
    ]
    exact = lambda c: value("posteriors", "rmse", solver="cholesky", set=c["set"], split=c["split"])
    return max(r["results"]["rmse"] / exact(r["settings"]) - 1 for r in cells)
