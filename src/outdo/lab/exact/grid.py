"""A grid world: its value by a linear solve, or by induction and by enumeration where time is limited."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from outdo.core import returns
from outdo.core.batch import Batch
from outdo.lab.exact import tabular

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
LONGEST = 100_000
"""Steps after which sampling gives up on a policy that does not reach an end."""


@dataclass(frozen=True, slots=True)
class GridWorld:
    """Cells of a map: `S` start (several are equally likely), `.` floor, `#` wall, `G` goal, `X` pit.

    Actions: 0 up, 1 right, 2 down, 3 left; against a wall or the border nothing moves. Every step pays
    `step`, entering the goal `goal` more, entering the pit `pit` more; both end the episode. States are the
    cells one can stand on, in reading order. With `horizon` the episode also ends after so many steps.
    """

    cells: tuple[str, ...] = ("S.G", "..X")
    step: float = -0.1
    goal: float = 1.0
    pit: float = -1.0
    gamma: float = 1.0
    horizon: int | None = None
    next_state: Tensor = field(init=False, repr=False, compare=False)
    """`[S, A]` int64; S means that the episode has ended."""
    reward: Tensor = field(init=False, repr=False, compare=False)
    """`[S, A]` float64."""
    start: Tensor = field(init=False, repr=False, compare=False)
    """Probability to start in a state, `[S]` float64."""

    def __post_init__(self) -> None:
        """Refuse maps that are no rectangle, know no start, or where an end is out of reach."""
        if not self.cells or len({len(line) for line in self.cells}) != 1:
            raise ValueError(f"cells must be lines of equal length, got {self.cells}")
        if unknown := set("".join(self.cells)) - set("S.#GX"):
            raise ValueError(f"cells may hold S . # G X, got {''.join(sorted(unknown))!r}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")
        if self.horizon is not None and self.horizon < 1:
            raise ValueError(f"horizon must be >= 1 or left out, got {self.horizon}")
        floor = {
            (r, c): None for r, line in enumerate(self.cells) for c, cell in enumerate(line) if cell in "S."
        }
        index = {place: number for number, place in enumerate(floor)}
        start = torch.tensor([float(self.cells[r][c] == "S") for r, c in floor], dtype=torch.float64)
        if not start.any():
            raise ValueError("the map has no start: mark a cell with S")
        after = [[self._enter(place, move, index) for move in MOVES] for place in floor]
        for name, tensor in (
            ("next_state", torch.tensor([[state for state, _ in row] for row in after])),
            ("reward", torch.tensor([[pay for _, pay in row] for row in after], dtype=torch.float64)),
            ("start", start / start.sum()),
        ):
            object.__setattr__(self, name, tensor)
        self._require_end()

    def _enter(
        self, place: tuple[int, int], move: tuple[int, int], index: dict[tuple[int, int], int]
    ) -> tuple[int, float]:
        """State and reward of a move from `place`."""
        r, c = place[0] + move[0], place[1] + move[1]
        inside = 0 <= r < len(self.cells) and 0 <= c < len(self.cells[0])
        cell = self.cells[r][c] if inside else "#"
        if cell == "#":
            return index[place], self.step
        if cell in "GX":
            return len(index), self.step + (self.goal if cell == "G" else self.pit)
        return index[r, c], self.step

    def _require_end(self) -> None:
        """Refuse an endless world: without a horizon every cell must lead to an end."""
        ends = (self.next_state == self.states).any(dim=1)
        for _ in range(self.states):
            ends = ends | torch.cat([ends, ends.new_ones(1)])[self.next_state].any(dim=1)
        if self.horizon is None and not bool(ends.all()):
            raise ValueError("from some cell no end can be reached: open a way, or set a horizon")

    @property
    def states(self) -> int:
        """Cells that one can stand on."""
        return len(self.start)

    @property
    def actions(self) -> int:
        """Four."""
        return len(MOVES)

    def _values(self, logits: Tensor) -> Tensor:
        """V_t(s) `[H, S]` with a horizon H, else V(s) as `[1, S]`."""
        policy = torch.softmax(logits, dim=-1, dtype=torch.float64)
        pays = (policy * self.reward).sum(dim=1)
        follow = torch.nn.functional.one_hot(self.next_state, self.states + 1)[..., :-1].double()
        move = self.gamma * torch.einsum("sa,sax->sx", policy, follow)
        if self.horizon is None:
            unit = torch.eye(self.states, dtype=torch.float64)
            return torch.linalg.solve(unit - move, pays)[None]
        values = [pays]
        for _ in range(self.horizon - 1):
            values.append(pays + move @ values[-1])
        return torch.stack(values[::-1])

    def value(self, logits: Tensor) -> Tensor:
        """J = Σ_s start(s) V(s), a scalar, differentiable in `logits` `[S, A]`.

        V = (I − γP)⁻¹ r without a horizon, V_t = r + γP V_{t+1} with one.
        """
        return self._values(logits)[0] @ self.start

    def gradient(self, logits: Tensor) -> Tensor:
        """Exact ∇J, `[S, A]`."""
        return tabular.gradient(self, logits)

    def batch(self, logits: Tensor, start: Tensor, action: Tensor, group: int = 1) -> Batch:
        """The batch of given start states `[B]` and actions `[B, T]`; what follows an end is invalid.

        `value` is exact. The last step of a row must end its episode, or be the horizon's.
        """
        count, steps = action.shape
        follow = torch.cat([self.next_state, torch.full((1, self.actions), self.states)])
        state = torch.empty(count, steps + 1, dtype=torch.int64)
        state[:, 0] = start
        for t in range(steps):
            state[:, t + 1] = follow[state[:, t], action[:, t]]
        valid = state[:, :-1] < self.states
        ended = valid & (state[:, 1:] == self.states)
        if self.horizon is not None:
            ended[:, self.horizon - 1 :] |= valid[:, self.horizon - 1 :]
        here = torch.where(valid, state[:, :-1], torch.zeros_like(action))
        values = self._values(logits.detach())
        when = torch.arange(steps) if self.horizon is not None else torch.zeros(steps, dtype=torch.int64)
        value = torch.where(valid, values[when, here], 0.0)
        return Batch(
            obs=here,
            action=action,
            logp=torch.where(
                valid, torch.log_softmax(logits.detach(), dim=-1, dtype=torch.float64)[here, action], 0.0
            ),
            reward=torch.where(valid, self.reward[here, action], 0.0),
            discount=self.gamma * (valid & ~ended).double(),
            cut=ended,
            valid=valid,
            group=tabular.group_ids(count, group),
            value=value,
            next_value=returns.next_values(value, torch.zeros_like(value), ended, valid),
        )

    def sample(self, logits: Tensor, groups: int, group: int, generator: torch.Generator) -> Batch:
        """`groups` · `group` episodes to their end; the start is drawn once for a group.

        Raises ValueError for a policy that does not end within `LONGEST` steps.
        """
        start = torch.multinomial(self.start, groups, replacement=True, generator=generator)
        start = start.repeat_interleave(group)
        state, actions = start, list[Tensor]()
        table = torch.cat([logits.detach(), torch.zeros(1, self.actions, dtype=logits.dtype)])
        follow = torch.cat([self.next_state, torch.full((1, self.actions), self.states)])
        while len(actions) < (self.horizon or LONGEST):
            actions.append(tabular.draw(table[state], generator))
            state = follow[state, actions[-1]]
            if bool((state == self.states).all()):
                break
        else:
            if self.horizon is None:
                raise ValueError(f"the policy reaches no end within {LONGEST} steps: set a horizon")
        return self.batch(logits, start, torch.stack(actions, dim=1), group)

    def trajectories(self, logits: Tensor) -> tuple[Batch, Tensor]:
        """Every episode that can happen, and the probability of each, `[N]`.

        Raises ValueError without a horizon: there are infinitely many.
        """
        if self.horizon is None:
            raise ValueError("episodes without end cannot be enumerated: set a horizon")
        begins = self.start.nonzero()[:, 0]
        action = tabular.sequences(self.horizon, self.actions)
        batch = self.batch(logits, begins.repeat_interleave(len(action)), action.repeat(len(begins), 1))
        first = (batch.valid | (batch.action == 0)).all(dim=1)  # of those alike up to their end
        batch = batch.select(first.nonzero()[:, 0])
        return batch, self.start[batch.obs[:, 0]] * batch.logp.sum(dim=1).exp()
