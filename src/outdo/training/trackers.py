"""TensorBoard, Weights & Biases, trackio and MLflow behind one small interface, imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Somewhere scalars go besides the run folder."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the scalars of update `step`."""
        ...

    def close(self) -> None:
        """Flush and end the run there."""
        ...


def _load(module: str, extra: str) -> Any:
    """Import a tracker's library, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the tracker {extra!r} needs the package {module.split('.')[0]!r}: pip install "
            f"'outdo[{extra}]' ({error})"
        ) from error


class TensorBoard:
    """Event files in `RUN/tensorboard`."""

    def __init__(self, folder: Path, config: Mapping[str, Any], **options: Any) -> None:
        module = _load("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(log_dir=str(folder / "tensorboard"), **options)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class _RunTracker:
    """A library with `init`, `log`, `finish`: Weights & Biases, and trackio, which copies its interface."""

    module: str

    def __init__(self, folder: Path, config: Mapping[str, Any], **options: Any) -> None:
        self._module = _load(self.module, self.module)
        settings = {"project": "outdo", "name": folder.name, "config": dict(config), **options}
        self._module.init(**settings)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One call per update."""
        self._module.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._module.finish()


class Wandb(_RunTracker):
    """Weights & Biases; `options` go to `wandb.init`."""

    module = "wandb"


class Trackio(_RunTracker):
    """trackio; `options` go to `trackio.init`."""

    module = "trackio"


class Mlflow:
    """MLflow; `experiment` names the experiment, other `options` go to `mlflow.start_run`."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], experiment: str = "outdo", **options: Any
    ) -> None:
        self._module = _load("mlflow", "mlflow")
        self._module.set_experiment(experiment)
        self._module.start_run(**{"run_name": folder.name, **options})
        self._module.log_dict(dict(config), "recipe.json")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One call per update; MLflow's names allow no `@`."""
        self._module.log_metrics(
            {name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step
        )

    def close(self) -> None:
        """End the run."""
        self._module.end_run()


TRACKERS: dict[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}
"""Every tracker by the name recipes use, called with the run folder, the recipe and its own options."""
