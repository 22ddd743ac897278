"""Malformed and extreme inputs to fit and predict: a one-line error, or finite answers with a variance above 0.

STOCHGP_FUZZ=500 tries that many instead of 12, and prints how many of them reached predict.
"""

import datetime
import gzip
import os
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stochgp import FeatureGPRegressor, KernelGPRegressor, data, learners
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.tables.files import TooNarrowError
from stochgp.tables.targets import holds_classes

ASKED = os.environ.get("STOCHGP_FUZZ")
EXAMPLES = int(ASKED or "12")
LEAST_SHARE = 0.5  # of inputs that must reach predict
ROWS = (1, 2, 3, 12, 40)  # few shapes, as each is compiled once

ordinary = st.floats(-10, 10, width=32)
extreme = st.sampled_from([0.0, -0.0, 1e-300, -1e-30, 5e-324, 1e30, -1e100, 1e-12, 1.0, 1 + 1e-15, 3.4e38])
cell = st.one_of(ordinary, ordinary, extreme)
LEGAL = "nnnnncdbtzz"
FLAWS = ("cell", "mixed", "weights", "setting", "target")


def scattered(draw, values, n):
    return np.array(draw(st.lists(values, min_size=n, max_size=n)))


@st.composite
def columns(draw, n, kinds=LEGAL):
    """One column of n values: numbers of any size, constants, nearly constants, booleans, text, dates."""
    kind = draw(st.sampled_from(kinds))
    if kind == "n":
        return scattered(draw, cell, n)
    if kind == "c":
        return np.full(n, draw(cell))
    if kind == "d":
        return np.repeat(draw(ordinary), n) + 1e-9 * np.arange(n)
    if kind == "b":
        return np.arange(n) % 2 == 0
    if kind == "t":
        return np.array([["red", "green", "blue"][i % 3] for i in range(n)], dtype=object)
    return np.array([datetime.datetime(2020, 1, 1) + datetime.timedelta(days=i) for i in range(n)])


@st.composite
def problems(draw):
    """A frame or an array of numbers, targets, weights, and in one case of four a flaw that may be refused."""
    n, flaw = draw(st.sampled_from(ROWS)), draw(st.sampled_from((None, None, None, "some")))
    flaw = flaw and draw(st.sampled_from(FLAWS))
    framed = draw(st.booleans())
    kinds = LEGAL if framed else "nnnncd"
    frame = pd.DataFrame(
        {f"column {i}": draw(columns(n, kinds)) for i in range(draw(st.sampled_from((1, 3))))}
    )
    y = draw(columns(n, "nnncd"))
    if flaw == "cell":
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1.8e308]))
        frame["column 0"] = np.where(
            np.arange(n) == draw(st.integers(0, n - 1)), value, np.arange(n, dtype=float)
        )
    if flaw == "mixed":
        frame["column 0"] = np.array([None, "a", 1.5, 2] * n, dtype=object)[:n]
    if flaw == "target":
        y = draw(columns(n, "tzb"))
    X = frame if framed else frame.to_numpy()
    if draw(st.integers(0, 3)) == 0:
        X = X.iloc[[0] * n] if framed else X[[0] * n]  # all rows alike
    weights = (
        [np.zeros(n), -np.ones(n)] if flaw == "weights" else [None, None, np.ones(n), 1e8 + np.arange(n)]
    )
    return X, y, draw(st.sampled_from(weights)), flaw == "setting"


@st.composite
def feature_models(draw):
    """A feature GP, and what makes its settings impossible."""
    model = FeatureGPRegressor(
        features="rff",
        n_features=8,
        random_state=0,
        learner=draw(st.sampled_from([learners.SCGD, learners.SCGD, learners.BSGD, learners.Minimax]))(
            batch_size=draw(st.sampled_from([8, 8, 10**6])), epochs=3, learning_rate=0.01
        ),
        standardize=draw(st.sampled_from([True, True, True, True, False])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64"])),
    )
    return model, draw(st.sampled_from([{"dtype": "float16"}, {"n_features": 0}]))


@st.composite
def kernel_models(draw):
    """A kernel GP, and what makes its settings impossible."""
    kinds = [
        None,
        None,
        learners.BSGD(epochs=2),
        learners.FullBatch(epochs=2),
        learners.LeaveOneOut(epochs=2),
    ]
    learner = draw(st.sampled_from(kinds))
    model = KernelGPRegressor(
        kernel=draw(st.sampled_from(["rbf", "rbf", "matern32", "linear"])),
        learner=learner,
        solver=draw(st.sampled_from(["auto", "auto", "sdd", "local"])),
        likelihood=draw(st.sampled_from(["auto", *map(Gaussian, map(known_noise, (1e-12, 1e-6, 1.0)))])),
        standardize=draw(st.sampled_from([True, True, True, True, False])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64"])),
        random_state=0,
    )
    return model, draw(st.sampled_from([{"dtype": "float16"}, {"likelihood": Gaussian(known_noise(0.0))}]))


@pytest.mark.timeout(max(300, 10 * EXAMPLES))
@pytest.mark.parametrize("models", [feature_models(), kernel_models()], ids=["feature", "kernel"])
def test_a_clear_error_or_finite_answers(models, capsys):
    """At least half of the inputs reach predict: an always-raising `fit` would not pass."""
    tally: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(problems(), models, st.data())
    def attempt(problem, drawn, data):
        X, y, weight, impossible = problem
        model = drawn[0].set_params(**drawn[1]) if impossible else drawn[0]
        tally["tried"] += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence is not the matter here
            try:
                model.fit(X, y, weight)
            except (ValueError, TypeError) as error:
                assert_one_clear_line(error)
                return
            assert not impossible
            answered = assert_answers(model, X)
            assert_answers(model, data.draw(st.sampled_from([X[:1], X[::-1]])))
        tally["answered"] += answered

    attempt()
    share = tally["answered"] / tally["tried"]
    if ASKED:
        with capsys.disabled():
            print(f"\n{tally['answered']} of {tally['tried']} inputs, {share:.0%}, reached predict")
    assert share >= LEAST_SHARE, tally


CELLS = [
    "1",
    "2.5",
    "-3e5",
    "",
    "NA",
    " ",
    "x",
    "ü",
    '"1,5"',
    '"',
    ";",
    "\t",
    "0x1f",
    "inf",
    "1e400",
    "2020-01-01",
    "true",
    "\0",
    str(10**20),
]
HEADS = ["a", "b", "y", "größe", " a ", '"c, d"', "", "a", "1"]


@st.composite
def files(draw):
    """(Name, bytes) of a text file: odd cells, names, line ends and encodings, commas that end lines, missing cells, truncation."""
    n = draw(st.integers(1, 3))
    head = draw(st.lists(st.sampled_from(HEADS), min_size=n, max_size=n))
    rows = draw(st.lists(st.lists(st.sampled_from(CELLS), min_size=n, max_size=n), max_size=6))
    usual = draw(st.sampled_from(CELLS[:3]))
    rows += [[usual] * n] * draw(st.sampled_from((0, 0, 60)))
    separator, end = draw(st.sampled_from(",,,;\t")), draw(st.sampled_from(["\n", "\r\n", "\r", ",\n"]))
    text = end.join(separator.join(cells) for cells in [head, *rows]) + draw(st.sampled_from(["", end]))
    content = text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16"])))
    packed = draw(st.booleans())
    content = gzip.compress(content) if packed else content
    kept = draw(st.sampled_from((len(content), len(content), len(content) // 2)))
    return ("t.csv.gz" if packed else "t.csv"), content[:kept]


@settings(max_examples=5 * EXAMPLES if ASKED else 20, deadline=None, derandomize=True)
@given(files())
def test_a_text_file_is_a_table_or_one_clear_line(tmp_path_factory, file):
    """The same rows at once and in blocks; what its columns are as inputs, numbers and labels is said, or why they are none."""
    path = tmp_path_factory.mktemp("text") / file[0]
    path.write_bytes(file[1])
    table = or_one_clear_line(data.read_table, path)
    try:
        n_rows = or_one_clear_line(lambda: sum(block.table.num_rows for block in data.FileSource.of(path)))
    except TooNarrowError:
        n_rows = None
    if table is None:
        return
    assert n_rows in (table.num_rows, None)
    for name in table.column_names:
        or_one_clear_line(data.TableEncoder.fit, table.drop_columns([name]))
        for read in (data.target_column, data.label_column, holds_classes):
            found = or_one_clear_line(read, table, name)
            assert found is None or isinstance(found, bool) or len(found) == table.num_rows


def or_one_clear_line(call, *arguments):
    """What it returns; None where it refuses in one line."""
    try:
        return call(*arguments)
    except ValueError as error:
        if not isinstance(error, TooNarrowError):
            assert_one_clear_line(error)
            return None
        raise


def assert_answers(model, X):
    """Whether predict answers rather than refuse in one line."""
    try:
        mean, std = model.predict(X, return_std=True)
        noisy = model.predict(X, return_std=True, include_noise=True)[1]
    except (ValueError, TypeError) as error:
        assert_one_clear_line(error)
        return False
    assert np.isfinite(mean).all() and np.isfinite(std).all() and np.isfinite(noisy).all()
    assert (std >= 0).all() and (noisy > 0).all()
    if getattr(model, "kernel", None) in ("rbf", "matern32"):
        assert (std > 0).all()  # where the prior is: features and the linear kernel may be 0 at a row
    assert np.isfinite(getattr(model, "nlml_", 0.0))  # kernel GPs know it where the solver is direct
    return True


def assert_one_clear_line(error):
    text = str(error).strip()
    assert text
    assert len(text.splitlines()) == 1, text
