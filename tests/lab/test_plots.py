"""Pictures: files, their reproducibility, what tells series apart without colour, and errors."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from handmade import plot
from matplotlib.axes import Axes
from PIL import Image

from outdo.lab import plots
from outdo.lab.experiment import Kind, Panel, Plot, Series
from outdo.lab.plots import draw


def panel(*series: Series, **changes) -> Panel:
    return Panel("x", "y", list(series), **changes)


def panel_svg(panel: Panel) -> str:
    return plots.panel_svg(panel, "salt")


def many(kind: Kind, dashed: bool = False) -> Panel:
    """Six series of one kind over thirteen places, whose legend does not matter."""
    places = [float(i) for i in range(13)]
    return panel(*(Series(f"s{i}", places, [float(i + 1)] * 13, kind=kind, dashed=dashed) for i in range(6)))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> list[Path]:
    return draw(plot("three"), tmp_path_factory.mktemp("drawn") / "new")


def test_draw_writes_a_png_and_an_svg_with_every_panel(drawn):
    png, svg = drawn
    assert [path.name for path in (png, svg)] == ["three.png", "three.svg"]
    with Image.open(png) as image:
        width, height = image.size
    # Three panels side by side at 200 dots an inch, the third 1.7 times as wide: 3.9 in · 3.7 · 200 = 2886.
    assert (width, image.format) == (2886, "PNG")
    assert 600 < height < 1400
    text = "".join(ElementTree.parse(svg).getroot().itertext())
    for word in ("The plot three", "size", "value", "count", "height", "a line with a band", "case number 8"):
        assert word in text


def test_the_same_plot_gives_the_same_bytes_without_a_date(drawn, tmp_path):
    for one, two in zip(drawn, draw(plot("three"), tmp_path), strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert "date" not in drawn[1].read_text()
    with Image.open(drawn[0]) as image:
        assert not image.info.keys() - {"dpi"}


def test_lines_differ_by_marks_and_dashed_ones_by_dashes():
    marks = set(re.findall(r'<use xlink:href="#(\w+)" [^>]*style="fill: #', panel_svg(many("line"))))
    assert len(marks) >= 6
    dashes = set(re.findall(r"stroke-dasharray: ([\d., ]+)", panel_svg(many("line", dashed=True))))
    assert len(dashes) == 6


def test_bars_points_and_histograms_differ_without_colour():
    assert len(set(re.findall(r"<pattern id=\"(\w+)\"", panel_svg(many("bars"))))) == 5  # the first is plain
    assert (
        len(set(re.findall(r'<use xlink:href="#(\w+)" [^>]*style="fill: #', panel_svg(many("points"))))) >= 6
    )
    assert (
        len(set(re.findall(r"stroke-dasharray: ([\d., ]+)", panel_svg(many("steps"))))) == 5
    )  # the first is solid


def test_bars_of_one_place_stand_side_by_side(monkeypatch):
    seen = []
    original = Axes.bar
    monkeypatch.setattr(
        Axes, "bar", lambda self, x, *args, **kw: seen.append(list(x)) or original(self, x, *args, **kw)
    )
    panel_svg(panel(*(Series(f"s{i}", [0, 1], [1, 2], kind="bars") for i in range(2)), ticks=["a", "b"]))
    # Two bars share 0.8 of the distance 1: each 0.4 wide, 0.2 to the left and to the right.
    assert seen == [pytest.approx([-0.2, 0.8]), pytest.approx([0.2, 1.2])]


def test_error_bars_reach_from_low_to_high(monkeypatch):
    seen = []
    original = Axes.errorbar

    def recorded(self, *args, **kw):
        seen.append(kw["yerr"])
        return original(self, *args, **kw)

    monkeypatch.setattr(Axes, "errorbar", recorded)
    panel_svg(panel(Series("s", [0, 1], [1.0, 2.0], [0.5, 1.0], [4.0, 2.5], kind="points")))
    assert seen == [[[0.5, 1.0], [3.0, 0.5]]]  # 1 − 0.5 and 2 − 1 below, 4 − 1 and 2.5 − 2 above


def test_a_histogram_takes_edges_or_centres(monkeypatch):
    seen = []
    original = Axes.stairs
    monkeypatch.setattr(
        Axes,
        "stairs",
        lambda self, y, edges, **kw: seen.append(list(edges)) or original(self, y, edges, **kw),
    )
    panel_svg(panel(Series("s", [0, 1, 3], [5, 6], kind="steps")))
    panel_svg(panel(Series("s", [0, 1, 3], [5, 6, 7], kind="steps")))
    assert seen[0] == [0, 1, 3]
    assert seen[2] == [-0.5, 0.5, 2, 4]  # half-way between centres, and as far outside


def test_text_is_taken_as_it_is():
    svg = panel_svg(
        Panel("$a$ & <b>", "y", [Series("costs $5 or $6", [0, 1], [0, 1]), Series("b", [0, 1], [1, 1])])
    )
    text = "".join(ElementTree.fromstring(svg).itertext())
    assert "$a$ & <b>" in text
    assert "costs $5 or $6" in text


def test_a_logarithmic_axis_has_plain_numbers():
    wide = panel(Series("s", [10.0**i for i in range(-6, 3)], [float(i) for i in range(9)]), log_x=True)
    few = panel(Series("s", [2.0, 4.0, 8.0], [1.0, 2.0, 3.0]), log_x=True)
    texts = ["".join(ElementTree.fromstring(panel_svg(each)).itertext()) for each in (wide, few)]
    assert "math" not in texts[0]
    assert "1e−6" in texts[0]
    assert re.findall(r"\S+", texts[1])[:3] == ["2", "4", "8"]


def test_pictures_of_one_page_share_no_ids():
    one, two = (set(re.findall(r'\bid="([^"]+)"', plots.panel_svg(many("bars"), salt))) for salt in "ab")
    assert one
    assert not one & two


@pytest.mark.parametrize(
    "series",
    [
        Series("short", [0, 1, 2], [0, 1]),
        Series("short", [0, 1], [0, 1], low=[0], high=[1, 2]),
        Series("short", [0, 1], [0, 1], low=[0, 1]),
    ],
)
def test_lists_of_unequal_length_are_refused(series):
    with pytest.raises(ValueError, match="series 'short' of panel 'y'"):
        panel_svg(panel(series))


def test_a_name_that_is_no_file_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"plot name '../a'"):
        draw(Plot("../a", "t", []), tmp_path)
