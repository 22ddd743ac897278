"""The mutations of `make mutants` can be applied to the source as it is."""

import mutants
import pytest


@pytest.mark.parametrize("mutation", mutants.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_text_once_and_its_tests_are_there(mutation):
    assert (mutants.ROOT / "src" / "stochgp" / mutation.file).read_text(encoding="utf-8").count(
        mutation.text
    ) == 1
    assert mutation.replacement != mutation.text
    for tests in mutation.tests.split():
        file, _, name = tests.partition("::")
        assert f"def {name.partition('[')[0]}" in (mutants.ROOT / "tests" / file).read_text(encoding="utf-8")
