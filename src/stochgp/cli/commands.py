"""`stochgp fit`, `predict` and `evaluate`. Exit codes: 0 success, 2 bad input (one line on stderr), 130 Ctrl-C, 1 anything else.

Imports here are light, and each command loads what it needs: `stochgp --help` loads neither JAX nor scikit-learn.
"""

import contextlib
import functools
import inspect
import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

import stochgp
from stochgp.names import did_you_mean, load_code, lookup
from stochgp.version import __version__

INTERRUPTED = 130
STDIO = "-"
_MODELS = {
    "auto": "GPRegressor",
    "kernel": "KernelGPRegressor",
    "feature": "FeatureGPRegressor",
    "sparse": "SparseGPRegressor",
}
_CLASSIFIERS = {"auto": "GPClassifier", "sparse": "SparseGPClassifier"}

COLUMNS, MODEL, CHECKS, FILES = map(cyclopts.Group.create_ordered, ("Columns", "Model", "Checks", "Output"))
Text = str | None
Texts = list[str] | None
Quiet = Annotated[bool, Parameter(negative="", group=FILES)]
Json = Annotated[bool, Parameter(name="--json", negative="", group=FILES, help="One JSON object on stdout.")]
CODE = "A Python file or a module in which `stochgp.register` names parts of your own, run first. May be repeated."
Code = Annotated[Texts, Parameter(name="--with", negative="", group=MODEL, help=CODE)]
Data = Annotated[str, Parameter(name="DATA")]
Model = Annotated[str, Parameter(name="MODEL")]

app = cyclopts.App(
    name="stochgp",
    help="Gaussian processes trained and solved with mini-batches, in memory that you set.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `main` answers it
)


@app.command
def fit(
    source: Data,
    /,
    *,
    target: Annotated[Text, Parameter(group=COLUMNS)] = None,
    inputs: Annotated[Text, Parameter(group=COLUMNS)] = None,
    ignore: Annotated[Text, Parameter(group=COLUMNS)] = None,
    weight: Annotated[Text, Parameter(group=COLUMNS)] = None,
    model: Annotated[str, Parameter(group=MODEL)] = "auto",
    task: Annotated[str, Parameter(group=MODEL)] = "auto",
    setting: Annotated[Texts, Parameter(name="--set", negative="", group=MODEL)] = None,
    time_order: Annotated[str, Parameter(group=MODEL)] = "auto",
    seed: Annotated[int, Parameter(group=MODEL)] = 0,
    test_fraction: Annotated[float | None, Parameter(group=CHECKS)] = None,
    split_by: Annotated[Text, Parameter(group=CHECKS)] = None,
    out: Annotated[str, Parameter(group=FILES)],
    checkpoint: Annotated[Text, Parameter(group=FILES)] = None,
    quiet: Quiet = False,
    as_json: Json = False,
    code: Code = None,
) -> None:
    """Learn from DATA and write the model. After Ctrl-C the best model so far is written within seconds, and the exit code is 130.

    Parameters
    ----------
    source
        A .csv, .tsv (also with .gz), .parquet or .feather file, a folder of such files, or -: CSV text from the standard input.
        Folders, and files that would take much of the memory, are read block by block: --test-fraction then chooses rows by their values, and
        a feature model learns from a uniform sample of the rows.
    target
        The column to learn.
    inputs
        The columns to learn from, separated by commas: A,B. All but the target unless given.
    ignore
        Columns to leave out: A,B. At predict they may be there or not.
    model
        auto: a kernel GP, linear regression and trees, weighted according to held-out rows; kernel: any kernel, all rows kept; feature: a network or random features;
        sparse: any kernel, a few inducing points kept.
    task
        numbers, classes, or auto: with --model auto or sparse classes if the target is true and false, or text of at most 50 different values
        that are not mostly numbers or dates. --model kernel and feature learn no classes.
    setting
        name=value: a setting of the estimator, such as --set learner=bsgd. May be repeated.
    test_fraction
        Set aside this fraction of a file's rows and print the metrics on them.
    weight
        The column of weights, which is no input: a row of weight 2 counts as two rows. DATA is read block by block then.
    split_by
        Columns A,B: rows that agree in them are on the same side of --test-fraction and of every division in learning. They are inputs
        unless --ignore leaves them out. DATA is read block by block then.
    time_order
        Where new rows are: interpolate, between the rows of DATA; forecast, after them in time, with whole blocks of time held out; auto: forecast, if a
        column of dates, or columns that only increase, give the time, and errors of neighbours in time resemble each other.
    checkpoint
        A file kept up to date; the same command goes on from it after a kill.
    out
        Where to write the model.
    seed
        Of the division into training and test rows, and of the learning.
    quiet
        No progress on stderr.
    """
    load_code(code)
    _check_outputs(out, checkpoint, [source, *(code or ())])
    if target is None:
        raise ValueError(f"{source}: name the column to learn with --target")
    left_out = _left_out(source, target, _names_in(inputs), _names_in(ignore), weight)
    from stochgp.cli import rows  # loads JAX
    from stochgp.compiled import require_jax

    require_jax()
    plain = {"random_state": seed, "verbose": 0 if quiet else 1, "time_order": time_order}
    make = functools.partial(_estimator, model, setting or [], plain)
    estimator = make(lookup(task, dict.fromkeys(("auto", "numbers", "classes")), "task") == "classes")
    kind = "numbers" if task == "auto" and model not in _CLASSIFIERS else task
    options = {"weight": weight, "split_by": _names_in(split_by) or ()}
    train, test, classify = rows.divided(
        source, estimator, target, left_out, kind, test_fraction, seed, **options
    )
    estimator = make(True) if classify else estimator
    with rows.naming(source):
        estimator.fit(*train, checkpoint=checkpoint)
    estimator.target_name_ = target
    estimator.trained_on_ = {
        "data": source, "seed": seed, "test_fraction": test_fraction, "left_out": left_out
    }  # fmt: skip
    estimator.save(out)
    if estimator.plan_["ended"]["choice"] == "interrupted":
        raise KeyboardInterrupt(f"the model so far is in {out}")
    rows.show(_report(estimator, train, test, source, out), as_json)


def _check_outputs(out: str, checkpoint: str | None, read: Sequence[str | None]) -> None:
    """Raise what writing these files would raise, and ValueError if they are inputs or the same file."""
    from stochgp.storage.trees import check_can_write

    check_can_write(out, read)
    if checkpoint is not None:
        check_can_write(checkpoint, read)
        if os.path.realpath(checkpoint) == os.path.realpath(out):
            raise ValueError(f"--checkpoint and --out both name {out}: give two files")


def _left_out(
    source: str, target: str, inputs: Sequence[str] | None, ignored: Sequence[str] | None, weight: str | None
) -> list[str]:
    """Return the columns that are no inputs: those that --inputs and --ignore leave out, and the weights.

    Raises ValueError for an unknown name, the target, a column in both options, and if no input is left.
    """
    from stochgp.tables.files import column_names

    names = [name for name in column_names(source) if name != weight]
    if target not in names:
        raise ValueError(f"{source}: there is no column {target!r}; {did_you_mean(target, names)}")
    for option, given in (("--inputs", inputs), ("--ignore", ignored)):
        for name in given or ():
            if name == target:
                raise ValueError(f"{option} names {name!r}, which is the target")
            if name not in names:
                raise ValueError(f"{option}: no column {name!r} in {source}; {did_you_mean(name, names)}")
            if name in (ignored or ()) and option == "--inputs":
                raise ValueError(f"{name!r} is named by --inputs and by --ignore")
    kept = [name for name in inputs or names if name not in (ignored or ())]
    if not set(kept) - {target}:
        raise ValueError(f"{source}: --ignore leaves no columns beside the target {target!r}")
    left_out = [name for name in names if name not in kept and name != target]
    return left_out if weight is None else [*left_out, weight]


def _report(estimator: Any, train: Any, test: Any, source: str, out: str) -> dict[str, Any]:
    """Return the summary that `fit` prints."""
    from stochgp.cli import rows

    in_blocks, aside = isinstance(train[1], str), f"{source}, rows set aside"
    try:
        report = rows.described(estimator, out, estimator.n_rows_ if in_blocks else len(train[1]))
        if test is None:
            return report
        if not in_blocks:
            with rows.naming(aside):
                return report | rows.scores(estimator, *test)
        parts = rows.labelled_parts(estimator, str(test.path), train[1], test)
        return report | rows.mean_scores(estimator, parts, aside)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"the model is in {out}") from interrupt


def _estimator(model: str, setting: list[str], plain: dict[str, Any], classify: bool) -> Any:
    """Return the estimator that the options describe; `plain` are settings that they may override."""
    own = lookup(model, _MODELS, "model")
    if classify and model not in _CLASSIFIERS:
        raise ValueError(f"--task classes: {model} models do not classify; use --model auto or sparse")
    kind = getattr(stochgp, _CLASSIFIERS[model] if classify else own) if isinstance(own, str) else own
    return kind(**plain | parse_settings(setting, kind))


def parse_settings(pairs: Sequence[str], estimator: type) -> dict[str, Any]:
    """{name: value} of texts name=value: none, true and false, numbers and texts, whose types `fit` checks.

    Raises ValueError for an unknown name, and for a name given twice.
    """
    parameters = list(inspect.signature(estimator.__init__).parameters)[1:]
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: expected name=value")
        if name not in parameters:
            near = did_you_mean(name, parameters)
            raise ValueError(f"--set {pair}: {estimator.__name__} has no setting {name!r}; {near}")
        if name in found:
            raise ValueError(f"--set {name} is given twice")
        found[name] = {"none": None, "true": True, "false": False}.get(text.lower(), text)
        for number in (float, int):
            with contextlib.suppress(ValueError):
                found[name] = number(text)
    return found


def _names_in(text: str | None) -> tuple[str, ...] | None:
    """Return the names in "A,B"; None stays None. Raises ValueError for an empty name."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r}: expected column names with commas between them, such as A,B")
    return names


@app.command
def predict(
    model: Model, source: Data, /, *, out: str, quantiles: str | None = None, code: Code = None
) -> None:
    """Write the columns mean, std, lower_95, upper_95 for every row of DATA; they are of observations, noise included.

    Of a classifier: class, the most probable one, and for each class C the column probability_C.

    Parameters
    ----------
    model
        A file that `stochgp fit` wrote.
    source
        A table with the columns that the model was given, in any order, or - (CSV text from the standard input).
    out
        A .csv, .tsv, .parquet or .feather file, or -: CSV text on the standard output.
    quantiles
        Further columns: 0.1,0.9 adds quantile_0.1 and quantile_0.9.
    """
    load_code(code)
    from stochgp.cli import rows
    from stochgp.tables.files import table_writer

    if out != STDIO:
        _check_outputs(out, None, [model, source, *(code or ())])
    levels = rows.parsed_quantiles(quantiles)
    estimator = stochgp.load(model)
    parts = rows.parts_of(source, estimator)
    with table_writer(out) as write:
        for block in parts:
            with block.placing():
                write(rows.prediction_columns(estimator, block.table, levels))


@app.command
def evaluate(
    model: Model,
    source: Data,
    /,
    *,
    target: str | None = None,
    report: str | None = None,
    as_json: Json = False,
    code: Code = None,
) -> None:
    """Print n, rmse, nlpd, crps and coverage_95 of a model on the rows of DATA, noise included; of a classifier n, accuracy and log_loss.

    Parameters
    ----------
    model
        A file that `stochgp fit` wrote.
    source
        A table with the model's columns and its target, or - (CSV text from the standard input). Rows without a target are left out, with a note of
        their number.
    target
        The target column, if it is called otherwise than at fit.
    report
        A picture (.png, .pdf or .svg) of how far the predictions can be trusted: PIT values, coverage, errors against standard deviations, and how they
        depend on the two most relevant inputs.
    """
    load_code(code)
    from stochgp.cli import rows
    from stochgp.storage.trees import check_can_write, replacing

    if report is not None:
        check_can_write(report, (model, source))
        lookup(Path(report).suffix, dict.fromkeys((".png", ".pdf", ".svg")), "type of picture")
    estimator = stochgp.load(model)
    name = getattr(estimator, "target_name_", None) if target is None else target
    if name is None:
        raise ValueError("the model does not know its target's name: give --target")
    if report is not None and hasattr(estimator, "classes_"):
        raise ValueError("--report: there is a picture of numbers, not of classes")
    if report is not None and rows.is_large(source, estimator.memory_limit):
        raise ValueError(f"--report: {source} is too large to be held in memory; give a sample of its rows")
    parts = rows.labelled_parts(estimator, source, name)
    parts = parts if report is None else list(parts)
    rows.show(rows.mean_scores(estimator, parts, source), as_json)
    if report is not None:
        ((found, _),) = parts
        with replacing(report) as partial:
            rows.picture(estimator, *found).savefig(partial, format=Path(report).suffix[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the arguments are those of the process unless given. Returns the exit code."""
    if arguments is not None:
        return _run(arguments)
    code = _run(sys.argv[1:])
    if code == INTERRUPTED:  # running computations would keep the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(arguments: Sequence[str]) -> int:
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # None if it was closed
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of characters that its encoding lacks
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _complain(f"note: {message}", 0)
        try:
            app(
                _with_stdin(arguments, stack),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the rest of the buffer
            return _complain("the standard output was closed before all was written", 1)
        except OSError as error:
            return _complain(f"{error.filename}: {error.strerror}" if error.filename else error, 2)
        except (cyclopts.CycloptsError, ValueError, TypeError) as error:
            return _complain(error, 2)
        except KeyboardInterrupt as interrupt:
            return _complain(f"interrupted; {interrupt}" if interrupt.args else "interrupted", INTERRUPTED)
        except Exception as error:
            return _complain(f"{type(error).__name__}: {error}", 1)
    return 0


def _complain(error: object, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    sys.stderr.write(f"stochgp: {text}\n")
    return code


def _with_stdin(arguments: Sequence[str], stack: contextlib.ExitStack) -> list[str]:
    """Replace - by a file of the standard input, until the stack ends; that of --out means the standard output."""
    found: list[str] = []
    for argument in arguments:
        if argument != STDIO:
            found.append(argument)
        elif found[-1:] == ["--out"]:
            found[-1] = f"--out={STDIO}"
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stochgp-")))
            with (folder / "stdin.csv").open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            found.append(str(folder / "stdin.csv"))
    return found
