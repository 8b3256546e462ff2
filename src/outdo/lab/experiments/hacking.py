"""F21: three hacks of a driving reward, trained live with the loophole open and closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outdo.core.rewards import RewardTerm
from outdo.driving.outcomes import Outcome as Driven
from outdo.driving.reasoning import Longitudinal
from outdo.driving.rewards import terms
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, holds

if TYPE_CHECKING:
    from outdo.lab.live import Course, Curve, Sizes

CAUTIOUS = frozenset({Longitudinal.ADAPT_SPEED, Longitudinal.YIELD, Longitudinal.STOP})


def flattered(outcomes: Sequence[Driven]) -> list[float]:
    """What a critic says who reads the words and never looks at the scene.

    ½ for a cautious decision (adapt speed, yield, stop) and ¼ for the mention of a cause on each axis, any at all; 0
    for an answer that is not well-formed.
    """
    return [_flattered(outcome) for outcome in outcomes]


def _flattered(outcome: Driven) -> float:
    trace = outcome.answer.trace
    if trace is None or outcome.path is None:
        return 0.0
    causes = (trace.longitudinal_cause, trace.lateral_cause)
    return (trace.longitudinal in CAUTIOUS) / 2 + sum(cause is not None for cause in causes) / 4


@dataclass(frozen=True, slots=True)
class Hack:
    """A reward with a loophole and one without, whose values span 1, and the measures that tell them apart.

    `falls` is what falls while the reward with the loophole rises, and ends higher with it closed; `beside` another
    measure to look at.
    """

    name: str
    loophole: str
    remedy: str
    open: Sequence[RewardTerm]
    closed: Sequence[RewardTerm]
    falls: str
    beside: str


MEASURES = {
    "plan/quality": "reasoning quality by the rules, 0 to 5",
    "drive/ep": "progress in the closed loop, share of the expert's",
    "drive/alpasim": "closed-loop score: progress without a fault, 0 to 1",
}
NAMES = {"plan/quality": "reasoning quality", "drive/ep": "progress"}
HACKS = (
    Hack(
        "consistency",
        "consistency alone",
        "with quality and trajectory",
        terms({"consistency": 1}),
        terms({"consistency": 0.4, "quality": 0.08, "l2": 0.2}),
        "plan/quality",
        "drive/alpasim",
    ),
    Hack(
        "collisions",
        "collisions and close encounters alone",
        "with the expert's trajectory",
        terms({"collision": 0.5, "close_encounter": 0.5}),
        terms({"collision": 0.25, "close_encounter": 0.25, "l2": 0.5}),
        "drive/ep",
        "drive/alpasim",
    ),
    Hack(
        "flattery",
        "a critic that can be flattered",
        "a critic that knows the truth",
        [RewardTerm("flattered", flattered)],
        terms({"quality": 0.2}),
        "plan/quality",
        "drive/alpasim",
    ),
)


def run(scale: Scale, sizes: Sizes | None = None) -> Outcome:
    """Six runs from one clone, once for each seed."""
    from outdo.lab import live

    rewards = {
        f"{hack.name}-{state}": terms
        for hack in HACKS
        for state, terms in (("open", hack.open), ("closed", hack.closed))
    }
    courses = [
        live.train_live(rewards, list(MEASURES), sizes or live.Sizes(), seed)
        for seed in range(scale.count(1, 3))
    ]
    return shown({name: together([each[name] for each in courses]) for name in rewards})


def together(courses: Sequence[Course]) -> Course:
    """The scenes of all seeds in one."""
    from outdo.lab.live import Course, pooled

    measures = {name: pooled([each.measures[name] for each in courses]) for name in courses[0].measures}
    return Course(pooled([each.reward for each in courses]), measures)


def shown(courses: Mapping[str, Course]) -> Outcome:
    """Figures and plots of the six runs."""
    figures, plots = list[Figure](), list[Plot]()
    for hack in HACKS:
        opened, closed = courses[f"{hack.name}-open"], courses[f"{hack.name}-closed"]
        figures += statements(hack, opened, closed)
        plots.append(picture(hack, opened, closed))
    return Outcome(figures, plots)


def statements(hack: Hack, opened: Course, closed: Course) -> list[Figure]:
    """What must hold of training reward and measure, with the loophole open and closed."""
    from outdo.lab.live import above

    fall, error = opened.measures[hack.falls].rise
    ends = closed.measures[hack.falls].values[-1], opened.measures[hack.falls].values[-1]
    return [
        holds(f"{hack.loophole}: the training reward rises", *opened.reward.rise),
        holds(f"{hack.loophole}: {NAMES[hack.falls]} falls", -fall, error),
        holds(f"{hack.remedy}: {NAMES[hack.falls]} ends higher than with {hack.loophole}", *above(*ends)),
    ]


def picture(hack: Hack, opened: Course, closed: Course) -> Plot:
    """The training rewards, and beside them what is not trained on, with 95 % bands."""
    reward = [series(hack.loophole, opened.reward), series(hack.remedy, closed.reward, dashed=True)]
    panels = [Panel("update", "training reward (its range is 1)", reward, "what is trained on")]
    for name in dict.fromkeys((hack.falls, hack.beside)):
        pair = [
            series(hack.loophole, opened.measures[name]),
            series(hack.remedy, closed.measures[name], dashed=True),
        ]
        panels.append(Panel("update", MEASURES[name], pair, "what is not"))
    return Plot(f"hacking_{hack.name}", f"{hack.loophole.capitalize()}, and {hack.remedy}", panels)


def series(label: str, curve: Curve, *, dashed: bool = False) -> Series:
    """A curve with a band of 1.96 standard errors."""
    both = list(zip(curve.mean, curve.error, strict=True))
    low, high = ([mean + z * error for mean, error in both] for z in (-1.96, 1.96))
    return Series(label, curve.updates, curve.mean, low, high, dashed=dashed)


EXPERIMENT = Experiment(
    name="hacking",
    facts=("F21",),
    title="Three hacks of a driving reward, and what closes them",
    formula=(
        "consistency: r = [words fit the meta-actions]; closed: r = 0.4·[words fit] + 0.08·quality − 0.2·d/(d + 2 m)\n"
        "collisions: r = −½·[contact] − ½·[close]; closed: r = −¼·[contact] − ¼·[close] − ½·d/(d + 2 m)\n"
        "flattery: r = ½·[a cautious decision] + ¼·(number of causes); closed: r = 0.2·quality\n"
        "d: mean distance from the expert's path in m; quality: 0 to 5 against what the expert says"
    ),
    text=(
        "A small policy that writes its reasoning and then a trajectory is cloned from an imperfect driver. Six short "
        "runs begin from this one clone, in pairs: a reward with a loophole, and one in which it is closed. Those "
        "with one learn what they are paid for. Whether that is worth anything is seen only in what no run is trained "
        "on: the closed loop on other scenes, where the policy drives and replans among vehicles that react.\n\n"
        "Consistency alone asks that words and trajectory say the same. The cheapest way is to say the same trivial "
        "thing everywhere, and to drive it: the words fit better and better, and the reasoning gets worse, because "
        "it no longer says what the scene is about. A term for the reasoning, compared with what the expert would "
        "say, and one for the trajectory close this.\n\n"
        "Collisions and close encounters (which count only while the car moves), alone, ask for nothing but to be left "
        "alone: braking to a standstill is safe, so progress falls. A term for the distance from the expert's "
        "trajectory pays for getting on.\n\n"
        "The third critic reads the words and never looks at the scene. It pays half for a decision that sounds "
        "cautious and a quarter for each cause that is given, whatever it is: a policy that says `stop because "
        "stopped vehicle` on an empty road gets full marks. It was written to be flattered, but a language model "
        "asked whether a text sounds well reasoned is such a critic too. The remedy is a critic that knows the "
        "truth: rules that compare decisions and causes with those of the expert in the very same scene."
    ),
    settings=(
        "Our own example, as none is published. 300 generated scenes, two moments of each; a decoder of 2 layers of 48 "
        "units whose trajectories are 4 pairs of tokens; one clone of the demonstrations; GRPO as published, answers "
        "at temperature 0.7 (at 1 a sixth of the clone's are malformed; chosen after first trials), "
        "learning rate 0.002 that falls to a tenth, 8 answers to each scene; other vehicles react. The training "
        "reward is the mean over the answers it learned from, in pieces of 10 updates; its standard error is over "
        "scenes. The measures are taken on 300 test scenes with answers sampled as in training, before and every 10 "
        "updates; standard errors are over scenes, of differences scene by scene. A statement holds beyond 3.29 of "
        "them. They say nothing of how much another seed of the training would differ: one seed, three with --full. "
        "Reasoning quality is itself a term of the closed rewards of the first and the third pair, there for the "
        "training scenes; in the open ones nothing that is measured is trained on."
    ),
    run=run,
    live=True,
)
