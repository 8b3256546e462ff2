"""A run in a process of its own, for tests that kill it: `child.py FOLDER MODE`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from toy import SequenceTask, TablePolicy

from outdo.core.presets import preset
from outdo.training.loop import train
from outdo.training.optim import OptimiserSettings
from outdo.training.plan import Result, Settings, Stage


class Slow(SequenceTask):
    """Says each step on standard output and takes a moment, so that a signal meets it at work."""

    def collect(self, policy, step):
        print(f"step {step}", flush=True)
        time.sleep(0.05)
        return super().collect(policy, step)


class KilledWhileSaving(TablePolicy):
    """SIGKILL in the middle of writing the second checkpoint."""

    saves = 0

    def save(self, folder: Path) -> None:
        self.saves += 1
        if self.saves == 3:  # the first is the reference
            (folder / "table.safetensors").write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        super().save(folder)


def go(folder: Path, mode: str, policy: TablePolicy | None = None) -> Result:
    """Ten updates with a checkpoint after every second."""
    environment = Slow() if mode == "slow" else SequenceTask()
    stage = Stage("rl", environment, preset("grpo").algorithm, 10, OptimiserSettings(learning_rate=0.1))
    settings = Settings(checkpoint_every=2, keep=2)
    return train(policy or TablePolicy(), [stage], folder, settings=settings, resume=mode == "resume")


if __name__ == "__main__":
    where, how = Path(sys.argv[1]), sys.argv[2]
    outcome = go(where, how, KilledWhileSaving() if how == "kill-while-saving" else None)
    print(f"finished={outcome.finished} steps={outcome.steps} by={outcome.interrupted_by}", flush=True)
