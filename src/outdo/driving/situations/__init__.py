"""The ten situations of generated scenes; each draws a `Draft` of given length from a random generator."""

from __future__ import annotations

from collections.abc import Callable

from numpy.random import Generator

from outdo.driving.situations import places, traffic
from outdo.driving.situations.roads import Draft, Floats

SITUATIONS: dict[str, Callable[[Generator, Floats], Draft]] = {
    "lead braking": traffic.lead_braking,
    "cut-in": traffic.cut_in,
    "cut-out": traffic.cut_out,
    "merge": traffic.merge,
    "unprotected turn": places.unprotected_turn,
    "crossing pedestrian": places.pedestrian,
    "stop line": places.stop_line,
    "parked vehicle": places.parked_vehicle,
    "slow leader": traffic.slow_leader,
    "road works": places.road_works,
}
