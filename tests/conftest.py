"""For all tests: shapes and dtypes in the annotations of the package are checked at every call, unless STOCHGP_TYPECHECK=0."""

import os

import jaxtyping

if os.environ.get("STOCHGP_TYPECHECK", "1") != "0":
    jaxtyping.install_import_hook("stochgp", "typecheck.checked")  # before the first import of the package

import jax
import pytest


@pytest.fixture
def key():
    return jax.random.key(0)
