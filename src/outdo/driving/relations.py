"""Where others are along the ego's route, and how fast they and the ego come together there.

All of it follows from positions and the route, but what follows from a product of the two takes many demonstrations
to learn. Axes: S scenes, A actors with the ego as 0, R points of the route.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

RELATIONS = 6
BEHIND = 60.0  # m of the route behind its first point, taken for straight
NEAREST = 0.5  # m: no gap counts as shorter
HARDEST = 10.0  # m/s²


def relations(agents: Tensor, size: Tensor, route: Tensor, there: Tensor) -> Tensor:
    """Numbers [S, A, `RELATIONS`] of `agents` [S, A, 4] (x, y, heading, speed; m, rad, m/s) by the `route` [S, R, 2].

    `size` [S, A, 2] are lengths and widths, `there` [S, R] says which points of the route are present: the first
    ones, none of them where it ends. In the frame of the ego's observation. The numbers are

    | number | meaning |
    |---|---|
    | s | m along the route, ahead of the ego |
    | d | m to the left of the route |
    | v_s, v_d | m/s along the route and to its left |
    | c = ±(v_s(ego) − v_s) | m/s at which the two come together along the route |
    | `braking` | m/s² that c needs; the gap is abs(s) less half of both lengths |
    """
    start, unit, length, known = _segments(route, there)
    before = length.cumsum(1) - length
    away = agents[:, :, None, :2] - start[:, None]  # [S, A, R, 2]
    along = (away * unit[:, None]).sum(-1)
    inside = torch.minimum(along.clamp(min=0), length[:, None])
    left = away[..., 1] * unit[:, None, :, 0] - away[..., 0] * unit[:, None, :, 1]
    apart = ((along - inside) ** 2 + left**2).masked_fill(~known[:, None], torch.inf)
    at = apart.argmin(-1, keepdim=True)

    s, d = (before[:, None] + inside).gather(2, at)[..., 0], left.gather(2, at)[..., 0]
    direction = torch.atan2(unit[..., 1], unit[..., 0])[:, None].expand_as(apart).gather(2, at)[..., 0]
    turned = agents[..., 2] - direction
    v_s, v_d = agents[..., 3] * turned.cos(), agents[..., 3] * turned.sin()
    s = s - s[:, :1]
    gap = s.abs() - (size[..., 0] + size[:, :1, 0]) / 2
    closing = (v_s[:, :1] - v_s) * s.sign()
    return torch.stack([s, d, v_s, v_d, closing, braking(closing, gap)], -1)


def braking(closing: Tensor, gap: Tensor) -> Tensor:
    """Braking in m/s² that ends the speed `closing` c in m/s within a `gap` in m: max(c, 0)²/(2·gap), at most 10."""
    return (closing.clamp(min=0) ** 2 / (2 * gap.clamp(min=NEAREST))).clamp(max=HARDEST)


def _segments(route: Tensor, there: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Starts and directions [S, R, 2], lengths and presence [S, R] of the route's segments, one behind it first.

    Where fewer than two points are left, it is the straight line on which the ego is.
    """
    two = there[:, 1:2]
    straight = torch.tensor([1.0, 0.0])
    onward = nn.functional.normalize(torch.where(two, route[:, 1] - route[:, 0], straight), dim=-1)
    first = torch.where(two, route[:, 0] - BEHIND * onward, -BEHIND * straight)
    start = torch.cat([first[:, None], route[:, :-1]], 1)
    through = torch.where(two, BEHIND, 2 * BEHIND) * onward
    step = torch.cat([through[:, None], route[:, 1:] - route[:, :-1]], 1)
    length = step.norm(dim=-1)
    known = torch.cat([torch.ones_like(two), there[:, 1:]], 1)
    return start, step / length.clamp(min=1e-6)[..., None], length, known
