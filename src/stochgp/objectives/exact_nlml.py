"""The exact negative log marginal likelihood and its gradient at one θ."""

from typing import Any, NamedTuple


class ExactNLML(NamedTuple):
    """The exact NLML at one θ."""

    nlml: float  # per datum
    gradient: Any  # of the model's shape, by what trains; None elsewhere
    jitter: float  # added to the diagonal of what was factorised; 0 = none
