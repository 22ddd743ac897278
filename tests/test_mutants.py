"""The mutations of `make mutants` can be applied to the source as it is."""

import pytest

from tests import mutants


def test_every_room_and_every_learner_has_a_mutation():
    source = mutants.ROOT / "src" / "stochgp"
    mutated = {mutation.file for mutation in mutants.MUTATIONS}
    rooms = {folder.name for folder in source.iterdir() if (folder / "__init__.py").exists()}
    assert rooms - {file.partition("/")[0] for file in mutated} == set()
    bases = ("(AbstractLearner)", "(AbstractBatchLearner)", "(AbstractGrowing)", "(AbstractConditionals)")
    learners = {
        f"learners/{path.name}"
        for path in (source / "learners").glob("*.py")
        if any(base in path.read_text(encoding="utf-8") for base in bases)
    }
    assert len(learners) > 10 and learners - mutated == set()


def test_tests_that_do_not_end_notice_nothing(monkeypatch):
    monkeypatch.setattr(mutants, "SECONDS", 0.01)
    assert mutants.outcome_of(mutants.MUTATIONS[0]) == "not tried: more than 0 s"


@pytest.mark.parametrize("mutation", mutants.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_text_once_and_its_tests_are_there(mutation):
    assert (mutants.ROOT / "src" / "stochgp" / mutation.file).read_text(encoding="utf-8").count(
        mutation.text
    ) == 1
    assert mutation.replacement != mutation.text
    for tests in mutation.tests.split():
        file, _, name = tests.partition("::")
        assert f"def {name.partition('[')[0]}" in (mutants.ROOT / "tests" / file).read_text(encoding="utf-8")
