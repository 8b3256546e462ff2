"""The loop for any policy and environment: collect, prepare, update, record, evaluate, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import AdamW

from outdo.core.batch import Batch
from outdo.core.calls import nearest
from outdo.core.protocols import Evaluator, Policy
from outdo.training import checkpoint
from outdo.training.display import SURROGATE_NOTE, Display, Quiet
from outdo.training.optim import (
    adamw,
    learning_rate,
    load_moments,
    moments,
    set_learning_rate,
)
from outdo.training.plan import Position, Result, Settings, Stage
from outdo.training.readings import collected_metrics, interval_text, rollout_rows
from outdo.training.record import Record
from outdo.training.signals import Interrupt
from outdo.training.streams import Streams
from outdo.training.trackers import Tracker
from outdo.training.update import Updater, require_finite, score


class Run:
    """One run in one folder. `train` is the way in."""

    def __init__(
        self,
        policy: Policy,
        stages: Sequence[Stage],
        folder: Path,
        *,
        settings: Settings,
        evaluator: Evaluator | None = None,
        trackers: Sequence[Tracker] = (),
        display: Display | None = None,
    ) -> None:
        self.policy, self.stages, self.settings, self.evaluator = policy, stages, settings, evaluator
        self.record = Record(folder)
        self.trackers, self.display = trackers, display or Quiet()
        self.streams = Streams(settings.seed)
        self.position = Position()
        self.algorithm_state: dict[str, Any] = {}
        self.reference: Policy | None = None

    def execute(self, resume: bool) -> Result:
        """Run all stages to their end, or until a signal."""
        checkpoint.sweep(self.record.checkpoints)
        self.streams.seed_globals()
        restored = self._find(resume)
        with Interrupt() as interrupt:
            while self.position.stage < len(self.stages):
                optimiser = self._enter(restored)
                restored = None
                if not self._stage(optimiser, interrupt):
                    return self._result(interrupt.received)
                if self._last:
                    break
                self._keep_for_later()
                if interrupt.received is not None:
                    return self._result(interrupt.received)
                self.position.stage, self.position.step = self.position.stage + 1, 0
        return self._result(None)

    @property
    def stage(self) -> Stage:
        """The stage the run is in."""
        return self.stages[self.position.stage]

    def _find(self, resume: bool) -> Path | None:
        """The checkpoint to continue from; without one the run begins anew, with empty logs."""
        found = checkpoint.latest(self.record.checkpoints) if resume else None
        if found is None:
            self.record.truncate(dict.fromkeys(self.record.positions(), 0))
        return found

    def _enter(self, restored: Path | None) -> AdamW:
        """Ready the current stage: fresh moments and reference, or everything as the checkpoint has it."""
        state: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        if restored is not None:
            state, tensors = checkpoint.load(restored, self.policy)
            self.position = Position(**state["position"])
            self.record.truncate(state["records"])
        elif self.stage.start is not None:
            checkpoint.verify(self._kept(self.stage.start))
            checkpoint.load(self._kept(self.stage.start), self.policy)
        self._make_reference(restored)
        if restored is not None:
            self.stage.environment.load_state_dict(state["environment"])
            self.algorithm_state = state["algorithm"]
            self.streams.load_state_dict(state["streams"])
        else:
            self.algorithm_state = dict(self.stage.algorithm.initial_state())
        optimiser = adamw(self.policy, self.stage.optimiser)
        load_moments(self.policy, optimiser, tensors)
        return optimiser

    def _kept(self, name: str) -> Path:
        """Where the policy that stage `name` left lies, for later stages that begin from it."""
        return self.record.folder / "starts" / name

    def _keep_for_later(self) -> None:
        """Keep the policy as the stage that is over left it, if a later one begins from it."""
        if any(later.start == self.stage.name for later in self.stages[self.position.stage + 1 :]):
            checkpoint.save(self._kept(self.stage.name), self.policy, {}, {})

    def _make_reference(self, restored: Path | None) -> None:
        """Freeze the policy as the stage begins; a copy in the run folder serves a resumed stage."""
        self.reference = None
        if not self.stage.algorithm.needs_reference:
            return
        folder = self.record.folder / "references" / f"stage-{self.position.stage}"
        if restored is None:
            with checkpoint.atomic_folder(folder) as partial:
                self.policy.save(partial)
            self.reference = self.policy.reference()
            return
        checkpoint.verify(folder)
        self.policy.load(folder)
        self.reference = self.policy.reference()
        self.policy.load(restored / "policy")

    def _stage(self, optimiser: AdamW, interrupt: Interrupt) -> bool:
        """Run the current stage; False if a signal stopped it."""
        stage, position = self.stage, self.position
        updater = Updater(
            self.policy, stage.algorithm, optimiser, stage.micro_batch_tokens, self.streams["minibatches"]
        )
        self.display.stage(stage.name, stage.steps, position.step)
        if stage.algorithm.is_surrogate and position.step < stage.steps:
            self.display.say(f"{stage.name}: {SURROGATE_NOTE}")
        if self._evaluate_if_due():  # a signal had come between this checkpoint and its evaluation
            checkpoint.point_best(self.record.checkpoints, position.total)
        while position.step < stage.steps:
            self._update(updater)
            if interrupt.received is not None and not (position.step == stage.steps and self._last):
                self._save(optimiser)
                return False
            improved = self._evaluate_if_due()
            every = self.settings.checkpoint_every
            if improved or position.step == stage.steps or (every and position.step % every == 0):
                self._save(optimiser)
        return True

    @property
    def _last(self) -> bool:
        return self.position.stage + 1 == len(self.stages)

    def _update(self, updater: Updater) -> None:
        """Collect one batch, learn from it, record it."""
        stage, position = self.stage, self.position
        start = time.perf_counter()
        raw = stage.environment.collect(self.policy, position.step)
        collected = time.perf_counter()
        batch = self._prepare(raw)
        rate = learning_rate(stage.optimiser, position.step, stage.steps)
        set_learning_rate(updater.optimiser, rate)
        metrics = updater(batch)
        updated = time.perf_counter()
        position.step, position.total = position.step + 1, position.total + 1
        tokens = int(batch.valid.sum())
        position.rows, position.tokens = position.rows + len(batch), position.tokens + tokens
        seen = stage.environment.metrics()
        unit = "steps" if "environment_steps" in seen else "tokens"
        metrics = {
            **collected_metrics(raw, stage.algorithm.is_surrogate),
            **seen,
            **metrics,
            "learning_rate": rate,
            unit: tokens,
            "time/collect": collected - start,
            "time/update": updated - collected - metrics["time/optimiser"],
            f"time/{unit}_per_second": tokens / (updated - start),
        }
        self._log("update", metrics)
        self.record.rollouts(rollout_rows(raw, batch.advantage, stage.name, position.total))
        self.display.update(position.step, metrics)

    def _prepare(self, batch: Batch) -> Batch:
        """Old and reference log-probabilities where they are needed, then KL in the reward and advantages."""
        stage = self.stage
        require_finite(batch)
        schedule = stage.algorithm.update
        if schedule.epochs * schedule.minibatches > 1 or stage.algorithm.kl_in_reward:
            batch = batch.with_(old_logp=score(self.policy, batch, stage.micro_batch_tokens))
        if self.reference is not None:
            batch = batch.with_(ref_logp=score(self.reference, batch, stage.micro_batch_tokens))
        batch, self.algorithm_state = stage.algorithm.prepare(batch, self.algorithm_state)
        require_finite(batch)
        return batch

    def _evaluate_if_due(self) -> bool:
        """Evaluate at the start and end of stages and every `evaluate_every` updates; True for a new best."""
        position, every = self.position, self.settings.evaluate_every
        at_end = position.step in (0, self.stage.steps)
        if self.evaluator is None or position.evaluated == position.total:
            return False
        if not (at_end or (every and position.step % every == 0)):
            return False
        start = time.perf_counter()
        report = self.evaluator(self.policy)
        position.evaluated = position.total
        self._log("evaluation", {**report.metrics, "time/evaluation": time.perf_counter() - start})
        place = {"kind": "evaluation", "stage": self.stage.name, "total": position.total}
        self.record.rollouts([{**place, **sample} for sample in report.samples])
        scores = interval_text(report.metrics, report.headline)
        self.display.say(f"held-out after {position.total} updates: {scores}")
        return self._improved(report.metrics)

    def _improved(self, metrics: Mapping[str, float]) -> bool:
        name, position = self.settings.best_by, self.position
        if name is None:
            return False
        if name not in metrics:
            raise ValueError(
                f"best_by names {name!r}, which the evaluation does not report; {nearest(name, metrics)}"
            )
        if position.best is not None and metrics[name] < position.best:
            return False
        position.best, position.best_step = metrics[name], position.total
        return position.step > 0

    def _log(self, kind: str, metrics: Mapping[str, float]) -> None:
        position = self.position
        place = {"kind": kind, "stage": self.stage.name, "step": position.step, "total": position.total}
        self.record.metrics({**place, **metrics})
        for tracker in self.trackers:
            tracker.log({f"{kind}/{name}": value for name, value in metrics.items()}, position.total)

    def _save(self, optimiser: AdamW) -> None:
        """Write a checkpoint, move the link to the best, delete what need not be kept."""
        position = self.position
        over = position.step == self.stage.steps and not self._last
        state = {
            "position": position.state_dict(),
            "records": self.record.positions(),
            "environment": self.stage.environment.state_dict(),
            "algorithm": self.algorithm_state,
            "streams": self.streams.state_dict(),
        }
        folder = self.record.checkpoints
        target = checkpoint.step_folder(folder, position.total)
        start = time.perf_counter()
        checkpoint.save(target, self.policy, {} if over else moments(self.policy, optimiser), state)
        if position.best_step == position.total:
            checkpoint.point_best(folder, position.total)
        checkpoint.prune(folder, self.settings.keep, position.best_step)
        self.display.say(f"saved {target} in {time.perf_counter() - start:.1f} s")

    def _result(self, interrupted_by: str | None) -> Result:
        position = self.position
        result = Result(
            self.record.folder,
            interrupted_by is None,
            position.total,
            interrupted_by,
            position.best,
            position.best_step,
        )
        self.record.summary(
            {
                "finished": result.finished,
                "interrupted_by": interrupted_by,
                **position.state_dict(),
                "stages": [{"name": stage.name, "steps": stage.steps} for stage in self.stages],
            }
        )
        return result


def train(
    policy: Policy,
    stages: Sequence[Stage],
    folder: Path,
    *,
    settings: Settings | None = None,
    evaluator: Evaluator | None = None,
    trackers: Sequence[Tracker] = (),
    display: Display | None = None,
    resume: bool = False,
) -> Result:
    """Run `stages` on `policy`, leaving all in `folder`; with `resume`, go on from its last checkpoint.

    A resumed run is bitwise the run that was never stopped: weights, moments, random streams, data position
    and logs (but for names that begin with `time/`). SIGINT and SIGTERM end the run after the update that is
    on, with a checkpoint. Raises ValueError where a batch lacks what the algorithm needs, FileExistsError
    where `folder` already holds a run and `resume` is False, NonFiniteError naming the rows, and
    CheckpointError where a checkpoint cannot be written or none of those there is whole.
    """
    if not stages:
        raise ValueError("a run needs at least one stage")
    for place, stage in enumerate(stages):
        if stage.start is not None and stage.start not in [earlier.name for earlier in stages[:place]]:
            raise ValueError(f"stage {stage.name!r} begins from {stage.start!r}, which is no earlier stage")
    if not resume and (folder / "metrics.jsonl").exists():
        raise FileExistsError(f"{folder} already holds a run: choose another folder, or resume it")
    run = Run(
        policy,
        stages,
        folder,
        settings=settings or Settings(),
        evaluator=evaluator,
        trackers=trackers,
        display=display,
    )
    try:
        return run.execute(resume)
    finally:
        run.display.close()
        for tracker in trackers:
            tracker.close()
