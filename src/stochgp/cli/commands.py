"""fit, predict, evaluate. Each loads what it needs when it runs, so that help is there at once."""

import os
from typing import Annotated, Any

from cyclopts import Parameter

import stochgp
from stochgp.cli.output import STDIO, check_picture, show, table_on_stdout, write_picture
from stochgp.names import load_code, lookup

_MODELS = {
    "auto": "GPRegressor",
    "kernel": "KernelGPRegressor",
    "feature": "FeatureGPRegressor",
    "sparse": "SparseGPRegressor",
}
_CLASSIFIERS = {"auto": "GPClassifier", "sparse": "SparseGPClassifier"}
_IN_ONE_PROCESS = ("auto", "kernel")
_TASKS = {task: task for task in ("auto", "numbers", "classes")}


def fit(
    source: Annotated[str, Parameter(name="DATA")],
    /,
    *,
    target: str | None = None,
    inputs: str | None = None,
    ignore: str | None = None,
    model: str = "auto",
    task: str = "auto",
    setting: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    test_fraction: float | None = None,
    bad_rows: str = "refuse",
    weight: str | None = None,
    split_by: str | None = None,
    new_rows: str = "auto",
    hyperparameters: str | None = None,
    checkpoint: str | None = None,
    out: str,
    seed: int = 0,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    distributed: Annotated[bool, Parameter(negative="")] = False,
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    code: Annotated[list[str] | None, Parameter(name="--with", negative="")] = None,
) -> None:
    """Learn from DATA and write the model. After Ctrl-C the best model so far is written within seconds, and the exit code is 130.

    Parameters
    ----------
    source
        A .csv, .tsv (also with .gz), .parquet, .feather, .npz or .npy file, a folder of such files, or -: CSV text from the standard input.
        Folders, and files that would take much of the memory, are read block by block: then a
        feature model learns from a uniform sample of the rows, its posterior is of all rows, and --test-fraction chooses rows by their values. With auto the rows are kept
        in memory where they fit, and a feature model is fitted alone where they do not.
    target
        The column to learn.
    inputs
        The columns to learn from, separated by commas: A,B. All but the target unless given.
    ignore
        Columns to leave out: A,B. At predict they may be there or not.
    model
        auto: kernel and feature models, weighed by rows that they have not seen; or one of them: kernel: any kernel, all rows kept; feature: a network or
        random features; sparse: any kernel, a few inducing points kept.
    task
        numbers, classes, or auto: with --model auto or sparse classes where the target is true and false, or text of at most 50 different values that
        are not mostly numbers or dates; numbers otherwise. --model kernel and feature learn no classes.
    setting
        name=value: a setting of the estimator, such as --set batch_size=32. May be repeated.
    test_fraction
        Set aside this fraction of a file's rows and print the metrics on them.
    bad_rows
        refuse, or skip: leave out rows with missing, infinite or huge values, and say how many. DATA is read block by block then. `evaluate` leaves such
        rows out too, and `predict` refuses them.
    weight
        The column of weights, which is no input: a row of weight 2 counts as two rows. DATA is read block by block then.
    split_by
        Columns whose values belong together, A,B: rows that agree in them are on the same side of --test-fraction and of every division that
        learning makes. They are inputs unless --ignore leaves them out. DATA is read block by block then.
    new_rows
        between the rows of DATA, after them in time, or auto: after, where a column of dates, or columns that only increase with the rows, say
        when rows were taken and neighbours in time resemble each other. After: what is learned is judged by whole blocks of time.
    hyperparameters
        A JSON file with the kernel to start from: {"kernel": "rbf", "lengthscale": 1.0, "variance": 1.0}. A kernel model also takes
        "noise_variance", and then keeps all of them unless a setting of learning is given.
    checkpoint
        A file kept up to date; the same command goes on from it after a kill.
    out
        Where to write the model.
    seed
        Of the division into training and test rows, and of the learning.
    quiet
        No progress on stderr.
    as_json
        One JSON object on stdout.
    distributed
        This is one of several processes that share the passes over the rows of a feature or sparse model: JAX finds the others where Slurm, Open MPI 4 or
        Kubernetes started them. All run the same command; process 0 alone writes and prints.
    coordinator
        HOST:PORT of process 0, where JAX cannot find the others; with --processes and --process.
    processes
        How many there are.
    process
        Which one this is, from 0.
    code
        A Python file, or the name of a module, in which `stochgp.register` names parts of your own: it is run first. May be given again.
    """
    load_code(code)
    from stochgp.cli.processes import joined
    from stochgp.cli.tables import Wanted, names_in
    from stochgp.compiled import require_jax
    from stochgp.storage.files import check_can_write

    read = [source, hyperparameters, *(code or ())]
    check_can_write(out, read)
    if checkpoint is not None:
        check_can_write(checkpoint, read)
        if os.path.realpath(checkpoint) == os.path.realpath(out):
            raise ValueError(f"--checkpoint and --out both name {out}: give two files")
    several = distributed or coordinator is not None
    if several and model in _IN_ONE_PROCESS:
        raise ValueError(
            f"--model {model}: several processes fit a feature or a sparse model, and other models are fitted in one"
        )
    with joined(distributed, coordinator, processes, process) as devices:
        require_jax()
        plain = {"random_state": seed, "verbose": 0 if quiet else 1, "new_rows": new_rows}
        plain |= {"devices": devices} if several else {}
        describe = lambda classify: _estimator(model, classify, setting or [], hyperparameters, plain)
        estimator = describe(lookup(task, _TASKS, "task") == "classes")
        wanted = Wanted(
            target,
            names_in(inputs),
            names_in(ignore),
            estimator.missing,
            holds_molecules=getattr(estimator, "smiles", None) is not None,
            targets="numbers" if task == "auto" and model not in _CLASSIFIERS else task,
            memory_limit=estimator.memory_limit,
        )
        options = {"bad_rows": bad_rows, "weight": weight, "split_by": names_in(split_by) or ()}
        rows = _rows(source, wanted, test_fraction, seed, options, devices)
        estimator = describe(True) if rows.are_classes else estimator
        _learn(estimator, rows, source, checkpoint)
        estimator.trained_on_ = {
            "data": source, "seed": seed, "test_fraction": test_fraction, "left_out": list(rows.left_out), "bad_rows": bad_rows
        }  # fmt: skip
        if devices.is_writer:
            _save(estimator, out)
        if estimator.plan_["ended"]["choice"] == "interrupted":
            raise KeyboardInterrupt(f"the model so far is in {out}")
        if devices.is_writer:
            show(_report(estimator, rows, source, out), as_json)


def _rows(
    source: str, wanted: Any, test_fraction: float | None, seed: int, options: dict[str, Any], devices: Any
) -> Any:
    """The `Divided` rows of DATA: read block by block where the options need it, or where a table might take too much of the memory."""
    from stochgp.cli.many_rows import divided_blocks, is_large
    from stochgp.cli.tables import read_divided

    takes_blocks = not wanted.holds_molecules
    asks = _asks_for_blocks(options, takes_them=takes_blocks)
    is_much = devices.agree(is_large(source, wanted.memory_limit))
    if asks or is_much and takes_blocks:
        return divided_blocks(source, wanted, test_fraction, seed, **options)
    return read_divided(source, wanted, test_fraction, seed)


def _asks_for_blocks(options: dict[str, Any], *, takes_them: bool) -> bool:
    """Whether options are given that rows read block by block have; a ValueError where these rows are not read so."""
    lookup(options["bad_rows"], dict.fromkeys(("refuse", "skip")), "--bad-rows")
    asks = options["bad_rows"] == "skip" or options["weight"] is not None or bool(options["split_by"])
    if asks and not takes_them:
        raise ValueError("--bad-rows skip, --weight and --split-by are not for molecules")
    return asks


def _learn(estimator: Any, rows: Any, source: str, checkpoint: str | None) -> None:
    """Fits to the training rows."""
    from stochgp.cli.tables import Labelled, naming

    data = rows.train if isinstance(rows.train, Labelled) else (rows.train, rows.target)
    with naming(source):
        estimator.fit(*data, checkpoint=checkpoint)
    estimator.target_name_ = rows.target


def _save(estimator: Any, out: str) -> None:
    """The model; the devices of several processes are no setting of it."""
    from stochgp.devices import Devices

    if isinstance(getattr(estimator, "devices", None), Devices):
        estimator.set_params(devices=None)
    estimator.save(out)


def _report(estimator: Any, rows: Any, source: str, out: str) -> dict[str, Any]:
    """What `fit` prints."""
    from stochgp.cli.many_rows import scores_by_blocks
    from stochgp.cli.reports import described, scores
    from stochgp.cli.tables import Labelled

    in_memory, aside = isinstance(rows.train, Labelled), f"{source}, rows set aside"
    try:
        report = described(estimator, out, len(rows.train.targets) if in_memory else estimator.n_rows_)
        if rows.test is not None and in_memory:
            report |= scores(estimator, rows.test, aside)
        elif rows.test is not None:
            report |= scores_by_blocks(estimator, rows.test, rows.target, aside)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"the model is in {out}") from interrupt
    return report


def _estimator(
    model: str,
    classify: bool,
    setting: list[str],
    hyperparameters: str | None,
    plain: dict[str, Any],
) -> Any:
    """The estimator that the options describe; `plain` are settings that they may override."""
    from stochgp.cli.hyperparameters import with_hyperparameters
    from stochgp.cli.settings import parse_settings

    own = lookup(model, _MODELS, "model")
    if classify and model not in _CLASSIFIERS:
        raise ValueError(f"--task classes: {model} models do not classify; use --model auto or sparse")
    kind = getattr(stochgp, _CLASSIFIERS[model] if classify else own) if isinstance(own, str) else own
    settings = parse_settings(setting, kind)
    if hyperparameters is not None:
        settings = with_hyperparameters(settings, hyperparameters, kind)
    return kind(**plain | settings)


def predict(
    model: Annotated[str, Parameter(name="MODEL")],
    source: Annotated[str, Parameter(name="DATA")],
    /,
    *,
    out: str,
    quantiles: str | None = None,
    code: Annotated[list[str] | None, Parameter(name="--with", negative="")] = None,
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
    code
        A Python file, or the name of a module, in which `stochgp.register` names parts of your own: it is run first. May be given again.
    """
    load_code(code)
    from stochgp import data
    from stochgp.cli.many_rows import blocks_of, is_large, placing
    from stochgp.cli.reports import parsed_quantiles, prediction_columns
    from stochgp.cli.tables import left_out, naming, without
    from stochgp.storage.files import check_can_write

    if out != STDIO:
        check_can_write(out, [model, source, *(code or ())])
    asked = parsed_quantiles(quantiles)
    estimator = stochgp.load(model)
    if is_large(source, estimator.memory_limit):
        parts = ((block.table, placing(block)) for block in blocks_of(source, estimator))
    else:
        table = data.read_table(source, estimator.memory_limit)
        parts = [(table, naming(source))]
    with table_on_stdout() if out == STDIO else data.table_writer(out) as write:
        for table, place in parts:
            with place:
                write(prediction_columns(estimator, without(table, left_out(estimator)), asked))


def evaluate(
    model: Annotated[str, Parameter(name="MODEL")],
    source: Annotated[str, Parameter(name="DATA")],
    /,
    *,
    target: str | None = None,
    report: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    code: Annotated[list[str] | None, Parameter(name="--with", negative="")] = None,
) -> None:
    """Print n, rmse, nlpd, crps and coverage_95 of a model on the rows of DATA, noise included; of a classifier n, accuracy and log_loss.

    Parameters
    ----------
    model
        A file that `stochgp fit` wrote.
    source
        A table with the model's columns and its target, or - (CSV text from the standard input). Rows without a target,
        and rows that `fit --bad-rows skip` would leave out, are left out, with a note of their number.
    target
        The target column, if it is called otherwise than at fit.
    report
        A picture (.png, .pdf or .svg) of how far the predictions can be trusted: PIT values, coverage, errors against standard deviations, and how they
        depend on the two most relevant inputs.
    as_json
        One JSON object on stdout.
    code
        A Python file, or the name of a module, in which `stochgp.register` names parts of your own: it is run first. May be given again.
    """
    load_code(code)
    from stochgp.cli.many_rows import blocks_with, is_large, scores_by_blocks, usable_rows
    from stochgp.cli.reports import picture, scores
    from stochgp.cli.tables import read_labelled

    if report is not None:
        check_picture(report, model, source)
    estimator = stochgp.load(model)
    name: Any = getattr(estimator, "target_name_", None) if target is None else target
    targets = "classes" if hasattr(estimator, "classes_") else "numbers"
    rule = (getattr(estimator, "trained_on_", None) or {}).get("bad_rows", "refuse")
    large = is_large(source, estimator.memory_limit)
    if report is not None and targets == "classes":
        raise ValueError("--report: there is a picture of numbers, not of classes")
    if report is not None and large:
        raise ValueError(f"--report: {source} is too large to be held in memory; give a sample of its rows")
    if large:
        blocks = blocks_with(source, name, bad_rows=rule)
        show(scores_by_blocks(estimator, blocks, name, source), as_json)
        return
    usable = lambda table: usable_rows(table, estimator, name, rule)
    rows = read_labelled(source, name, targets, estimator.memory_limit, usable)
    show(scores(estimator, rows, source), as_json)
    if report is not None:
        write_picture(picture(estimator, rows, source), report)
