"""Real files and faulty ones: what is read agrees with the raw tables, and each fault names its place."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from shapely.geometry import Point, Polygon

from outdo.driving.readers import read
from outdo.driving.readers.common import centre_of, middle, speeds, way_over
from outdo.driving.scene import HISTORY, Kind, Lane, Light, SceneError

feather = pytest.importorskip("pyarrow.feather", reason="needs the extra driving")
DATA = Path(__file__).parents[2].parent / "shared" / "data"
SENSOR = "argoverse2/7fab2350-7eaf-3b7e-a39d-6937a4c1bede"
FORECAST = "argoverse2/0a1e6f0a-1817-4a98-b02e-db8c9327d151"


def data(name: str) -> Path:
    if not (path := DATA / name).exists():
        pytest.skip("no shared/data beside the repository")
    return path


def commonroad(name: str) -> Path:
    pytest.importorskip("commonroad", reason="needs the extra commonroad")
    return data(f"commonroad/{name}.xml")


def test_something_else_is_named(tmp_path):
    with pytest.raises(SceneError, match="neither a CommonRoad"):
        read(tmp_path / "x.txt")
    with pytest.raises(SceneError, match=r"no file annotations\*"):
        read(tmp_path)


def test_speeds_of_a_line_and_over_a_gap():
    # 2 m/s along y, heading north; reversing: the heading is south
    state = np.full((20, 4), np.nan)
    state[:, 0], state[:, 1], state[:, 2] = 0.0, 0.2 * np.arange(20), np.pi / 2
    np.testing.assert_allclose(speeds(state), 2.0, atol=1e-9)
    state[:, 2] = -np.pi / 2
    np.testing.assert_allclose(speeds(state), -2.0, atol=1e-9)
    state[8:18] = np.nan
    state[18:, 1] += 50  # a jump behind the gap is no speed
    rate = speeds(state)
    assert np.isnan(rate[8:18]).all()
    np.testing.assert_allclose(rate[18:], -2.0, atol=1e-9)


def test_the_middle_of_boundaries_with_different_points():
    left = np.array([[0.0, 2.0], [10.0, 2.0]])
    right = np.array([[0.0, -2.0], [3.0, -2.0], [10.0, -2.0]])
    centre, width = middle(left, right)
    np.testing.assert_allclose(centre[:, 1], 0.0, atol=1e-12)
    assert width == pytest.approx(4.0)


def lane(name, y, x0=0.0, x1=30.0, **links):
    return Lane(name, np.array([[x0, y], [x1, y]]), 4.0, 10.0, **links)


def test_the_way_over_lanes_changes_where_it_must():
    #  a -> c (end);  b (left of a) -> d: from a to d one must change lanes
    lanes = {
        "a": lane("a", 0.0, left="b", successors=("c",)),
        "b": lane("b", 4.0, right="a", successors=("d",)),
        "c": lane("c", 0.0, 30, 60),
        "d": lane("d", 4.0, 30, 60),
    }
    assert way_over(lanes, ["a"], ["c"]) == ("a", "c")
    assert way_over(lanes, ["a"], ["d"]) == ("a", "b", "d")
    assert way_over(lanes, ["c"], ["d"]) == ()
    line = centre_of(lanes, ("a", "b", "d"))
    assert (np.diff(line[:, 0]) > 0).all()
    assert line[0].tolist() == [0, 0]
    assert line[-1].tolist() == [60, 4]


@pytest.mark.parametrize("name", [SENSOR, "argoverse2/3b3570b4-7b0b-3268-a571-b0889dbf40b6"])
def test_a_sensor_log_is_in_the_frame_of_the_city(name):
    folder = data(name)
    scene = read(folder)
    assert scene.faults == ()
    assert (scene.now, scene.state[0].shape, bool(scene.valid[0].all())) == (15, (scene.steps, 4), True)
    poses, boxes = (
        columns(file)
        for pattern in ("city_SE3*", "annotations*")
        for file in folder.glob(pattern + ".feather")
    )
    stamps = np.unique(boxes["timestamp_ns"])
    # the ego's box is 1.42 m ahead of its axle
    (at,) = np.flatnonzero(poses["timestamp_ns"] == stamps[40])
    axle = np.array([poses[name][at] for name in ("tx_m", "ty_m")])
    assert np.linalg.norm(scene.state[0, 40, :2] - axle) == pytest.approx(1.42)
    # each actor's place from a rotation by the pose's quaternion q p q*, done here by the formula of Rodrigues
    vector, w = np.array([poses[name][at] for name in ("qx", "qy", "qz")]), poses["qw"][at]
    near = boxes["timestamp_ns"] == stamps[40]
    places = np.stack([boxes[name][near] for name in ("tx_m", "ty_m", "tz_m")], axis=1)
    turned = places + 2 * np.cross(vector, np.cross(vector, places) + w * places)
    city = turned[:, :2] + axle
    for actor in np.flatnonzero(scene.valid[1:, 40]) + 1:
        assert np.linalg.norm(city - scene.state[actor, 40, :2], axis=1).min() < 1e-6
    assert set(scene.kind.tolist()) <= set(Kind)
    assert len(np.unique(scene.kind)) > 1


def test_the_ego_of_a_log_keeps_to_road_and_route():
    scene = read(data(SENSOR))
    area = [Polygon(points) for points in scene.drivable]
    assert all(any(part.covers(Point(*place[:2])) for part in area) for place in scene.state[0, ::10])
    apart = np.linalg.norm(scene.state[0, ::10, None, :2] - scene.route[None], axis=-1).min(1)
    assert apart.max() < 2.5


def test_a_forecasting_scenario():
    scene = read(data(FORECAST))
    assert (scene.steps, scene.now, scene.actors) == (110, HISTORY - 1, 32)
    # row of the track AV at timestep 0, read by eye from the file
    np.testing.assert_allclose(scene.state[0, 0, :2], [-433.71031511630383, 1326.4229802368])
    # speed along the heading: 0.3878 cos 1.5023 + 5.8702 sin 1.5023 = 0.0266 + 5.8565
    assert scene.state[0, 0, 3] == pytest.approx(5.883, abs=1e-3)
    assert not scene.valid.all()  # actors come and go


@pytest.fixture
def copy(tmp_path):
    def make(name: str) -> Path:
        target = tmp_path / "log"
        shutil.copytree(data(name), target)
        return target

    return make


def columns(path: Path) -> dict[str, np.ndarray]:
    """The columns of a table as arrays that can be written to."""
    table = feather.read_table(path)
    return {name: np.array(table[name].to_pylist()) for name in table.column_names}


def change(path: Path, column: str, row: int, value) -> None:
    table, values = feather.read_table(path), columns(path)[column]
    values[row] = value
    feather.write_feather(table.set_column(table.column_names.index(column), column, [values]), path)


def test_nan_in_a_log_names_file_row_and_column(copy):
    folder = copy(SENSOR)
    change(folder / "annotations.feather", "ty_m", 123, np.nan)
    with pytest.raises(SceneError, match=r"annotations.feather: row 123, column 'ty_m': nan"):
        read(folder)


def test_a_missing_pose_and_a_missing_column(copy):
    folder = copy(SENSOR)
    change(folder / "annotations.feather", "timestamp_ns", 5, 17)
    with pytest.raises(
        SceneError, match=r"annotations.feather: row 5: city_SE3_egovehicle.feather has no pose at 17"
    ):
        read(folder)
    table = feather.read_table(folder / "annotations.feather").drop_columns(["length_m"])
    feather.write_feather(table, folder / "annotations.feather")
    with pytest.raises(SceneError, match=r"annotations.feather: no column length_m"):
        read(folder)


def test_a_broken_table_and_a_broken_map(copy):
    folder = copy(SENSOR)
    chart = next((folder / "map").glob("log_map*"))
    content = json.loads(chart.read_text())
    key = next(key for key, part in content["lane_segments"].items() if part["lane_type"] == "VEHICLE")
    content["lane_segments"][key]["right_lane_boundary"][1]["y"] = None
    chart.write_text(json.dumps(content))
    with pytest.raises(SceneError, match=rf"lane_segments/{key}/right_lane_boundary/1/y: None is no finite"):
        read(folder)
    chart.write_text("{")
    with pytest.raises(SceneError, match=r"log_map.*cannot be read"):
        read(folder)
    (folder / "annotations.feather").write_bytes(b"ARROW?")
    with pytest.raises(SceneError, match=r"annotations.feather: cannot be read"):
        read(folder)


def test_an_actor_with_gaps_is_absent_there(copy):
    folder = copy(SENSOR)
    boxes = columns(folder / "annotations.feather")
    stamps = np.unique(boxes["timestamp_ns"])
    names, counts = np.unique(boxes["track_uuid"], return_counts=True)
    track = names[counts == len(stamps)][0]
    gone = (boxes["track_uuid"] == track) & np.isin(boxes["timestamp_ns"], stamps[30:40])
    before = read(folder)
    table = feather.read_table(folder / "annotations.feather")
    feather.write_feather(table.take(np.flatnonzero(~gone)), folder / "annotations.feather")
    after = read(folder)
    lost = before.valid.sum() - after.valid.sum()
    assert lost == 10
    actor = int(np.argmax((before.valid != after.valid).any(1)))
    assert np.flatnonzero(~after.valid[actor]).tolist() == list(range(30, 40))
    assert np.isnan(after.state[actor, 30:40]).all()


def test_a_wrong_map_is_the_scenes_fault(copy):
    folder = copy(SENSOR)
    chart = next((folder / "map").glob("log_map*"))
    content = json.loads(chart.read_text())
    for area in content["drivable_areas"].values():
        for point in area["area_boundary"]:
            point["x"] += 500
    chart.write_text(json.dumps(content))
    scene = read(folder)
    assert re.search(r"off the road at step now = 15", " ".join(scene.faults))


def test_commonroad_against_the_text_of_the_file():
    scene = read(commonroad("USA_US101-4_1_T-1"))
    # 22 obstacles, the last at time 100; initialState of the planning problem by eye
    assert (scene.actors, scene.steps, scene.now, scene.faults) == (23, 101, 0, ())
    np.testing.assert_allclose(scene.state[0, 0], [0, 0, -0.76501, 5.331])
    assert scene.valid[0].sum() == 1
    first = np.flatnonzero((np.abs(scene.state[:, 0, :2] - [20.8465, -38.8751]) < 1e-9).all(1))
    np.testing.assert_allclose(scene.state[first[0], 1], [22.0989, -39.973, -0.74647, 16.4744])
    np.testing.assert_allclose(scene.size[first[0]], [4.7244, 2.1031])


def test_lights_and_limits_of_commonroad():
    scene = read(commonroad("USA_Peach-4_8_T-1"))
    # light 43920: green 400, yellow 30, red 570 steps with an offset; the file has four lights for 13 lanelets
    assert len(scene.signals) == 13
    shown = {int(light) for signal in scene.signals for light in signal.states}
    assert shown <= {Light.RED, Light.YELLOW, Light.GREEN}
    # cycle offset 590: at step 0, (0 − 590) mod 1000 = 410 → 10 steps into yellow; offset 1090 → (−1090) mod 1000 = 910
    # → red. Both occur.
    assert {Light.YELLOW, Light.RED} <= shown
    limited = read(commonroad("USA_Lanker-1_1_T-1"))
    assert limited.lanes["3419"].speed_limit == pytest.approx(13.4112)
    assert limited.lanes["3419"].right == "3422"
    assert limited.lanes["3419"].left is None  # 3464 leads the other way


def test_a_recorded_vehicle_as_the_ego():
    from outdo.driving.readers.commonroad import read as read_as

    scene = read_as(commonroad("USA_US101-4_1_T-1"), ego=373)
    np.testing.assert_allclose(scene.state[0, 0, :2], [20.8465, -38.8751])
    assert scene.valid[0, :5].all()
    with pytest.raises(SceneError, match="no obstacle with id 1;"):
        read_as(commonroad("USA_US101-4_1_T-1"), ego=1)


def edited(tmp_path: Path, name: str, pattern: str, new: str) -> Path:
    text = commonroad(name).read_text()
    assert re.search(pattern, text, re.S)
    path = tmp_path / f"{name}.xml"
    path.write_text(re.sub(pattern, new, text, count=1, flags=re.S))
    return path


FAULTS = {
    "NaN": (r"<x>29.1793</x>", "<x>nan</x>", r"lanelet id 3419/leftBound/point/x: 'nan' is no finite number"),
    "word": (
        r"<exact>9.6774</exact>",
        "<exact>fast</exact>",
        r"obstacle id 1213/.*'fast' is no finite number",
    ),
    "no XML": (r"</leftBound>", "</wrong>", r"line \d+, column \d+: no well-formed XML"),
    "another": (r"<commonRoad ", "<x/><commonRoad ", r"no well-formed XML"),
    "time step": (r'timeStepSize="0.1"', 'timeStepSize="0.2"', "timeStepSize is 0.2 s"),
    "version": (r'commonRoadVersion="2018b"', 'commonRoadVersion="2001"', "commonroad-io cannot read it"),
    "lanelet": (r'<successor ref="3432"/>', '<successor ref="77"/>', "lanelet id 3419: refers to lanelet 77"),
    "start": (
        r"<x>0</x>\s*<y>0</y>",
        "<x>9000</x><y>0</y>",
        r"no route: no lanelet where the ego starts \(x 9000",
    ),
    "goal": (
        r"<x>13.083</x>\s*<y>26.9093</y>",
        "<x>9000</x><y>0</y>",
        "no route: the goal of planningProblem id 1215 lies on no lanelet",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_commonroad_name_their_place(name, tmp_path):
    pattern, new, message = FAULTS[name]
    with pytest.raises(SceneError, match=message):
        read(edited(tmp_path, "USA_Lanker-1_1_T-1", pattern, new))
