"""Pictures of a drive: an animated GIF, or one HTML file that needs nothing else.

Both show the scene from above, the plan, the reasoning text and the meta-actions of what was driven. Texts come from
a model and may hold anything: they are drawn or inserted as plain text, never as markup. Axes: T steps, A actors.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outdo.driving.dynamics import rollout
from outdo.driving.meta_actions import MetaActions, meta_actions
from outdo.driving.planning import Answering, drive_scene
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
EGO, ROUTE, LANES, ROAD = "#1f6fd6", "#b06fc4", "#b9c1ca", "#e2e6ea"
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
    figure, palette = Figure(figsize=(9, 5.4), dpi=80), _palette()
    canvas = FigureCanvasAgg(figure)
    view = figure.add_axes((0.0, 0.28, 1.0, 0.72))
    pictures: list[Any] = []
    for t in range(0, len(state), every):
        view.clear()
        for old in list(figure.texts):
            old.remove()
        _draw(view, scene, record, n, t, paths)
        _draw_key(figure, f"{scene.id} ({scene.situation})")
        along, across = actions_at(actions, min(t, len(state) - 2))
        text = text_at(texts, t, record.every) or "no reasoning"
        head = f"{t * DT:.1f} s   {state[t, 0, 3]:.1f} m/s   {along}, {across}"
        figure.text(0.02, 0.24, head, size=11, va="top", parse_math=False)
        figure.text(0.02, 0.185, _lines(text), size=11, va="top", parse_math=False)
        canvas.draw()
        pictures.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * DT * every), loop=0)


def _palette() -> Any:
    """All colours, and their mixtures with the ground at edges, as a palette: small things keep theirs."""
    from PIL import Image

    own = [*COLOURS.values(), *LIGHTS.values(), EGO, ROUTE, LANES, "#000000", "#dfe3e7"]
    own = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in own]
    ground = [[255, 255, 255], [int(ROAD[i : i + 2], 16) for i in (1, 3, 5)]]
    mixed = [
        [round(a + (b - a) * k / 7) for a, b in zip(under, over, strict=True)]
        for over in own
        for under in ground
        for k in range(8)
    ]
    image = Image.new("P", (1, 1))
    image.putpalette([value for colour in mixed for value in colour])
    return image


def _draw_key(figure: Any, title: str) -> None:
    """The name of the scene and what the colours mean."""
    figure.text(0.02, 0.975, _lines(title), size=10, va="top", color="#55626f", parse_math=False)
    names = {EGO: "ego, plan", ROUTE: "route"} | {
        colour: kind.name.lower() for kind, colour in COLOURS.items()
    }
    for k, (colour, name) in enumerate(names.items()):
        figure.text(0.02 + 0.13 * k, 0.02, "\u25a0 " + name, size=9, color=colour)


def render_drive(
    policy: Answering,
    scenes: Sequence[Scene],
    out: Path,
    *,
    every: int = 5,
    reactive: bool = True,
    kind: Literal["gif", "html"] = "html",
) -> list[Path]:
    """Let a policy drive scenes, greedily, and write each as a picture into the folder `out`: the files.

    Raises:
        ImportError: as `gif`. SceneError, ValueError: as `outdo.driving.simulator.drive`.
    """
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, scene in enumerate(scenes):
        record, texts = drive_scene(policy, scene, every=every, reactive=reactive)
        name = re.sub(r"[^\w.-]", "_", scene.id)
        path = out / f"{name}.{kind}"
        if path in written:
            path = out / f"{name}-{number}.{kind}"
        if kind == "gif":
            gif(record, 0, path, texts)
        else:
            path.write_text(page(record, 0, texts), encoding="utf-8")
        written.append(path)
    return written


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
        view.add_patch(Polygon(area, facecolor=ROAD, transform=own))
    for lane in scene.lanes.values():
        view.plot(*lane.centre.T, color=LANES, lw=1, ls="--", transform=own)
    view.plot(*scene.route.T, color=ROUTE, lw=1.5, transform=own)
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
        box = Rectangle(
            (-length / 2, -width / 2), length, width, facecolor=colour, transform=turned, zorder=3
        )
        view.add_patch(box)
        if scene.kind[k] != Kind.VEHICLE:
            continue
        screen = (length / 4, -0.4 * width), length / 10, 0.8 * width  # where the front is
        view.add_patch(Rectangle(*screen, facecolor="#dfe3e7", transform=turned, zorder=3))
