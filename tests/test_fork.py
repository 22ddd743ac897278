"""A process that was forked after JAX had started says so in one line, where JAX would wait for ever."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import os, sys, pickle, warnings
warnings.simplefilter("ignore")
import numpy as np, stochgp
X = np.linspace(0, 1, 20)[:, None]
def attempt(call):
    try:
        call()
        return "worked"
    except RuntimeError as error:
        return str(error)
def in_child(calls):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, repr([attempt(call) for call in calls]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        print(pipe.read())
    os.waitpid(pid, 0)
learner = stochgp.learners.FullBatch(epochs=1)
fit = lambda: stochgp.FeatureGPRegressor("linear", learner=learner, random_state=0).fit(X, X[:, 0])
in_child([fit])
model = fit()
model.save(sys.argv[1])
whole = pickle.dumps(model)
in_child([fit, lambda: model.predict(X), lambda: stochgp.load(sys.argv[1]), lambda: pickle.loads(whole)])
model.predict(X)
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="Windows does not fork")
@pytest.mark.long
def test_a_child_of_a_process_that_has_computed_refuses_and_one_of_another_works(tmp_path):
    arguments = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "model")]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=True)
    before, after = map(eval, found.stdout.splitlines())
    assert before == ["worked"]
    assert len(after) == 4 and all(
        "forked after JAX had started" in said and "\n" not in said for said in after
    )
