"""F20, F21: what a reward of collisions alone teaches, what closes the loophole, and how consistency is computed."""

from __future__ import annotations

import numpy as np
import torch

from outdo.driving import dynamics, rewards
from outdo.driving.meta_actions import meta_actions
from outdo.driving.reasoning import Lateral, Side
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, holds

WAYS = ("stand still", "drive with care", "drive fast")
COLLISION, PROGRESS = (0.0, 0.02, 0.3), (0.0, 1.0, 1.2)
WEIGHT, RATE, STEPS = 5.0, 5.0, 400


def learn(payouts: tuple[float, ...]) -> torch.Tensor:
    """Probabilities along the exact gradient of the payouts, `[STEPS + 1, 3]`."""
    bandit = Bandit(payouts)
    logits, path = tabular.logits_of(bandit), list[torch.Tensor]()
    for _ in range(STEPS + 1):
        path.append(torch.softmax(logits[0], dim=0))
        logits = logits + RATE * bandit.gradient(logits)
    return torch.stack(path)


def consistent(curvature: float) -> float:
    """Whether "nudge in lane left" fits 6.4 s at 10 m/s that swerve by ± `curvature` 1/m and back: 1 or 0."""
    control = np.zeros((64, 2))
    control[8:24, 1], control[24:40, 1] = curvature, -curvature
    path = dynamics.rollout(np.array([0.0, 0.0, 0.0, 10.0]), control)
    lateral = meta_actions(path).lateral
    return float(rewards.lateral_matches(Lateral.NUDGE_IN, Side.LEFT, lateral, lateral))


def run(scale: Scale) -> Outcome:
    """Both rewards by the exact gradient; nothing is sampled."""
    terms = {
        "collisions alone": tuple(-each for each in COLLISION),
        "with progress": tuple(p - WEIGHT * c for p, c in zip(PROGRESS, COLLISION, strict=True)),
    }
    progress = torch.tensor(PROGRESS, dtype=torch.float64)
    figures, panels = list[Figure](), list[Panel]()
    for name, payouts in terms.items():
        path = learn(payouts)
        reward = path @ torch.tensor(payouts, dtype=torch.float64)
        measure = path @ progress
        best = max(range(3), key=payouts.__getitem__)
        figures += [
            Figure(f"{name}: reward before", float(reward[0]), exact=sum(payouts) / 3),
            Figure(f"{name}: progress before", float(measure[0]), exact=sum(PROGRESS) / 3),
            Figure(
                f"{name}: most likely after ({', '.join(WAYS)})", float(path[-1].argmax()), exact=float(best)
            ),
            holds(f"{name}: the reward has risen", float(reward[-1] - reward[0]), 0.0),
        ]
        change = float(measure[-1] - measure[0])
        fallen = name == "collisions alone"
        figures.append(
            holds(
                f"{name}: progress has {'fallen' if fallen else 'risen'}", -change if fallen else change, 0.0
            )
        )
        steps = [float(step) for step in range(STEPS + 1)]
        curves = [
            Series("training reward", steps, reward.tolist()),
            Series("progress, not trained on", steps, measure.tolist(), dashed=True),
        ]
        panels.append(Panel("step", "value", curves, title=name))
    for side, curvature in (("left", 0.004), ("right", -0.004)):
        name = f'consistency of "nudge left" with a swerve to the {side}'
        figures.append(Figure(name, consistent(curvature), exact=float(side == "left")))
    return Outcome(figures, [Plot("reward_design", "A reward of one term, and of two", panels)])


EXPERIMENT = Experiment(
    name="reward_design",
    facts=("F20", "F21"),
    title="A reward that standing still satisfies",
    formula=(
        "collisions alone: r = −P(collision)\nwith progress: r = progress − 5 · P(collision)\n"
        "consistency = 1 if the words fit the meta-actions of the trajectory on both axes, else 0"
    ),
    text=(
        "A car may stand still, drive with care, or drive fast. If only collisions are punished, standing still is "
        "the best there is: the training reward rises to its maximum while the car gets nowhere. The curve that "
        "is trained on looks perfect; the one that is not, falls. That is reward hacking, and the second curve is "
        "how one sees it.\n\n"
        "A term for progress closes the loophole: now care pays most, and both curves rise. Each further term "
        "closes another one. Consistency compares what was said with what was driven: the trajectory is turned "
        "into meta-actions by fixed rules, and a policy that says left and goes right gets 0."
    ),
    settings=(
        "Our own example, as none is published: collision probabilities 0, 0.02 and 0.3, progress 0, 1 and 1.2, the "
        "exact gradient with rate 5 for 400 steps from the uniform policy. Consistency on the lateral axis, by the "
        "rules of the driving rewards, for 6.4 s at 10 m/s that swerve by 0.004 1/m for 1.6 s and back. No seeds."
    ),
    run=run,
)
