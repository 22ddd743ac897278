"""`python -m experiments.worker NAME CORE`: reads cells from stdin, a JSON line each, and answers with a JSON line each."""

import gc
import importlib
import json
import os
import sys
import traceback

from measuring import machine


def main(name: str, core: int) -> None:
    if core >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})  # before JAX starts its threads
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to stderr
    experiment = importlib.import_module(f"experiments.{name}")
    where = machine.describe()
    for line in sys.stdin:
        try:
            answer = {"results": experiment.run(json.loads(line)), "where": where}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer, default=float) + "\n")
        answers.flush()
        _forget()


def _forget() -> None:
    """Compiled programs of one cell are of no use to the next and would pile up."""
    import jax

    jax.clear_caches()
    gc.collect()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
