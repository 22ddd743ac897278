"""docs/measured.md, docs/comparison.md and docs/solvers.md say what the lines of results say: recomputed here, without running anything."""

import re
import subprocess
import sys

import pytest

from measuring import machine, page_facts, page_tables, query, report
from measuring.places import ROOT
from measuring.query import lines
from measuring.tables import printed

TEMPLATES = {name: report.template_of(name) for name in report.PAGES}
FILES = query.names()
GIVEN = re.compile(r"\{\{given (.*?)\}\}", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\.?\d[\d_,]*(?:\.\d+)?(?:e-?\d+)?")
OWN_IMPORT = re.compile(
    r"^ *from ((?:experiments|benchmarks|measuring)[\w.]*) import ([\w, ]+)", re.MULTILINE
)
EXEMPT = {
    "192",
    "12",
    "2.5",
    "2,048",
    "0.4",
    "0",
}  # given numbers that stand in no code: this list may only shrink


@pytest.mark.parametrize("name", report.PAGES)
def test_a_page_is_what_the_lines_say(name):
    text = report.path_of(name).read_text(encoding="utf-8")
    assert text == report.page(TEMPLATES[name]), "run: python -m measuring report"


@pytest.mark.parametrize("name", report.PAGES)
def test_each_number_of_a_page_has_a_line_or_is_marked_as_given(name):
    assert report.unmarked(TEMPLATES[name]) == []


def test_digits_without_a_mark_are_found():
    text = "take 3 of `5` in [x7](a/8.md), {{given 9}} float32, {{lines | .2f}}\n```\n4\n```\nor 0.5"
    first, last = report.unmarked(text)
    assert first.startswith("take 3 of ") and last.endswith("or 0.5")


def test_given_numbers_are_those_of_the_code_or_of_the_settings_of_its_lines():
    """A number marked as given is a setting or an aim: the section's experiments and benchmarks, or what they import, have it."""
    missing = set()
    for section in re.split(r"(?m)^(?=#{1,2} )", "\n".join(TEMPLATES.values())):
        named = set(re.findall(r"`(?:python -m \w+ )?(\w+)", section.partition("\n")[0]))
        named |= set(re.findall(r"python -m \w+ (\w+)", section))
        known = set().union(*(settled(name) for name in named))
        given = [part for text in GIVEN.findall(section) for part in NUMBER.findall(text)]
        missing |= {part.rstrip(",") for part in given if not {number(part), number(part) / 100} & known}
    assert missing == EXEMPT


def settled(name):
    """The numbers of an experiment or benchmark: of its code, of what that imports beside the library, and of the settings of its lines."""
    paths = [ROOT / folder / f"{name}.py" for folder in ("experiments", "benchmarks")]
    paths = [path for path in paths if path.exists()]
    for path in paths:  # which grows
        for module, things in OWN_IMPORT.findall(path.read_text(encoding="utf-8")):
            inner = [f"{module}.{thing.strip()}" for thing in things.split(",")]
            found = [ROOT / f"{part.replace('.', '/')}.py" for part in (module, *inner)]
            paths += [new for new in found if new.exists() and new not in paths]
    text = " ".join(path.read_text(encoding="utf-8") for path in paths)
    settings = (value for record in lines(name).records for value in record["settings"].values())
    return {number(part) for part in NUMBER.findall(text)} | {
        v for v in settings if isinstance(v, int | float)
    }


def number(text):
    return float(text.replace(",", "").replace("_", ""))


def test_numbers_without_a_line_stand_in_one_place():
    before, after = TEMPLATES["measured"].split("## Measured earlier, no line kept\n")
    inside, _, behind = after.partition("\n## ")
    assert "{{earlier" not in before + behind and "{{earlier" in inside
    assert not re.search(r"\{\{(?!earlier|given)", inside)


def test_a_placeholder_without_lines_is_named():
    with pytest.raises(
        ValueError, match=r'\{\{lines\("defaults"\).where\(set="nowhere"\).*none of \d+ lines has'
    ):
        report.page('{{lines("defaults").where(set="nowhere").one("rmse") | .3f}}')


@pytest.mark.parametrize(
    ("value", "spec", "text"), [(-1.5, ".2f", "−1.50"), (2.2e-6, ".1e", "2.2e-6"), (1e8, ".0e", "1e8"), (-3e-10, ".0e", "−3e-10")]
)  # fmt: skip
def test_numbers_are_printed_with_true_minus_signs_and_short_exponents(value, spec, text):
    assert printed(value, spec) == text


@pytest.mark.parametrize("name", FILES)
def test_each_line_has_command_commit_machine_versions_and_date(name):
    for record in lines(name).records:
        assert record["machine"]["processor"]
        assert record["versions"]["jax"] and record["threads"]["cores_usable"] >= 1
        assert record["command"].startswith("python -m ") and re.match(
            r"20\d\d-\d\d-\d\d", record["finished"]
        )


@pytest.mark.parametrize("name", FILES)
def test_each_line_was_measured_at_a_commit_of_this_history(name):
    """And without changes beside it: the code that made a number can be looked at, and run again."""
    known = machine.history()
    if known is None:
        pytest.skip("the whole history is not at hand")
    known |= {commit[:7] for commit in known}
    assert {record["commit"] for record in lines(name).records} - known == set()


def test_every_file_of_results_is_in_the_table_of_sources():
    table = page_tables.sources()
    assert [name for name in FILES if f"| `{name}` |" not in table] == []


def test_the_words_of_the_page_are_true_too():
    """What it says without a number: signs, orders, met and missed aims."""
    runs = page_facts.stability()
    assert runs.matching(page_facts.is_finite).count == runs.count and runs.most("objective") < 0
    ours = [page_facts.penalty_value(p) for p in (0, 1, 10, 100, 1000)]
    theirs = [0.0047, 0.0045, 0.0035, 0.0026, 0.0031]
    order = lambda values: sorted(range(5), key=lambda i: values[i])
    assert order(ours) == [3, 2, 4, 1, 0] and order(theirs) == [3, 4, 2, 1, 0]  # 10 and 1000 change places
    assert lines("minimax_penalty").least("exact_penalty") > 1000
    steps = lines("feature_steps")
    for method, batch, aim in (("scgd", 32, 4), ("scgd", 128, 2.5), ("bsgd", 32, 4), ("minimax", 32, 3)):
        assert steps.where(method=method, batch_size=batch).least("speedup.torch") >= aim
    assert steps.where(method="minimax", batch_size=128).most("speedup.torch") < 3
    for s in ("bike", "kin40k"):
        best = [lines("attention").where(set=s, method=m, epochs=20).best("nlml") for m in ("bsgd", "scgd", "scgd-published", "minimax-published")]  # fmt: skip
        for field in ("nlml", "nlpd"):
            assert min(best, key=lambda found: found.one(field)) is best[0]
    assert all(r["results"]["epochs"][-1] >= 300 for r in lines("iterative").where(side="cold").records)
    for s in page_facts.SETS:  # docs/methods/likelihoods.md
        ours, theirs = (lines("laws").where(set=s, method=m, few=None) for m in ("auto", "catboost"))
        assert all(ours.one(field) < theirs.one(field) for field in ("nlpd", "crps"))
    random, by_day = (lines("demo").where(split=split).records for split in ("random", "by day"))
    for rows in (random, by_day):
        for field in ("nlpd", "crps"):
            assert min(rows, key=lambda r: r["results"][field])["settings"]["side"] == "stochgp"
    (ours, next_), (ours_by_day, next_by_day) = (
        sorted((r["results"] for r in rows), key=lambda found: found["rmse"])[:2] for rows in (random, by_day)
    )
    assert next_["rmse"] - ours["rmse"] < min(ours["rmse_stderr"], next_["rmse_stderr"])
    gap = next_by_day["rmse"] - ours_by_day["rmse"]
    assert gap > 2 * (ours_by_day["rmse_stderr"] ** 2 + next_by_day["rmse_stderr"] ** 2) ** 0.5
    forest, gp = (
        lines("molecules").where(set="mol:chembl:CHEMBL3242", method=m).mean("r2") for m in ("forest", "gp")
    )
    assert forest > gp


def test_other_pages_say_what_the_lines_say():
    """The README and pages on methods repeat numbers of measured.md."""
    seconds, demo = lines("kernel_defaults"), lines("demo").where(split="at departure")
    readme = [
        f"in {seconds.least('fit_seconds'):.0f} to {seconds.most('fit_seconds'):.0f} s",
        f"at most {100 * page_facts.default_excess():.1f} % above that of the exact posterior",
        f"{demo.where(side='stochgp').one('peak_bytes') / 1e9:.2f} GB at its peak",
        f"{demo.where(side='stochgp').one('n_train'):,d} flights to learn from",
        f"{demo.where(side='stochgp').one('n_test'):,d} flights of {demo.where(side='stochgp').one('test_days')} other days",
    ]
    for r in demo.records:
        found = r["results"]
        nlpd = "–" if found["nlpd"] is None else f"{found['nlpd']:.3f}"
        shares = f"{found['coverage_50']:.3f}, {found['coverage_95']:.3f}"
        readme.append(
            f"| {found['rmse']:.2f} | {nlpd} | {found['crps']:.2f} | {shares} | {found['seconds']:.0f} |"
        )
    four = page_facts.posterior_excess(set=("elevators", "bike", "protein", "keggdirected"))
    fifth = page_facts.posterior_excess(set="pol")
    kernel = [f"at most {100 * four:.1f} % above that of exact solves", f"{100 * fifth:.1f} % on a fifth"]
    scale = [f"{seconds.where(set=s).one('fit_seconds'):.0f} s on {s}" for s in ("kin40k", "protein")]
    files = [
        f"{lines('files').where(type='parquet', n_rows=n).one('seconds'):.0f} s for {said}"
        for n, said in ((10**6, "10⁶ rows"), (10**7, "10⁷"), (3 * 10**7, "3·10⁷"))
    ]
    pages = (
        ("README.md", readme),
        ("docs/methods/kernel_gp.md", kernel),
        ("docs/methods/scale.md", scale + files),
    )
    for page, said in pages:
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert [part for part in said if part not in text] == []


def test_the_report_loads_no_jax():
    code = (
        "import sys; from measuring import report; sys.exit('jax' in sys.modules or 'stochgp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
