"""Delays of earlier flights, as known when a flight left the gate."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from examples.demo.rolling_features import recent_means, recent_sums

DAY = 1440  # minutes


@dataclass(frozen=True, eq=False)
class Movements:
    """Flights with times of departure and arrival, in minutes since the start of the year.

    Minutes lost are arrival delay − departure delay, or NaN if the flight did not arrive. `flight` is the
    number with carrier and route, `route` includes the carrier, and `region` is a part of the continent.
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
    """Return inputs from flights that had arrived, or left, before each flight left.

    `usual_*` are mean minutes lost on the route (14 days) and by the flight number (30 days). `now_*` are
    recent minutes lost in excess of the usual ones. `left_before` counts departures from the origin in the
    last 30 minutes. Means of few flights are shrunk towards means of more flights.
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
    """Return the mean over flights of the same label that arrived in the last `window`."""
    there = ~np.isnan(flights.lost)
    events = label[there], flights.arrived[there], value[there]
    return recent_means(recent_sums(*events, label, flights.left, window), prior, weight)
