"""A policy that acts step by step: it chooses actions in an environment, scores what it chose, and learns.

Axes: N environments, B rows, T steps, F flat features, W columns of a raw action, K network outputs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outdo.control.fast import FastNetwork, Rows, supports
from outdo.control.networks import Activation, Critic, Network, flatten
from outdo.control.normalise import RunningStatistics
from outdo.control.protocol import Act, Mask
from outdo.control.spaces import Actions, BoxPolicy, Observations
from outdo.core.batch import Batch
from outdo.core.calls import nearest
from outdo.core.checks import only
from outdo.core.fused import Settings, Sums
from outdo.core.protocols import Evaluation

Kind = Literal["mlp", "cnn", "gru"]
WEIGHTS, SETTINGS = "policy.safetensors", "policy.json"
STATISTICS = "statistics/"
FARTHEST = 10.0
"""A normalised feature is clipped to so many standard deviations."""


class ControlPolicy:
    """A network with a distribution over the actions of a Gymnasium space, and a critic if wanted.

    `kind`: `mlp` for features, `cnn` for one image (and features beside it), `gru` for an `mlp` with a memory of
    `memory` units. `hidden` and `activation` shape the hidden layers; `critic` is a network of its own
    (`separate`), a further output (`shared`) or absent (`none`). `box` is the
    distribution of continuous actions (a Gaussian clipped to the bounds, or one squashed by `tanh`), whose standard
    deviations begin at exp(`log_std`). `normalise` standardises features by running statistics, which move only
    when `settle` is called; features that are zeros and ones by nature stay as they are. `fast` takes the fast path
    where there is one (`outdo.control.fast`: perceptrons on a CPU).
    The raw action of a step is one row of W numbers, whatever the space (`Distribution`).
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        kind: Kind = "mlp",
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        critic: Critic = "separate",
        box: BoxPolicy = "gaussian",
        log_std: float = 0.0,
        memory: int = 64,
        normalise: bool = False,
        seed: int = 0,
        device: str = "cpu",
        fast: bool = True,
    ) -> None:
        for name, value, known in (
            ("kind", kind, Kind),
            ("activation", activation, Activation),
            ("critic", critic, Critic),
            ("box", box, BoxPolicy),
        ):
            if value not in get_args(known):
                raise ValueError(f"{name} = {value!r} is unknown; {nearest(str(value), get_args(known))}")
        self.settings: dict[str, Any] = {
            "kind": kind,
            "hidden": list(hidden),
            "activation": activation,
            "critic": critic,
            "box": box,
            "memory": memory if kind == "gru" else 0,
            "normalise": normalise,
            "observation_space": repr(observation_space),
            "action_space": repr(action_space),
        }
        self.device = torch.device(device)
        self.observations = Observations.of(observation_space, image=kind == "cnn")
        self.actions = Actions.of(action_space, box)
        self.distribution = self.actions.distribution
        self.network = Network(
            self.distribution.outputs,
            self.distribution.stds,
            features=self.observations.size,
            image=self.observations.image,
            memory=self.settings["memory"],
            hidden=hidden,
            activation=activation,
            critic=critic,
            log_std=log_std,
            seed=seed,
        ).to(self.device)
        self.statistics = RunningStatistics((self.observations.size,)) if normalise else None
        self._refresh_scale()
        self._lay_out(fast)

    def _lay_out(self, fast: bool) -> None:
        """Put the parameters into flat buffers, and the fast path over them where it applies."""
        self.matrices, self.vectors = flatten(self.network.ordered())
        self.fast = (
            FastNetwork(self.network, self.matrices, self.vectors, self.distribution)
            if fast and supports(self.network, self.device)
            else None
        )

    @property
    def recurrent(self) -> bool:
        """Whether the policy has a memory; minibatches then keep rows whole."""
        return self.network.memory > 0

    @property
    def has_critic(self) -> bool:
        """Whether the policy values states."""
        return self.network.critic != "none"

    # -- acting -------------------------------------------------------------------------------------------

    def initial_state(self, envs: int) -> NDArray[np.float32] | None:
        """Empty memory `[N, H]` of environments whose episodes begin; None without memory."""
        return np.zeros((envs, self.network.state_size), np.float32) if self.recurrent else None

    def act(
        self,
        obs: Any,
        state: Any,
        first: Mask,
        stream: np.random.Generator,
        *,
        deterministic: bool = False,
        mask: Any = None,
    ) -> Act:
        """Choose actions; see `Actor.act`. All chance comes from `stream`, one row of noise per environment.

        `features` is the array `[N, F]` alone where that says everything, else a dict of `flat`, `image`,
        `mask` `[N, K]`, and with memory `first` `[N]` and `state` `[N, H]`, the memory before the step.
        """
        features = self._features(obs, state, first, mask)
        rows = len(first)
        noise = None if deterministic else self.distribution.noise(rows, stream)
        if self.fast is not None:
            flat, allowed = (features, None) if mask is None else (features["flat"], features["mask"])
            raw, logp, value = self.fast.act(flat, noise, allowed)
            return Act(self.actions.to_environment(raw), raw, features, logp, value, None)
        with torch.no_grad():
            parts = self._on_device(features)
            outputs, value, after = self._forward({key: x[:, None] for key, x in parts.items()})
            raw = self.distribution.sample(outputs[:, 0], self.network.log_std, noise, parts.get("mask"))
            logp, _ = self.distribution.score(outputs[:, 0], self.network.log_std, raw, parts.get("mask"))
        sampled = raw.cpu().numpy()
        return Act(
            self.actions.to_environment(sampled),
            sampled,
            features,
            logp.cpu().numpy(),
            None if value is None else value[:, 0].cpu().numpy(),
            None if after is None else after.cpu().numpy(),
        )

    def value(self, obs: Any, state: Any, first: Mask) -> NDArray[np.float32] | None:
        """V `[N]` of observations; None without a critic."""
        if not self.has_critic:
            return None
        features = self._features(obs, state, first, None)
        if self.fast is not None:
            return self.fast.act(features, None, None)[2]
        with torch.no_grad():
            _, value, _ = self._forward({k: x[:, None] for k, x in self._on_device(features).items()})
        assert value is not None
        return value[:, 0].cpu().numpy()

    def observe(self, obs: Any, real: Mask) -> None:
        """Count the observations of the rows where `real` `[N]` into the pending statistics."""
        if self.statistics is not None:
            self.statistics.observe(self.observations.flat(obs)[real])

    def settle(self) -> None:
        """Make the pending statistics count from here on."""
        if self.statistics is not None:
            self.statistics.settle()
            self._refresh_scale()

    def _refresh_scale(self) -> None:
        """Shift and factor `[F]` float32 of the settled statistics; 0 and 1 where none are kept."""
        if self.statistics is None:
            return
        kept = self.observations.continuous
        self._shift = np.where(kept, self.statistics.mean, 0).astype(np.float32)
        factor = 1 / np.sqrt(self.statistics.variance + 1e-8)
        self._factor = np.where(kept, factor, 1).astype(np.float32)

    def _features(self, obs: Any, state: Any, first: Mask, mask: Any) -> Any:
        """What `evaluate` needs of a step: the array `[N, F]`, or a dict of arrays."""
        flat = self.observations.flat(obs)
        if self.statistics is not None:
            flat = np.clip((flat - self._shift) * self._factor, -FARTHEST, FARTHEST)
        if not self.recurrent and self.observations.image is None and mask is None:
            return flat
        parts: dict[str, Any] = {"flat": flat}
        if self.observations.image is not None:
            parts["image"] = self.observations.picture(obs)
        if mask is not None:
            parts["mask"] = self.actions.mask(mask, len(first))
        if self.recurrent:
            parts |= {"first": np.array(first), "state": np.array(state)}
        return parts

    def _on_device(self, features: Any) -> dict[str, Tensor]:
        parts = cast("dict[str, Any]", features if isinstance(features, dict) else {"flat": features})
        return {key: torch.as_tensor(value).to(self.device) for key, value in parts.items()}

    def _forward(self, parts: dict[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Outputs `[B, T, K]`, value `[B, T]` and memory after the last step."""
        state = parts["state"][:, 0] if self.recurrent else None
        return self.network(parts["flat"], parts.get("image"), state, parts.get("first"))

    # -- learning -----------------------------------------------------------------------------------------

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        """Log-probability, entropy and value `[B, T]` of the steps of a batch; see `Policy.evaluate`.

        With memory each row begins with the state that its first step carries. A row's reset steps and padding
        (`valid` False) may hold anything.
        """
        shape = batch.logp.shape
        parts, raw, valid = self._steps(batch)
        if self.fast is not None:
            rows = Rows.of(parts["flat"], raw, parts.get("mask"), valid)
            logp, spread, value = self.fast.evaluate(rows, shape)
            return Evaluation(
                logp, spread if entropy else spread.detach(), value if self.has_critic else None
            )
        outputs, value, _ = self._forward(parts)
        mask = parts["mask"].flatten(0, 1) if "mask" in parts else None
        logp, spread = self.distribution.score(
            outputs.flatten(0, 1), self.network.log_std, raw.flatten(0, 1), mask
        )
        spread = spread if entropy else spread.detach()
        return Evaluation(
            only(valid, logp.view(shape)),
            only(valid, spread.view(shape)),
            None if value is None else only(valid, value),
        )

    def gradient_of(self, steps: Batch, settings: Settings) -> Callable[[Tensor], Sums] | None:
        """The gradient of a compiled loss, without autograd; None without the fast path. See `SelfDifferentiating`."""
        if self.fast is None:
            return None
        parts, raw, valid = self._steps(steps)
        return self.fast.gradient_of(Rows.of(parts["flat"], raw, parts.get("mask"), valid), steps, settings)

    def _steps(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Features, raw actions and which are valid, on the policy's device; zeros where a step is not."""
        valid = batch.valid.to(self.device)
        parts, raw = self._on_device(batch.obs), batch.action.to(self.device)
        if not valid.all():
            parts = {key: _blank(x, valid, key == "mask") for key, x in parts.items()}
            raw = _blank(raw, valid, False)
        return parts, raw, valid

    def micro_batches(self, batch: Batch, budget: int) -> list[Tensor]:
        """Rows in pieces of at most about `budget` steps, padding counted."""
        rows = max(1, budget // max(1, batch.logp.shape[1]))
        return list(torch.arange(len(batch)).split(rows))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The two flat buffers, `matrices` and `vectors`."""
        yield "matrices", self.matrices
        yield "vectors", self.vectors

    def updated(self) -> None:
        """Nothing is derived from the weights."""

    def reference(self) -> ControlPolicy:
        """A frozen copy of the policy as it is now."""
        frozen = copy.copy(self)
        frozen.network = copy.deepcopy(self.network)
        frozen.statistics = copy.deepcopy(self.statistics)
        frozen._lay_out(fast=self.fast is not None)
        for parameter in (*frozen.network.parameters(), frozen.matrices, frozen.vectors):
            parameter.requires_grad_(False)
        return frozen

    # -- state --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Nothing: `save` writes the statistics with the weights, so that they are never apart."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accepts what `state_dict` gave."""
        if state:
            raise ValueError(f"a control policy keeps no state beside its files, got {sorted(state)}")

    def save(self, folder: Path) -> None:
        """Write weights and statistics (safetensors) and settings (JSON)."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().cpu().clone() for name, t in self.network.state_dict().items()}
        if self.statistics is not None:
            tensors |= _packed(self.statistics.state_dict())
        save_file(tensors, folder / WEIGHTS)
        (folder / SETTINGS).write_text(json.dumps(self.settings, indent=2) + "\n")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read what `save` wrote, in place; raises ValueError where it is a policy of another make."""
        from safetensors.torch import load_file

        saved = json.loads((folder / SETTINGS).read_text())
        for name, mine in self.settings.items():
            if saved.get(name) != mine:
                raise ValueError(
                    f"{folder} holds a policy with {name} = {saved.get(name)!r}, this one has {mine!r}: "
                    "build it with the same settings and spaces"
                )
        tensors = load_file(folder / WEIGHTS)
        if self.statistics is not None:
            self.statistics.load_state_dict(_unpacked(tensors))
            self._refresh_scale()
        self.network.load_state_dict({n: t for n, t in tensors.items() if not n.startswith(STATISTICS)})


def _blank(x: Tensor, valid: Tensor, fill: bool) -> Tensor:
    """`x` `[B, T, ...]` with `fill` where `valid` `[B, T]` is False."""
    shaped = valid.view(*valid.shape, *(1,) * (x.ndim - 2))
    return torch.where(shaped, x, torch.full((), fill, dtype=x.dtype, device=x.device))


def _packed(state: dict[str, Any]) -> dict[str, Tensor]:
    """Statistics as tensors with names that `_unpacked` reads."""
    return {
        f"{STATISTICS}{part}/{name}": torch.as_tensor(value, dtype=torch.float64)
        for part, moments in state.items()
        for name, value in moments.items()
    }


def _unpacked(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Undo `_packed`; other tensors are left out."""
    state: dict[str, Any] = {}
    for key, tensor in tensors.items():
        if key.startswith(STATISTICS):
            _, part, name = key.split("/")
            state.setdefault(part, {})[name] = tensor
    return state
