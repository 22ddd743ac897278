"""Inputs for other methods: dates as numbers, text as categories or one-hot columns.

A date becomes the days since 1970, the year, the day of the year, the weekday and the minute of the day.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

MISSING, MOST_LEVELS, MOST_COLUMNS = "missing", 254, 50
DAY = pd.Timedelta(days=1)


class Levels(NamedTuple):
    """Inputs for CatBoost: text stays text, and missing text is a category."""

    dates: Mapping[str, str]
    text: list[str]

    @classmethod
    def of(cls, X: pd.DataFrame, dates: Mapping[str, str]) -> "Levels":
        return cls(dates, text_columns(with_numbers_of_dates(X, dates)))

    def __call__(self, X: pd.DataFrame) -> pd.DataFrame:
        found = with_numbers_of_dates(X, self.dates)
        return _with(
            found,
            {name: found[name].astype(object).where(found[name].notna(), MISSING) for name in self.text},
        )


class Categories(NamedTuple):
    """Inputs for histogram boosting and LightGBM: the 254 most frequent texts as categories."""

    dates: Mapping[str, str]
    levels: dict[str, list[Any]]

    @classmethod
    def of(cls, X: pd.DataFrame, dates: Mapping[str, str]) -> "Categories":
        found = with_numbers_of_dates(X, dates)
        names = text_columns(found)
        return cls(dates, {name: list(found[name].value_counts().index[:MOST_LEVELS]) for name in names})

    def __call__(self, X: pd.DataFrame) -> pd.DataFrame:
        found = with_numbers_of_dates(X, self.dates)
        categories = {
            name: pd.Categorical(found[name].where(found[name].isin(levels)), categories=levels)
            for name, levels in self.levels.items()
        }
        found = _with(found, categories)
        return found.rename(columns={name: f"x{i}" for i, name in enumerate(found.columns)})


class Numbers(NamedTuple):
    """Inputs for ridge, NGBoost and forests: one-hot text, and imputed numbers."""

    dates: Mapping[str, str]
    columns: Any

    @classmethod
    def of(cls, X: pd.DataFrame, dates: Mapping[str, str]) -> "Numbers":
        from sklearn.compose import make_column_transformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder

        found = with_numbers_of_dates(X, dates)
        text = text_columns(found)
        one_hot = OneHotEncoder(
            max_categories=MOST_COLUMNS, handle_unknown="infrequent_if_exist", sparse_output=False
        )
        levels = make_pipeline(SimpleImputer(strategy="constant", fill_value=MISSING), one_hot)
        numbers = [name for name in found.columns if name not in text]
        columns = make_column_transformer(
            (levels, text), (SimpleImputer(strategy="median", add_indicator=True), numbers)
        )
        return cls(dates, columns.fit(_as_objects(found, text)))

    def __call__(self, X: pd.DataFrame) -> np.ndarray:
        found = with_numbers_of_dates(X, self.dates)
        return np.asarray(self.columns.transform(_as_objects(found, text_columns(found))), np.float64)


def with_numbers_of_dates(X: pd.DataFrame, dates: Mapping[str, str]) -> pd.DataFrame:
    """Return the table with five columns of numbers for each column of dates."""
    for name, layout in dates.items():
        at = pd.to_datetime(X[name].astype(str), format=layout)
        numbers = {
            f"{name} days": (at - pd.Timestamp(0)) / DAY,
            f"{name} year": at.dt.year,
            f"{name} day of year": at.dt.day_of_year,
            f"{name} weekday": at.dt.day_of_week,
            f"{name} minute": 60 * at.dt.hour + at.dt.minute,
        }
        X = _with(X.drop(columns=name), numbers)
    return X


def text_columns(X: pd.DataFrame) -> list[str]:
    return [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]


def _as_objects(X: pd.DataFrame, text: list[str]) -> pd.DataFrame:
    """Return text as objects with NaN for missing values, as the imputer requires."""
    return _with(X, {name: X[name].astype(object).where(X[name].notna(), np.nan) for name in text})


def _with(X: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a copy with new or replaced columns. Unlike `assign`, it accepts a column `self`."""
    found = X.copy()
    for name, column in columns.items():
        found[name] = column
    return found
