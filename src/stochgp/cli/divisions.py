"""Which rows of a named set a model has not learned from."""

from typing import Any

from stochgp import data


def known_division(estimator: Any, source: str) -> dict[str, Any] | None:
    """`seed` and `test_fraction` with which `data.load(source)` gives the test rows that the model's fit left out; None = not known.

    Raises ValueError where the model was trained on another version of the same set: its training rows may be test rows here.
    """
    if not data.is_named(source):
        return {}
    record = getattr(estimator, "trained_on_", None) or {}
    trained_on = str(record.get("data"))
    if trained_on == source and not source.startswith("uci:"):
        names = [name for name in ("seed", "test_fraction") if record[name] is not None]
        return {name: record[name] for name in names}
    if trained_on != source and _stem(trained_on) == _stem(source):
        raise ValueError(
            f"the model was trained on {trained_on}, which shares rows with {source}: use {trained_on}, whose test rows it has not seen"
        )
    return {} if record or source.startswith("uci:") else None


def division_for_scores(
    estimator: Any, source: str, seed: int | None, test_fraction: float | None
) -> dict[str, Any]:
    """The division that is known, or else the given one.

    Raises ValueError where there is neither, or where both are and differ.
    """
    given = {
        name: value for name, value in (("seed", seed), ("test_fraction", test_fraction)) if value is not None
    }
    if given and (source.startswith("uci:") or not data.is_named(source)):
        raise ValueError(
            f"{source} is not divided at random: leave --{next(iter(given)).replace('_', '-')} out"
        )
    known = known_division(estimator, source)
    if known is None and seed is None:
        raise ValueError(
            f"{source} is divided at random and the model does not say how it was for its fit: give that --seed (and --test-fraction)"
        )
    if known and given and given != {name: known.get(name) for name in given}:
        raise ValueError(
            f"the model was trained on {source} with {known}: leave --seed and --test-fraction out"
        )
    return given | (known or {})


def _stem(name: str) -> str:
    """uci:pol of uci:pol:0; fun:levy of fun:levy:1000."""
    return ":".join(name.split(":")[:2])
