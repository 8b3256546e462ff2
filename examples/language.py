"""GRPO on a language model in one readable loop, with a reward function of one's own and no training room.

Run `python examples/language.py`. The model is `tiny`, a two-layer Llama with random weights and one token per
character, so that this takes seconds; put a folder or a hub id in its place for a model that can speak. The
reward is the share of vowels in the answer. A random model gets about 0.1, because a tenth
of its alphabet are vowels.

Each update: sample a group of answers per prompt, score them, compare each with its group, and step. What
`outdo.training.loop` adds is everything around this: micro-batches, evaluation, checkpoints, resuming, logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.core.presets import algorithm_from
from outdo.core.protocols import Evaluation
from outdo.core.rewards import RewardTerm
from outdo.language.environment import LanguageEnvironment, RolloutSettings
from outdo.language.policy import CausalPolicy
from outdo.language.sampling import Sampling

Chat = Sequence[Mapping[str, str]]
UPDATES = 30


def vowels(completions: Sequence[Chat]) -> list[float]:
    """Share of vowels in each answer. The prompts are chats, so an answer is a list of one message."""
    texts = [completion[-1]["content"] for completion in completions]
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in texts]


def logp(policy: CausalPolicy, batch: Batch) -> Tensor:
    """Log-probabilities `[B, T]` of the sampled tokens, without gradient."""
    with torch.no_grad():
        return policy.evaluate(batch).logp


def main() -> None:
    """Train, printing what to watch; then show answers."""
    policy = CausalPolicy.load_from("tiny", seed=0)
    prompts = [{"prompt": [{"role": "user", "content": f"sing {note}"}]} for note in ("do", "re", "mi", "fa")]
    environment = LanguageEnvironment(
        prompts,
        [RewardTerm("vowels", vowels)],
        RolloutSettings(prompts=4, group=8, sampling=Sampling(temperature=1.0, max_tokens=12)),
    )
    # GRPO as published: advantage (r - group mean) / group std, clipped surrogate, KL to the reference in the
    # loss; two epochs over every batch. Every part can be changed here: `outdo algorithms grpo` lists them.
    algorithm = algorithm_from({"preset": "grpo", "update": {"epochs": 2}})
    algorithm.check(group=8, has_critic=policy.has_critic)
    reference = policy.reference()
    parameters = [parameter for _, parameter in policy.named_parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.0)
    state = algorithm.initial_state()

    print("update  reward      loss  |gradient|  clipped  KL to the start")
    for update in range(UPDATES):
        batch = environment.collect(policy, update)  # answers, their rewards, their log-probabilities
        batch = batch.with_(old_logp=logp(policy, batch), ref_logp=logp(reference, batch))
        batch, state = algorithm.prepare(batch, state)  # fills batch.advantage
        counts = algorithm.counts(batch)  # denominators of all means
        losses: list[float] = []
        for _ in range(algorithm.update.epochs):
            evaluation: Evaluation = policy.evaluate(batch)
            loss = algorithm.loss(batch, evaluation, counts)
            optimiser.zero_grad(set_to_none=False)  # the policy keeps its gradients in buffers of its own
            loss.total.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, algorithm.update.max_grad_norm or torch.inf)
            optimiser.step()
            policy.updated()
            losses.append(float(loss.total.detach()))
        if update % 5 == 0 or update == UPDATES - 1:
            figures = {name: float(total / steps) for name, (total, steps) in loss.metrics.items()}
            print(
                f"{update:6d}  {environment.metrics()['reward']:6.2f}  {losses[0]:8.4f}  {float(norm):10.2f}  "
                f"{figures['clip_share']:7.1%}  {figures['kl_reference']:15.3f}"
            )
    print(
        "\nThe loss began at 0, though the reward rose from the first update on; what it shows later is the price"
    )
    print("of the KL to the start. Answers of the last update, one per prompt:")
    for row in batch.info[::8]:
        print(f"  {row['prompt']!r} -> {row['completion']!r}, reward {row['reward']:.2f}")


if __name__ == "__main__":
    main()
