"""How earlier flights went, as it was known at the minute a flight left the gate."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from examples.demo.rolling_features import recent_means, recent_sums

DAY = 1440  # minutes


@dataclass(frozen=True, eq=False)
class Movements:
    """Departures in minutes since the year began, New York time: when each left the gate and arrived, and the minutes it lost between.

    Minutes lost are arrival delay − departure delay, NaN where the flight has not arrived; `arrived` is then not read. `flight` is the number with its
    carrier and route, `route` has the carrier, `region` is a part of the continent.
    """

    left: Int64[np.ndarray, " N"]
    arrived: Int64[np.ndarray, " N"]
    lost: Float64[np.ndarray, " N"]
    origin: Shaped[np.ndarray, " N"]
    destination: Shaped[np.ndarray, " N"]
    region: Shaped[np.ndarray, " N"]
    route: Shaped[np.ndarray, " N"]
    flight: Shaped[np.ndarray, " N"]


def of_earlier_flights(flights: Movements) -> dict[str, Float64[np.ndarray, " N"]]:
    """Inputs of each flight by those that had arrived, or left, before the minute it left.

    usual_route, usual_flight: minutes that flights of its route (14 days) and of its number (30 days) lost. now_all (3 hours), now_origin (2 hours),
    now_region (6 hours), now_destination (24 hours): minutes lost beyond what was usual of them. left_before: flights of its origin that left in the 30
    minutes before. Means of few flights are drawn to those of more: the number's to the route's, these to the destination's and all flights'.
    """
    everywhere = np.zeros(len(flights.left), np.int64)
    fortnight = 14 * DAY
    every = _means(flights, flights.lost, everywhere, fortnight, 0.0, 50)
    there = _means(flights, flights.lost, flights.destination, fortnight, every, 3)
    route = _means(flights, flights.lost, flights.route, fortnight, there, 3)
    number = _means(flights, flights.lost, flights.flight, 30 * DAY, route, 3)
    beyond = flights.lost - number
    now = _means(flights, beyond, everywhere, 180, 0.0, 5)
    left = flights.origin, flights.left
    return {
        "usual_route": route,
        "usual_flight": number,
        "now_all": now,
        "now_origin": _means(flights, beyond, flights.origin, 120, now, 3),
        "now_region": _means(flights, beyond, flights.region, 360, now, 2),
        "now_destination": _means(flights, beyond, flights.destination, DAY, now, 2),
        "left_before": recent_sums(*left, np.ones(len(everywhere)), *left, 30)[1],
    }


def _means(
    flights: Movements,
    value: Float64[np.ndarray, " N"],
    label: Shaped[np.ndarray, " N"],
    window: int,
    prior: Float64[np.ndarray, " N"] | float,
    weight: float,
) -> Float64[np.ndarray, " N"]:
    """Of the flights of the same label that arrived in the `window` minutes before each left."""
    there = ~np.isnan(flights.lost)
    events = label[there], flights.arrived[there], value[there]
    return recent_means(recent_sums(*events, label, flights.left, window), prior, weight)
