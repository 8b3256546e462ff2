"""F19: which models an algorithm holds in memory, and what they take."""

from __future__ import annotations

from dataclasses import replace

import torch

from outdo.core.algorithm import Algorithm
from outdo.core.parts import KlInReward
from outdo.core.presets import PRESETS
from outdo.lab import compare
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series

PARAMETERS = 1_000_000_000
RLHF_PPO = replace(PRESETS["ppo"].algorithm, kl=KlInReward("k1", 0.05), name="rlhf_ppo")
# Algorithm, whether rewards come from a model, models, bytes per parameter of the policy (bfloat16).
CASES: dict[str, tuple[Algorithm, bool, float, float]] = {
    "RLHF-PPO": (RLHF_PPO, True, 4.0, 18.0 + 18 + 2 + 2),
    "GRPO, reward model": (PRESETS["grpo"].algorithm, True, 3.0, 18.0 + 2 + 2),
    "GRPO, reward by a program": (PRESETS["grpo"].algorithm, False, 2.0, 18.0 + 2),
    "Dr. GRPO, reward by a program": (PRESETS["dr_grpo"].algorithm, False, 1.0, 18.0),
}


def bytes_per_parameter() -> float:
    """Bytes that one trained float32 parameter takes with gradient and Adam's moments, counted on a network."""
    network = torch.nn.Linear(64, 64, dtype=torch.float32)
    optimiser = torch.optim.AdamW(network.parameters())
    network(torch.ones(1, 64)).sum().backward()
    optimiser.step()
    tensors = list[torch.Tensor]()
    for parameter in network.parameters():
        assert parameter.grad is not None
        state = optimiser.state[parameter]
        tensors += [parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]]
    count = sum(parameter.numel() for parameter in network.parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / count


def run(scale: Scale) -> Outcome:
    """Number and bytes of the models of each case, and the bytes of a trained parameter, counted."""
    theirs = compare.trained(PARAMETERS, "float32").total / PARAMETERS
    figures = [
        Figure("bytes of a trained float32 parameter, counted", bytes_per_parameter(), exact=16.0),
        Figure("bytes of a trained float32 parameter, by compare", theirs, exact=16.0),
    ]
    panels = list[Panel]()
    for name, (algorithm, reward_model, count, size) in CASES.items():
        setting = compare.Setting(compare.Size(PARAMETERS), "bfloat16", reward_model=reward_model)
        held = compare.models(algorithm, setting)
        total = sum(memory.total for memory in held.values())
        figures.append(
            Figure(f"models in memory, {name}", float(len(held)), 4.0 if name == "RLHF-PPO" else None, count)
        )
        figures.append(Figure(f"bytes per parameter, {name}", total / PARAMETERS, exact=size))
        place = [float(k) for k in range(len(held))]
        parts = {
            "weights": [memory.weights for memory in held.values()],
            "gradients": [memory.gradients for memory in held.values()],
            "moments": [memory.moments for memory in held.values()],
        }
        bars = [Series(part, place, [b / 1e9 for b in each], kind="bars") for part, each in parts.items()]
        panels.append(Panel("model", "gigabytes", bars, name, list(held)))
    return Outcome(figures, [Plot("memory", "Models of a billion parameters", panels)])


EXPERIMENT = Experiment(
    name="memory",
    facts=("F19",),
    title="The models that must be in memory",
    formula=(
        "learns:        4 weights + 2 copy in bfloat16 + 4 gradient + 8 Adam's moments = 18 bytes a parameter\n"
        "only computes: 2 bytes a parameter\n"
        "RLHF-PPO = policy 18 + critic 18 + reference 2 + reward model 2 = 40"
    ),
    text=(
        "PPO for preferences holds four models: the policy, a frozen reference to stay near, a reward model that "
        "says what people would have liked, and a critic that says what was to be expected. Policy and critic learn, "
        "and learning is what takes memory: gradients and the two moments of Adam.\n\n"
        "GRPO takes the other answers to the same prompt for its baseline, so the critic is gone, and with it nearly "
        "half of the memory. Where a program can check the answer the reward model is gone too. The price is several "
        "answers to every prompt.\n\n"
        "`outdo lab compare ppo grpo` prints this for a model of your size."
    ),
    settings=(
        "A billion parameters, computing in bfloat16, all models of the policy's size. RLHF-PPO is the preset `ppo` "
        "with k1 in the reward and a reward model. Exact: the sums above, by hand. The trained float32 parameter is "
        "counted on the tensors of a small network after one step of AdamW. Activations and the sampler's cache "
        "are not in it: they depend on lengths."
    ),
    run=run,
)
