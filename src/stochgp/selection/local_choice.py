"""From how many neighbours a local posterior predicts: as few as serve, where predictions of many rows would be slow."""

from typing import Any

import numpy as np
from jaxtyping import Int

from stochgp import deadline
from stochgp.choosing import choice
from stochgp.devices import Devices
from stochgp.neighbours import EXACT_ROWS
from stochgp.planning.devices import Team
from stochgp.posteriors import LocalPosterior
from stochgp.posteriors.local import FEWER, LOST, SMALL_BLOCK

COMPARING_SECONDS = 15.0  # that comparing numbers of neighbours takes, compilation included


def calibrated_locally(
    local: LocalPosterior, n_rows: int, group: Int[np.ndarray, " N"] | None = None
) -> tuple[LocalPosterior, dict[str, Any]]:
    """(The posterior, its variances scaled by `n_rows` left-out rows with their groups, the choice of the number of neighbours and its reason).

    Up to 100,000 rows the number stays. Beyond, where test rows are many as well, the fewest of 64 and 128 are taken that lose at most 0.004 nats
    per left-out row: they cost a twentieth and a quarter of 256. Each has programs of its own, which take seconds to compile: under a
    deadline in less than 15 s none is tried.
    """
    n = local.n_neighbours
    if deadline.left() <= COMPARING_SECONDS:
        return local.calibrated(n_rows, 0, group), choice(n, "there was no time to compare with fewer")
    if len(local.X) <= EXACT_ROWS:
        return local.calibrated(n_rows, 0, group), choice(n, f"fewer are tried beyond {EXACT_ROWS} rows")
    found, lost = local.with_fewest(n_rows, 0, group=group)
    losses = ", ".join(f"{few} lose {nats:.4f}" for few, nats in lost.items())
    why = (
        f"the fewest of {FEWER} that lose at most {LOST} nats per row left out, or {n}: {losses}"
        if lost
        else "no rows were left out"
    )
    return found, choice(found.n_neighbours, f"{why}; a search finds {found.recall():.1%} of the nearest")


def sharing(posterior: LocalPosterior, devices: Devices) -> tuple[LocalPosterior, dict[str, Any]]:
    """(The posterior, its points spread over devices that work at the same time; what `plan_` says of devices that were given)."""
    if devices.mesh is None:
        return posterior, {}
    team, even = Team.of(devices), SMALL_BLOCK % devices.count == 0
    spread = devices.count > 1 and even and (team.as_asked or team.workers > 1)
    if spread:
        posterior, why = posterior.spread_over(devices), "each has its part of every block of points"
    elif devices.count == 1:
        why = "one device"
    elif even:
        why = "devices of one processor share its cores, which one device uses as well"
    else:
        why = "blocks of points have equal parts for 2, 4, 8 or 16"
    entries = {"count": devices.count, "points": "spread" if spread else "one device"}
    return posterior, {"devices": choice(entries, why)}
