"""Pictures of a drive: an animated GIF, or one HTML file that needs nothing else.

Both show the scene from above, the plan, the reasoning text and the meta-actions of what was driven. Texts come from
a model and may hold anything: they are drawn or inserted as plain text, never as markup. Axes: T steps, A actors.
"""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outdo.driving.dynamics import rollout
from outdo.driving.meta_actions import MetaActions, meta_actions
from outdo.driving.scene import DT, Kind, Light, Scene
from outdo.driving.simulator import Drive

Floats = NDArray[np.float64]

COLOURS = {
    Kind.VEHICLE: "#8b95a1",
    Kind.PEDESTRIAN: "#d9701a",
    Kind.CYCLIST: "#3f9a55",
    Kind.STATIC: "#7a5230",
}
LIGHTS = {
    Light.GREEN: "#2f9e44",
    Light.YELLOW: "#e0a800",
    Light.RED: "#d6293e",
    Light.STOP_SIGN: "#8c1d2b",
    Light.DARK: "#9aa3ad",
}
EGO = "#1f6fd6"
LONGEST = 600  # characters of a text that a picture shows


def text_at(texts: Sequence[str], t: int, every: int) -> str:
    """The text that held at step `t`: one was written every `every` steps, the last holds on."""
    return texts[min(t // every, len(texts) - 1)] if texts else ""


def actions_at(actions: MetaActions, t: int) -> tuple[str, str]:
    """Names of the longitudinal and lateral meta-action at tick `t`; the last holds on."""

    def name(segments: Sequence[Any]) -> str:
        return str(next((s.action for s in segments if t < s.end), segments[-1].action))

    return name(actions.longitudinal), name(actions.lateral)


def planned(record: Drive, n: int) -> list[Floats]:
    """The paths [H + 1, 2] of all plans of scene `n`, each from where it was made."""
    starts = record.state[n, :: record.every, 0]
    return [rollout(start, plan)[:, :2] for start, plan in zip(starts, record.plans[n], strict=False)]


def page(record: Drive, n: int, texts: Sequence[str] = ()) -> str:
    """Scene `n` of a drive as one HTML document; `texts` are the reasoning traces, one a plan."""
    scene, state = record.scenes[n], record.state[n, :, : record.scenes[n].actors]
    valid, steps = record.valid[n], len(state)
    names = [actions_at(meta_actions(state[:, 0]), t) for t in range(steps - 1)]
    film = {
        "every": record.every,
        "state": [
            [_short(s) if there else None for s, there in zip(state[t], valid[t], strict=False)]
            for t in range(steps)
        ],
        "size": scene.size.tolist(),
        "kind": scene.kind.tolist(),
        "drivable": [_short(area) for area in scene.drivable],
        "lanes": [_short(lane.centre) for lane in scene.lanes.values()],
        "route": _short(scene.route),
        "signals": [
            {"line": _short(s.stop_line), "states": s.states[scene.now : scene.now + steps].tolist()}
            for s in scene.signals
        ],
        "plans": [_short(path) for path in planned(record, n)],
        "texts": list(texts),
        "along": [along for along, _ in names],
        "across": [across for _, across in names],
        "notes": "; ".join(scene.faults),
    }
    template = files("outdo.driving").joinpath("page.html").read_text(encoding="utf-8")
    content = json.dumps(film, allow_nan=False)
    for sign in "<>&":
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    before, after = template.split("@FILM@")
    title = html.escape(f"{scene.id} ({scene.situation})")
    return before.replace("@TITLE@", title) + content + after


def _short(values: Floats) -> Any:
    return np.round(values, 3).tolist()


def gif(record: Drive, n: int, path: Path, texts: Sequence[str] = (), *, every: int = 2) -> None:
    """Write scene `n` of a drive as an animated GIF in real time, a picture every `every` steps.

    Raises:
        ImportError: matplotlib or pillow is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from PIL import Image
    except ImportError as error:
        raise ImportError("animations need matplotlib and pillow: pip install 'outdo[driving]'") from error
    scene = record.scenes[n]
    state = record.state[n, :, : scene.actors]
    actions, paths = meta_actions(state[:, 0]), planned(record, n)
    figure = Figure(figsize=(9, 5.4), dpi=80)
    canvas = FigureCanvasAgg(figure)
    view = figure.add_axes((0.0, 0.28, 1.0, 0.72))
    pictures: list[Any] = []
    for t in range(0, len(state), every):
        view.clear()
        for old in list(figure.texts):
            old.remove()
        _draw(view, scene, record, n, t, paths)
        along, across = actions_at(actions, min(t, len(state) - 2))
        text = text_at(texts, t, record.every) or "no reasoning"
        head = f"{t * DT:.1f} s   {state[t, 0, 3]:.1f} m/s   {along}, {across}"
        figure.text(0.02, 0.22, head, size=11, va="top", parse_math=False)
        figure.text(0.02, 0.16, _lines(text), size=11, va="top", parse_math=False)
        canvas.draw()
        pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    first, *rest = [picture.quantize(64) for picture in pictures]
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * DT * every), loop=0)


def _lines(text: str) -> str:
    """A text for a picture: printable, cut to `LONGEST` characters, wrapped, at most three lines."""
    plain = "".join(c if c.isprintable() else " " for c in text[:LONGEST])
    return "\n".join(textwrap.wrap(plain, 100)[:3])


def _draw(view: Any, scene: Scene, record: Drive, n: int, t: int, paths: list[Floats]) -> None:
    """One picture, with the ego at rest and driving to the right."""
    from matplotlib.patches import Polygon, Rectangle
    from matplotlib.transforms import Affine2D

    x, y, theta, _ = record.state[n, t, 0]
    own = Affine2D().translate(-x, -y).rotate(-theta) + view.transData
    view.set_xlim(-22, 50)
    view.set_ylim(-15.552, 15.552)  # the same metres an inch as along x
    view.set_axis_off()
    for area in scene.drivable:
        view.add_patch(Polygon(area, facecolor="#e2e6ea", transform=own))
    for lane in scene.lanes.values():
        view.plot(*lane.centre.T, color="#b9c1ca", lw=1, ls="--", transform=own)
    view.plot(*scene.route.T, color="#b06fc4", lw=1.5, transform=own)
    for signal in scene.signals:
        colour = LIGHTS[Light(int(signal.states[scene.now + t]))]
        view.plot(*signal.stop_line.T, color=colour, lw=4, transform=own)
    if paths:
        view.plot(*paths[min(t // record.every, len(paths) - 1)].T, color=EGO, lw=2, transform=own)
    for k in range(scene.actors):
        if not record.valid[n, t, k]:
            continue
        (length, width), (px, py, heading, _) = scene.size[k], record.state[n, t, k]
        turned = Affine2D().rotate(heading).translate(px, py) + own
        colour = COLOURS[Kind(int(scene.kind[k]))] if k else EGO
        view.add_patch(
            Rectangle((-length / 2, -width / 2), length, width, facecolor=colour, transform=turned, zorder=3)
        )
