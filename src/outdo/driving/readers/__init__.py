"""Readers of real scenes: CommonRoad files and Argoverse 2 logs."""

from __future__ import annotations

from pathlib import Path

from outdo.driving.scene import Scene, SceneError


def read(path: Path) -> Scene:
    """The scene of a CommonRoad XML file, or of a folder that holds an Argoverse 2 log or forecasting scenario.

    Raises:
        SceneError: what is there is neither, or is faulty; the message names the place.
        ImportError: the extra that reads it is missing.
    """
    if path.suffix == ".xml":
        from outdo.driving.readers import commonroad

        return commonroad.read(path)
    if path.is_dir():
        from outdo.driving.readers import argoverse

        return argoverse.read(path)
    raise SceneError(f"{path}: neither a CommonRoad .xml file nor the folder of an Argoverse 2 log")
