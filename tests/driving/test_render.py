"""Pictures hold the drive, and a hostile text stays a text."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from answering import Scripted, holding
from roads import light, moving, road

from outdo.driving.reasoning import parse
from outdo.driving.render import gif, page, render_drive, text_at
from outdo.driving.scene import Kind, Light
from outdo.driving.simulator import drive

HOSTILE = "</script><img src=x onerror=alert(1)> & $\\frac{1$ \x00\u202e & stop"


def record(**changes):
    scene = road(
        moving(0, 0, 10),
        moving(25, 0, 10),
        moving(40, 5, 1, np.pi / 2),
        signals=(light(60, Light.RED),),
        kinds=[0, 0, 1],
        **changes,
    )
    plan = np.zeros((1, 20, 2))
    plan[..., 0] = 1.0
    return drive([scene], lambda _: plan, every=5, steps=20)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def film(text):
    return json.loads(re.search(r'id="film">(.*?)</script>', text, re.S)[1])


def test_a_page_holds_the_drive():
    text = page(record(), 0, ["follow lead because lead vehicle.", "stop because red light."])
    data = film(text)
    assert len(data["state"]) == 21
    # 10 m/s for 2 s with 1 m/s²: 10·2 + 1·2²/2 = 22 m, 12 m/s
    assert data["state"][20][0] == pytest.approx([22.0, 0.0, 0.0, 12.0], abs=1e-3)
    assert data["kind"] == [0, 0, 1]
    assert (len(data["plans"]), data["every"]) == (4, 5)
    # the second plan starts after 0.5 s: 10·0.5 + 0.5²/2 = 5.125 m
    assert data["plans"][1][0] == pytest.approx([5.125, 0.0], abs=1e-3)
    assert data["along"] == ["gentle acceleration"] * 20
    assert data["texts"][1] == "stop because red light."
    assert data["signals"][0]["states"] == [Light.RED] * 21


def test_a_page_needs_nothing_else():
    tags = Tags()
    tags.feed(page(record(), 0))
    assert tags.links == []
    assert "http://" not in page(record(), 0).replace("http://www.w3.org", "")


def test_a_hostile_text_stays_a_text():
    text = page(record(scene="<b>&\"'"), 0, [HOSTILE])
    tags, harmless = Tags(), Tags()
    tags.feed(text)
    harmless.feed(page(record(), 0, ["plain"]))
    assert tags.seen == harmless.seen  # no element more
    assert film(text)["texts"] == [HOSTILE]
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;" in text


def test_an_absent_actor_is_not_drawn():
    valid = np.ones((3, 80), np.bool_)
    valid[1, 20] = False
    drive = record(valid=valid)
    data = film(page(dataclasses.replace(drive, valid=drive.valid & np.array([True, False, True])), 0))
    assert all(row[1] is None for row in data["state"])


def test_the_text_of_a_step():
    assert [text_at(["a", "b"], t, 5) for t in (0, 4, 5, 19)] == ["a", "a", "b", "b"]
    assert text_at([], 3, 5) == ""


def test_an_animation(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the extra driving")
    pytest.importorskip("matplotlib", reason="needs the extra driving")
    path = tmp_path / "drive.gif"
    gif(record(), 0, path, [HOSTILE], every=5)
    with image.open(path) as picture:
        assert picture.n_frames == 5  # steps 0, 5, 10, 15, 20
        assert picture.info["duration"] == 500
        frames = []
        for k in range(5):
            picture.seek(k)
            frames.append(np.asarray(picture.convert("RGB")).astype(int))
    ego = np.abs(frames[0] - [0x1F, 0x6F, 0xD6]).sum(-1) < 60
    assert ego.sum() > 200  # a box of 4 m × 2 m in the ego's blue
    assert (frames[0] != frames[-1]).any()
    assert Kind.PEDESTRIAN == 1


def test_a_policy_is_rendered_scene_by_scene(tmp_path):
    trace = parse("track set speed because speed limit; keep lane.")
    policy = Scripted(lambda vocabulary, _, v: holding(vocabulary, v, trace, a=0.2))
    scenes = [road(moving(0, 0, 10), scene="../a b"), road(moving(0, 0, 5), scene="../a b")]
    files = render_drive(policy, scenes, tmp_path / "new", every=4, kind="html")
    assert [path.name for path in files] == [".._a_b.html", ".._a_b-1.html"]  # all in the folder
    data = film(files[1].read_text())
    assert data["texts"] == [str(trace)] * 16
    # 5 m/s for 6.4 s with 0.2 m/s²: 32 + 0.1·6.4² m
    assert data["state"][-1][0][0] == pytest.approx(32 + 0.1 * 6.4**2, abs=2e-3)


def test_small_things_keep_their_colours(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the extra driving")
    pytest.importorskip("matplotlib", reason="needs the extra driving")
    gif(record(), 0, tmp_path / "drive.gif", every=20)
    with image.open(tmp_path / "drive.gif") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)[:300]  # above the key
    for colour in (0xD9701A, 0xB06FC4):  # the pedestrian, and the route's thin line
        wanted = [colour >> 16, colour >> 8 & 255, colour & 255]
        assert (np.abs(pixels - wanted).sum(-1) < 30).sum() > 20
