"""CommonRoad scenarios (Althoff, Koschi and Manzinger 2017), XML versions 2018b and 2020a, through commonroad-io.

The file has other vehicles' logs and a planning problem, but no log of the ego: the ego is seen at one step only,
unless one of the recorded vehicles is named to take its place. Axes: T steps of 0.1 s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from outdo.driving.readers.common import Track, build, centre_of, distinct, lanes_at, onward, way_over
from outdo.driving.scene import DT, Kind, Lane, Light, Scene, SceneError, Signal

Floats = NDArray[np.float64]

EGO_SIZE = (4.508, 1.61)  # m, vehicle 2 of the CommonRoad vehicle models (BMW 320i)
NUMBERS = frozenset(
    {"x", "y", "length", "width", "radius", "exact", "intervalStart", "intervalEnd", "duration", "timeOffset"}
)
KINDS = {
    "pedestrian": Kind.PEDESTRIAN,
    "bicycle": Kind.CYCLIST,
    "motorcycle": Kind.CYCLIST,
    "constructionZone": Kind.STATIC,
    "roadBoundary": Kind.STATIC,
    "building": Kind.STATIC,
    "pillar": Kind.STATIC,
    "median_strip": Kind.STATIC,
}
LIGHTS = {
    "red": Light.RED,
    "redYellow": Light.RED,
    "yellow": Light.YELLOW,
    "green": Light.GREEN,
    "inactive": Light.DARK,
}


def read(path: Path, *, ego: int | None = None) -> Scene:
    """The scene of a file; `ego` is the id of a recorded vehicle to drive instead of the planning problem's.

    With a planning problem, `now` is its first step and the route leads over lanelets to its goal; with a
    recorded vehicle `now` is its first step too, and the route leads to where its log ends. Speed limits and stop
    signs come from traffic signs, lights from their cycles.

    Raises:
        SceneError: the file, element (with id) and what is wrong with it; no way to the goal; no time step of 0.1 s.
        ImportError: commonroad-io is missing.
    """
    _check(path)
    scenario, problems = _open(path)
    if abs(scenario.dt - DT) > 1e-6:
        raise SceneError(f"{path}: timeStepSize is {scenario.dt} s, only {DT} s is read: resample the file")
    network = scenario.lanelet_network
    lanes = _lanes(path, network, scenario)
    if ego is None:
        now, own, goals = _problem(path, problems, lanes)
    else:
        now, own, goals = 0, None, set[str]()
    tracks = _tracks(path, scenario, now)
    if own is None:
        chosen = [track for track in tracks if track.name == str(ego)]
        if not chosen:
            raise SceneError(f"{path}: no obstacle with id {ego}; there are {[t.name for t in tracks]}")
        tracks = [*chosen, *(track for track in tracks if track.name != str(ego))]
        seen = np.flatnonzero(np.isfinite(chosen[0].state).all(1))
        now, last = int(seen[0]), chosen[0].state[seen[-1]]
        goals = set(lanes_at(lanes, *last[:3]))
    else:
        state = np.full((len(tracks[0].state) if tracks else now + 1, 4), np.nan)
        state[now] = own
        tracks = [Track(Kind.VEHICLE, EGO_SIZE, state, "ego"), *tracks]
    route = _route(path, lanes, tracks[0].state[now], goals)
    areas = (np.concatenate([lane.right_vertices, lane.left_vertices[::-1]]) for lane in network.lanelets)
    drivable = tuple(distinct(np.asarray(area, np.float64)) for area in areas)
    signals = tuple(_signals(network, lanes, len(tracks[0].state)))
    name = str(scenario.scenario_id)
    line = centre_of(lanes, route)
    return build(name, "commonroad", now, tracks, lanes, drivable, line, route, signals=signals)


def _check(path: Path) -> None:
    """Refuse what is no well-formed XML, and numbers that are none, with their place."""
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise SceneError(f"{path}: cannot be read: {error}") from error
    except ElementTree.ParseError as error:
        line, column = error.position
        raise SceneError(f"{path}: line {line}, column {column}: no well-formed XML ({error})") from error
    if root.tag != "commonRoad":
        raise SceneError(f"{path}: the root is <{root.tag}>, not <commonRoad>")
    for place, element in _elements(root, ""):
        if element.tag not in NUMBERS or len(element):
            continue
        try:
            finite = math.isfinite(float(element.text or ""))
        except ValueError:
            finite = False
        if not finite:
            raise SceneError(f"{path}: {place}: {element.text!r} is no finite number")


def _elements(element: ElementTree.Element, place: str) -> Iterator[tuple[str, ElementTree.Element]]:
    """All elements below with their places: tags, the id where there is one, else the number among its kind."""
    count: dict[str, int] = {}
    for child in element:
        number = count[child.tag] = count.get(child.tag, 0) + 1
        mark = f" id {child.get('id')}" if child.get("id") else f" {number}" if number > 1 else ""
        below = f"{place}/{child.tag}{mark}" if place else f"{child.tag}{mark}"
        yield below, child
        yield from _elements(child, below)


def _open(path: Path) -> tuple[Any, Any]:
    """Scenario and planning problems; only the XML half of the library is loaded, the other wants an old protobuf."""
    try:
        from commonroad.common.reader.file_reader_xml import XMLFileReader
    except ImportError as error:
        raise ImportError("CommonRoad files need commonroad-io: pip install 'outdo[commonroad]'") from error
    log = logging.getLogger("commonroad")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of each element of the older format
    try:
        return XMLFileReader(str(path)).open()
    except Exception as error:
        raise SceneError(f"{path}: commonroad-io cannot read it: {type(error).__name__}: {error}") from error
    finally:
        log.setLevel(level)


def _lanes(path: Path, network: Any, scenario: Any) -> dict[str, Lane]:
    from commonroad.scenario.traffic_sign import SupportedTrafficSignCountry
    from commonroad.scenario.traffic_sign_interpreter import TrafficSignInterpreter

    known = {country.value: country for country in SupportedTrafficSignCountry}
    country = known.get(scenario.scenario_id.country_id, SupportedTrafficSignCountry.ZAMUNDA)
    limits = TrafficSignInterpreter(country, network)
    inside: set[int] = set()
    for crossing in network.intersections:
        for group in crossing.incomings:
            inside |= set(group.outgoing_left) | set(group.outgoing_right) | set(group.outgoing_straight)
    there = {lanelet.lanelet_id for lanelet in network.lanelets}
    lanes: dict[str, Lane] = {}
    for lanelet in network.lanelets:
        name = str(lanelet.lanelet_id)
        width = np.linalg.norm(lanelet.left_vertices - lanelet.right_vertices, axis=1).mean()
        limit = limits.speed_limit(frozenset({lanelet.lanelet_id}))
        left = lanelet.adj_left if lanelet.adj_left_same_direction else None
        right = lanelet.adj_right if lanelet.adj_right_same_direction else None
        for other in (*lanelet.successor, left, right):
            if other is not None and other not in there:
                raise SceneError(
                    f"{path}: lanelet id {name}: refers to lanelet {other}, which is not in the file"
                )
        lanes[name] = Lane(
            id=name,
            centre=distinct(np.asarray(lanelet.center_vertices, np.float64)),
            width=float(width),
            speed_limit=math.inf if limit is None else float(limit),
            successors=tuple(str(other) for other in lanelet.successor),
            left=None if left is None else str(left),
            right=None if right is None else str(right),
            intersection=lanelet.lanelet_id in inside,
        )
    return lanes


def _problem(path: Path, problems: Any, lanes: dict[str, Lane]) -> tuple[int, Floats, set[str]]:
    """First step, state of the ego there, and the lanes of the goal of the first planning problem."""
    found = list(problems.planning_problem_dict.values())
    if not found:
        raise SceneError(f"{path}: no planningProblem: name a recorded vehicle as the ego")
    problem = found[0]
    start = problem.initial_state
    own = np.array([*start.position, start.orientation, start.velocity], np.float64)
    goals = {str(name) for names in (problem.goal.lanelets_of_goal_position or {}).values() for name in names}
    for state in problem.goal.state_list:
        position = getattr(state, "position", None)
        if position is not None and not goals:
            centre = position.center
            goals |= set(_any_lanes(lanes, float(centre.x), float(centre.y)))
            if not goals:
                place = f"planningProblem id {problem.planning_problem_id}"
                raise SceneError(f"{path}: no route: the goal of {place} lies on no lanelet ({centre})")
    return int(start.time_step), own, goals


def _any_lanes(lanes: dict[str, Lane], x: float, y: float) -> list[str]:
    """Lanes at a place, whatever their direction."""
    return [name for turn in np.arange(0, 2 * np.pi, np.pi / 3) for name in lanes_at(lanes, x, y, turn)]


def _route(path: Path, lanes: dict[str, Lane], own: Floats, goals: set[str]) -> tuple[str, ...]:
    """Lanes from where the ego is to the goal and on; without a goal the straightest way on."""
    starts = lanes_at(lanes, *own[:3])
    if not starts:
        raise SceneError(
            f"{path}: no route: no lanelet where the ego starts (x {own[0]:.1f}, y {own[1]:.1f})"
        )
    way = way_over(lanes, starts, goals) if goals else starts[:1]
    if not way:
        raise SceneError(f"{path}: no route: no way from lanelet {starts[0]} to {', '.join(sorted(goals))}")
    return (*way, *(name for name in onward(lanes, way[-1])[1:] if name not in way))


def _tracks(path: Path, scenario: Any, now: int) -> list[Track]:
    """All obstacles, over as many steps as the longest has (at least to `now`)."""
    last = [getattr(thing.prediction, "final_time_step", 0) for thing in scenario.dynamic_obstacles]
    steps = max([now, *map(int, last)]) + 1
    tracks: list[Track] = []
    for thing in scenario.obstacles:
        place = f"{path}: obstacle id {thing.obstacle_id}"
        shape = thing.obstacle_shape
        if hasattr(shape, "length"):
            size = (float(shape.length), float(shape.width))
        elif hasattr(shape, "radius"):
            size = (2 * float(shape.radius), 2 * float(shape.radius))
        else:
            raise SceneError(f"{place}: shape {type(shape).__name__} is neither a rectangle nor a circle")
        state = np.full((steps, 4), np.nan)
        standing = type(thing).__name__ == "StaticObstacle"
        for step in range(steps):
            found = thing.initial_state if standing else thing.state_at_time(step)
            if found is not None:
                state[step] = _state(place, step, found, standing=standing)
        tracks.append(
            Track(KINDS.get(thing.obstacle_type.value, Kind.VEHICLE), size, state, str(thing.obstacle_id))
        )
    return tracks


def _state(place: str, step: int, found: Any, *, standing: bool) -> list[float]:
    speed = 0.0 if standing else getattr(found, "velocity", None)
    try:
        x, y = found.position
        return [float(x), float(y), float(found.orientation), float(speed)]  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, AttributeError) as error:
        raise SceneError(f"{place}, time {step}: position, orientation and velocity must be exact") from error


def _signals(network: Any, lanes: dict[str, Lane], steps: int) -> Iterator[Signal]:
    """A signal for each light and stop sign of each lanelet, at its stop line or at its end."""
    for lanelet in network.lanelets:
        ends = [lanelet.left_vertices[-1], lanelet.right_vertices[-1]]
        mark = lanelet.stop_line
        if mark is not None and mark.start is not None and mark.end is not None:
            ends = [mark.start, mark.end]
        line = np.array(ends, np.float64)
        for number in sorted(lanelet.traffic_lights):
            light = network.find_traffic_light_by_id(number)
            shown = [LIGHTS[light.get_state_at_time_step(step).value] for step in range(steps)]
            yield Signal(str(lanelet.lanelet_id), line, np.array(shown, np.int8))
        for number in sorted(lanelet.traffic_signs):
            sign = network.find_traffic_sign_by_id(number)
            if any(part.traffic_sign_element_id.name == "STOP" for part in sign.traffic_sign_elements):
                yield Signal(str(lanelet.lanelet_id), line, np.full(steps, Light.STOP_SIGN, np.int8))
