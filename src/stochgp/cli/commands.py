"""The commands `stochgp fit`, `predict` and `evaluate`.

Exit codes: 0 success, 2 bad input, 130 Ctrl-C, 1 other errors. Commands import slow packages when needed.
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
Json = Annotated[bool, Parameter(name="--json", negative="", group=FILES, help="Print one JSON object.")]
CODE = "A Python file or a module that registers your own classes (`stochgp.register`). May be repeated."
Code = Annotated[Texts, Parameter(name="--with", negative="", group=MODEL, help=CODE)]
Data = Annotated[str, Parameter(name="DATA")]
Model = Annotated[str, Parameter(name="MODEL")]

app = cyclopts.App(
    name="stochgp",
    help="Gaussian process regression and classification with mini-batches and a memory limit.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `main` handles it
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
    """Fit a model to DATA and save it. Ctrl-C saves the best model so far (exit code 130).

    Parameters
    ----------
    source
        A .csv, .tsv (also with .gz), .parquet or .feather file, a folder of such files, or - for CSV text
        from standard input. Folders and large files are read in blocks. For blocks, a hash of the values of
        a row decides whether the row is a test row. A feature model then learns from a random sample.
    target
        The target column.
    inputs
        The input columns, separated by commas: A,B. The default is all columns except the target.
    ignore
        Columns that are not inputs: A,B. The data for predict may lack these columns.
    model
        auto: a weighted average of a kernel GP, linear regression and trees. kernel: a GP that uses all
        rows. feature: a GP with a network or random features. sparse: a GP with inducing points.
    task
        numbers, classes or auto. With auto, the models auto and sparse classify boolean targets, and text
        targets with at most 50 different values unless most are numbers or dates. Others cannot classify.
    setting
        A setting of the estimator as name=value, such as --set learner=bsgd. May be repeated.
    test_fraction
        Hold out this fraction of the rows, and print scores on the held-out rows.
    weight
        The column of frequency weights, which is not an input. A row with weight 2 counts twice.
    split_by
        Columns of groups: A,B. Rows with equal values stay together in every split into training, held-out
        and test rows. The columns are also inputs unless --ignore names them.
    time_order
        interpolate: new rows lie between the rows of DATA. forecast: new rows are later, so the fit holds out
        blocks of time. auto chooses forecast if columns contain dates or increasing numbers, and errors of
        successive rows are correlated.
    checkpoint
        A file for intermediate states. After a crash, the same command continues from this file.
    out
        The file in which the model is saved.
    seed
        The random seed of the fit and of the choice of test rows.
    quiet
        Show no progress on stderr.
    """
    load_code(code)
    _check_outputs(out, checkpoint, [source, *(code or ())])
    if target is None:
        raise ValueError(f"{source}: use --target to set the target column")
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
    """Raise an error if an output is not writable, is an input, or is named twice."""
    from stochgp.storage.writing import check_can_write

    check_can_write(out, read)
    if checkpoint is not None:
        check_can_write(checkpoint, read)
        if os.path.realpath(checkpoint) == os.path.realpath(out):
            raise ValueError(f"--checkpoint and --out are both {out}: use two different files")


def _left_out(
    source: str, target: str, inputs: Sequence[str] | None, ignored: Sequence[str] | None, weight: str | None
) -> list[str]:
    """Return the columns that are neither inputs nor the target. Raise ValueError for bad options."""
    from stochgp.tables.files import column_names

    names = [name for name in column_names(source) if name != weight]
    if target not in names:
        raise ValueError(f"{source}: there is no column {target!r}; {did_you_mean(target, names)}")
    for option, given in (("--inputs", inputs), ("--ignore", ignored)):
        for name in given or ():
            if name == target:
                raise ValueError(f"{option} contains {name!r}, which is the target")
            if name not in names:
                raise ValueError(f"{option}: no column {name!r} in {source}; {did_you_mean(name, names)}")
            if name in (ignored or ()) and option == "--inputs":
                raise ValueError(f"--inputs and --ignore both contain {name!r}")
    kept = [name for name in inputs or names if name not in (ignored or ())]
    if not set(kept) - {target}:
        raise ValueError(f"{source}: no input columns remain besides the target {target!r}")
    left_out = [name for name in names if name not in kept and name != target]
    return left_out if weight is None else [*left_out, weight]


def _report(estimator: Any, train: Any, test: Any, source: str, out: str) -> dict[str, Any]:
    """Return the summary that `fit` prints."""
    from stochgp.cli import rows

    in_blocks, aside = isinstance(train[1], str), f"{source}, test rows"
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
    """Return the estimator for these options. `plain` contains default settings."""
    own = lookup(model, _MODELS, "model")
    if classify and model not in _CLASSIFIERS:
        raise ValueError(f"--task classes: --model {model} cannot classify; use --model auto or sparse")
    kind = getattr(stochgp, _CLASSIFIERS[model] if classify else own) if isinstance(own, str) else own
    return kind(**plain | parse_settings(setting, kind))


def parse_settings(pairs: Sequence[str], estimator: type) -> dict[str, Any]:
    """Parse texts name=value into a dictionary. Values are None, booleans, numbers or text."""
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
            raise ValueError(f"--set {name} is repeated")
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
        raise ValueError(f"{text!r}: expected column names separated by commas, such as A,B")
    return names


@app.command
def predict(
    model: Model, source: Data, /, *, out: str, quantiles: str | None = None, code: Code = None
) -> None:
    """Predict every row of DATA: mean, std, lower_95 and upper_95, noise included.

    A classifier writes the most probable class, and the column probability_C for each class C.

    Parameters
    ----------
    model
        A file from `stochgp fit`.
    source
        A table with the input columns of the model, in any order, or - for CSV text from standard input.
    out
        A .csv, .tsv, .parquet or .feather file, or - for CSV text on standard output.
    quantiles
        Quantiles to add: 0.1,0.9 adds the columns quantile_0.1 and quantile_0.9.
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
    """Print scores of a model on DATA: n, rmse, nlpd, crps and coverage_95.

    nlpd, crps and coverage_95 include the noise. For a classifier: n, accuracy and log_loss.

    Parameters
    ----------
    model
        A file from `stochgp fit`.
    source
        A table with the inputs and the target of the model, or - for CSV text from standard input. Rows
        without a target are ignored; a warning gives the number of these rows.
    target
        The target column, if its name differs from the name of the target at fit.
    report
        A .png, .pdf or .svg file for four kinds of plots: PIT values, coverage, errors against standard
        deviations, and the dependence of predictions on the two most important inputs.
    """
    load_code(code)
    from stochgp.cli import rows
    from stochgp.storage.writing import check_can_write, replacing

    if report is not None:
        check_can_write(report, (model, source))
        lookup(Path(report).suffix, dict.fromkeys((".png", ".pdf", ".svg")), "type of plot")
    estimator = stochgp.load(model)
    name = getattr(estimator, "target_name_", None) if target is None else target
    if name is None:
        raise ValueError("the model does not store the name of its target: set --target")
    if report is not None and hasattr(estimator, "classes_"):
        raise ValueError("--report is not available for classifiers")
    if report is not None and rows.is_large(source, estimator.memory_limit):
        raise ValueError(f"--report: {source} is too large for the memory; use a sample of its rows")
    parts = rows.labelled_parts(estimator, source, name)
    parts = parts if report is None else list(parts)
    rows.show(rows.mean_scores(estimator, parts, source), as_json)
    if report is not None:
        ((found, _),) = parts
        with replacing(report) as partial:
            rows.picture(estimator, *found).savefig(partial, format=Path(report).suffix[1:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. None: use the arguments of the process."""
    if arguments is not None:
        return _run(arguments)
    code = _run(sys.argv[1:])
    if code == INTERRUPTED:  # do not wait for running computations
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(arguments: Sequence[str]) -> int:
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # stdout may be None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters outside its encoding
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _complain(f"note: {message}", 0)  # pyrefly: ignore[bad-assignment]
        try:
            app(
                _with_stdin(arguments, stack),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards the buffer
            return _complain("standard output was closed before the end of the output", 1)
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
    """Replace - with a temporary file of standard input, except after --out."""
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
