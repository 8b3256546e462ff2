"""From what is seen to prefix embeddings: every lane piece, every actor, the route and the ego itself is one of them.

Axes: S scenes, A actors, M lane pieces, D hidden units of the decoder, P = S · `SLOTS` places for embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from outdo.driving.observation import AHEAD, POINTS, Observation
from outdo.driving.relations import RELATIONS, braking, relations
from outdo.driving.scene import HISTORY, MAX_ACTORS, Kind, Light
from outdo.language.sampling import TextObs

LANES = 24
"""Lane pieces that are encoded, of those of the observation, which come nearest to the route."""
SLOTS = LANES + MAX_ACTORS + 2
"""Places of a scene: its lane pieces, actors, the route, and what holds the ego."""


@dataclass(frozen=True, slots=True)
class SceneObs(TextObs):
    """What driving answers were given to: `seen` [S], and prompts whose ids name places of its scenes.

    A selection of rows keeps all scenes, so that the prompts go on naming them.
    """

    seen: Observation


class SceneEncoder(nn.Module):
    """A network for each sort of thing that is seen, and a learnt vector that says which sort it is.

    The embeddings do not know of one another: the decoder reads them as the beginning of its sequence, lanes first,
    then actors, route and ego, so that what decides comes last and has seen all. Ids count from `first`, the size
    of the vocabulary; place k of scene n has `first` + n · `SLOTS` + k.
    """

    def __init__(self, width: int, first: int) -> None:
        super().__init__()
        self.width, self.first = width, first
        sizes = {
            "lanes": 4 * POINTS + 3,
            "actors": HISTORY * 8 + 2 + len(Kind) + 2 + RELATIONS,
            "route": 5 * AHEAD,
            "ego": 12,
        }
        self.networks = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width))
                for name, size in sizes.items()
            }
        )
        self.sorts = nn.Embedding(len(sizes), width)

    def prompts(self, seen: Observation) -> list[tuple[int, ...]]:
        """The ids of what is there in each scene."""
        there = _there(seen)
        return [
            tuple((self.first + n * SLOTS + torch.nonzero(row).squeeze(1)).tolist())
            for n, row in enumerate(there)
        ]

    def forward(self, obs: SceneObs) -> Tensor:
        """Embeddings [P, D]; zero for scenes that no prompt names."""
        named = sorted({(prompt[0] - self.first) // SLOTS for prompt in obs.prompts})
        device = self.sorts.weight.device
        features = _features(obs.seen, torch.tensor(named))
        parts = [
            self.networks[name](each.to(device)) + self.sorts.weight[k]
            for k, (name, each) in enumerate(features.items())
        ]
        actors = features["actors"].shape[1]
        known = torch.cat(parts, 1)  # [S named, LANES + A + 2, D]
        place = torch.tensor(
            [*range(LANES + actors), SLOTS - 2, SLOTS - 1], device=device
        )  # actors that no scene has leave a gap
        index = torch.tensor(named, device=device)[:, None] * SLOTS + place
        out = known.new_zeros(len(obs.seen.kind) * SLOTS, self.width)
        return out.index_put((index.reshape(-1),), known.reshape(-1, self.width))


def _there(seen: Observation) -> Tensor:
    """Which places [S, SLOTS] are taken; the route and the ego always are."""
    there = torch.zeros(len(seen.kind), SLOTS, dtype=torch.bool)
    there[:, :LANES] = torch.from_numpy(seen.lane_present[:, :LANES])
    actors = seen.present.shape[1]
    there[:, LANES : LANES + actors] = torch.from_numpy(seen.present.any(2))
    there[:, -2:] = True
    return there


def _features(seen: Observation, scenes: Tensor) -> dict[str, Tensor]:
    """Numbers of about one [S, n, F] for each network: n lane pieces, A actors, one route, one ego."""

    def of(values: object) -> Tensor:
        return torch.as_tensor(values)[scenes]

    agents, present = of(seen.agents), of(seen.present)[..., None].float()
    facts = of(seen.lane_facts)[:, :LANES] / torch.tensor([3.5, 15.0, 1.0])
    heading, speed = agents[..., 2], agents[..., 3:] / 15
    moves = torch.cat([_place(agents[..., :2]), torch.stack([heading.cos(), heading.sin()], -1), speed], -1)
    size = of(seen.size) / torch.tensor([4.6, 1.9])
    found = relations(agents[:, :, -1], of(seen.size), of(seen.route), of(seen.route_present))
    place, rest = _place(found[..., :2]), found[..., 2:] / torch.tensor([15.0, 5.0, 10.0, 5.0])
    along = torch.cat([place, rest], -1) * present[:, :, -1]
    kind = nn.functional.one_hot(of(seen.kind).long(), len(Kind)).float()
    ahead = of(seen.route_present)[..., None].float()
    light = nn.functional.one_hot(of(seen.light).long(), len(Light)).float()
    stop = of(seen.stop_distance)[:, None]
    line = (of(seen.light) != Light.DARK)[:, None]
    ego = [
        light,
        braking(agents[:, 0, -1, 3:], stop) / 5 * line,
        stop / 50,
        torch.asinh(stop / 2) / 4,
        of(seen.offset)[:, None],
        of(seen.speed_limit)[:, None] / 15,
        speed[:, 0, -1],
        (speed[:, 0, -1] - speed[:, 0, -6]) * 5,
    ]
    return {
        "lanes": torch.cat([_place(of(seen.lanes)[:, :LANES]).flatten(2), facts], -1),
        "actors": torch.cat(
            [(torch.cat([moves, torch.ones_like(speed)], -1) * present).flatten(2), size, kind, along], -1
        ),
        "route": torch.cat([_place(of(seen.route)), ahead], -1).flatten(1)[:, None],
        "ego": torch.cat(ego, -1)[:, None],
    }


def _place(points: Tensor) -> Tensor:
    """Points [..., 2] in m as four numbers: coarse over 50 m, and finer the nearer they are."""
    return torch.cat([points / 50, torch.asinh(points / 2) / 4], -1)
