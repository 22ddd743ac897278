"""`stochgp COMMAND …`: exit code 0 for success, 2 for bad input (one line on stderr), 130 for Ctrl-C, 1 for anything else.

What is imported here is light, and so are the commands until they run: `stochgp --help` loads neither JAX nor scikit-learn.
"""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

import cyclopts

from stochgp.cli.commands import evaluate, fit, predict
from stochgp.cli.output import with_stdin
from stochgp.cli.processes import LostProcessError, end_at_once
from stochgp.version import __version__

INTERRUPTED = 130

app = cyclopts.App(
    name="stochgp",
    help="Gaussian processes trained and solved with mini-batches, in memory that you set.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `main` answers it
)
for command in (fit, predict, evaluate):
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the arguments are those of the process unless given. Returns the exit code."""
    if arguments is not None:
        return _run(arguments)
    code = _run(sys.argv[1:])
    if code == INTERRUPTED or (code and end_at_once()):  # what still computes would keep the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(arguments: Sequence[str]) -> int:
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # None where it was closed
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of characters that its encoding lacks
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        try:
            app(
                with_stdin(arguments, stack),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still in the buffer
            return _complain("the standard output was closed before all was written", 1)
        except OSError as error:
            return _complain(f"{error.filename}: {error.strerror}" if error.filename else error, 2)
        except (cyclopts.CycloptsError, ValueError, TypeError) as error:
            return _complain(error, 2)
        except LostProcessError as error:
            return _complain(error, 1)
        except KeyboardInterrupt as interrupt:
            return _complain(f"interrupted; {interrupt}" if interrupt.args else "interrupted", INTERRUPTED)
        except Exception as error:
            return _complain(f"{type(error).__name__}: {error}", 1)
    return 0


def _complain(error: object, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    sys.stderr.write(f"stochgp: {text}\n")
    return code


def _show_warning(message: object, *_: object, **__: object) -> None:
    sys.stderr.write(f"stochgp: note: {' '.join(str(message).split())}\n")
