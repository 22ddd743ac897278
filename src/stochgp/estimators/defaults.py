"""What the names of learners stand for: the one place of the estimators' default settings."""

import dataclasses
from typing import Any

from stochgp.learners import BSGD, SCGD, AbstractLearner, FullBatch, Minimax
from stochgp.names import lookup

FEATURE_LEARNERS: dict[str, AbstractLearner] = {
    "scgd": SCGD(),
    "minimax": Minimax(),
    "bsgd": BSGD(),
    "full-batch": FullBatch(),
}


def feature_learner(learner: Any, **options: Any) -> AbstractLearner:
    """The learner of that name, or the learner given, with the options (batch_size, epochs, learning_rate) that are not None.

    Raises ValueError for an unknown name, with the nearest one, for an option that the learner given sets too, and for a batch size
    of a learner that uses all rows; TypeError for something else than a name or a learner.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(learner, str):
        found = lookup(learner, FEATURE_LEARNERS, "learner")
        refuse_batch_size(found, learner, options)
    elif isinstance(learner, AbstractLearner):
        found = learner
        refuse_twice(found, options)
    else:
        raise TypeError(
            f"learner must be one of {', '.join(map(repr, FEATURE_LEARNERS))} or a learner of stochgp.learners, not {learner!r}"
        )
    return dataclasses.replace(found, **options) if options else found


def refuse_batch_size(found: Any, name: str, options: dict[str, Any]) -> None:
    """ValueError for a batch size of a learner, asked for by name, that uses all rows."""
    if "batch_size" in options and found.batch_size is None:
        raise ValueError(
            f"batch_size is {options['batch_size']!r}, but the learner {name!r} uses all rows: leave it None"
        )


def refuse_twice(learner: Any, options: dict[str, Any]) -> None:
    """ValueError for an option that the learner given sets too."""
    for name in options:
        if getattr(learner, name) is not None:
            raise ValueError(
                f"{name} is given twice, to the estimator and to its learner: leave one of them None"
            )
