"""Degrees of freedom of Student-t noise: those that a user keeps, and what `plan_` says of them."""

from typing import Any

from stochgp.choosing import choice
from stochgp.likelihoods import StudentT
from stochgp.parameters import Frozen

LEAST_DF = 2.2  # below it the bound of ν governs standard deviations
AT_BOUND = "; at its bound: standard deviations are governed by it, quantiles are not"


def known_df(likelihood: Any) -> float | None:
    """The degrees of freedom that are not to be learned. Raises ValueError for those without a standard deviation."""
    if not isinstance(likelihood, StudentT) or not isinstance(likelihood.df, Frozen):
        return None
    df = float(likelihood.df)
    if df <= 2:
        raise ValueError(f"df is {df:g}; observations have a standard deviation only above 2")
    return df


def df_told(df: float, how: str) -> dict[str, Any]:
    """What `plan_` says of them."""
    bound = AT_BOUND if df < LEAST_DF else ""
    return {"df": choice(df, f"degrees of freedom of the Student-t, {how}{bound}")}
