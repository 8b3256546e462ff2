"""GRPO on a language model, outdo beside TRL, in one interleaved run.

    pip install -e '.[benchmark]'
    python benchmarks/language.py [--model smollm2-135m | tiny] [--rounds 3] [--peers bfloat16,float32]

Both peers do the same work in a process of their own: 2 prompts × 8 completions × 64 tokens that no stop token
cuts short, random rewards, no KL, one AdamW update, gradient clipped at 1. The processes take turns, one step
each, so that a machine that speeds up or slows down does so for all. Printed are medians, the smallest and the
largest, ratios of medians to outdo's fastest precision, peak memory (resident set of the process), and the bound
that the machine's memory bandwidth and matrix-product rate, measured in the same run, put on the work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

PROMPTS, GROUP, TOKENS = 2, 8, 64
PARTS = ("generation", "update", "optimiser", "step")
TINY = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def questions(count: int) -> list[list[dict[str, str]]]:
    """Chat prompts of about 37 tokens."""
    ask = "State the final answer to the following arithmetic problem: {} - {} - {} ="
    return [
        [
            {"role": "system", "content": "Show your work."},
            {"role": "user", "content": ask.format(i % 9 + 1, (3 * i) % 9 + 1, (7 * i) % 9 + 1)},
        ]
        for i in range(count)
    ]


def write_tiny(folder: Path) -> None:
    """A tiny Llama with random weights, and a tokenizer of single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    inner = Tokenizer(models.BPE(words, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'][:24] }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)


# -- workers: each waits for a line, makes one step, prints its seconds ---------------------------------------


def turns() -> Iterator[None]:
    """One step for every line on standard input."""
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        yield


def report(times: dict[str, float]) -> None:
    """Print one step's seconds and the peak resident memory so far in GiB."""
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent's peak before exec
    peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**20  # type: ignore[index]
    print(json.dumps({**times, "peak": peak}), flush=True)


def outdo_worker(model: str, precision: str, micro_batch: int) -> None:
    """Outdo's own environment, policy and update, as a recipe would build them."""
    from outdo.core.algorithm import Algorithm
    from outdo.core.parts import Clipped, GroupMean, Update
    from outdo.core.rewards import RewardTerm
    from outdo.language.environment import LanguageEnvironment, RolloutSettings
    from outdo.language.policy import CausalPolicy
    from outdo.language.sampling import Sampling
    from outdo.training.optim import OptimiserSettings, adamw
    from outdo.training.update import Updater

    policy = CausalPolicy.load_from(model, precision=precision)  # type: ignore[arg-type]
    policy.stop_tokens = ()
    rng = random.Random(0)
    term = RewardTerm("random", lambda completions: [rng.random() for _ in completions])
    settings = RolloutSettings(PROMPTS, GROUP, Sampling(max_tokens=TOKENS))
    environment = LanguageEnvironment([{"prompt": prompt} for prompt in questions(64)], [term], settings)
    algorithm = Algorithm(GroupMean(), Clipped(), update=Update(epochs=1, minibatches=1))
    optimiser = adamw(policy, OptimiserSettings(learning_rate=1e-6))
    updater = Updater(policy, algorithm, optimiser, micro_batch, torch.Generator())
    for step, _ in enumerate(turns()):
        start = time.perf_counter()
        batch = environment.collect(policy, step)
        assert int(batch.valid.sum()) == PROMPTS * GROUP * TOKENS
        batch, _state = algorithm.prepare(batch)
        collected = time.perf_counter()
        metrics = updater(batch)
        end = time.perf_counter()
        report(
            {
                "generation": environment.metrics()["time/generation"],
                "update": end - collected - metrics["time/optimiser"],
                "optimiser": metrics["time/optimiser"],
                "step": end - start,
            }
        )


def trl_settings(precision: str) -> Any:
    """TRL's settings for the same work: no KL, no gradient checkpointing, nothing logged or saved."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        gradient_accumulation_steps=1,
        max_completion_length=TOKENS,
        generation_kwargs={"min_new_tokens": TOKENS},
        beta=0.0,
        learning_rate=1e-6,
        max_grad_norm=1.0,
        bf16=precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        max_steps=1000,
        logging_steps=1000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def trl_worker(model: str, precision: str) -> None:
    """TRL's GRPOTrainer with its generation, its loss and backward pass, and its optimiser timed apart."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    rng = random.Random(0)
    spent = dict.fromkeys((*PARTS, "collect"), 0.0)

    def timed(owner: Any, name: str, part: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - start

        setattr(owner, name, wrapper)

    class Turns(TrainerCallback):
        def __init__(self) -> None:
            self.lines = turns()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if next(self.lines, "over") == "over":
                os._exit(0)
            spent.update(dict.fromkeys(spent, 0.0))
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            spent["step"] = time.perf_counter() - self.start
            # What training_step holds beside generating and scoring is the loss and the backward pass.
            spent["update"] -= spent["collect"]
            report({part: spent[part] for part in PARTS})

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        reward_funcs=lambda completions, **_: [rng.random() for _ in completions],
        train_dataset=Dataset.from_dict({"prompt": questions(64)}),
        callbacks=[Turns()],
        args=trl_settings(precision),
    )
    timed(trainer.model, "generate", "generation")
    timed(trainer, "_generate_and_score_completions", "collect")
    timed(trainer, "training_step", "update")
    timed(trainer.accelerator, "clip_grad_norm_", "optimiser")
    create = trainer.create_optimizer

    def create_timed(*args: Any, **kwargs: Any) -> Any:
        optimiser = create(*args, **kwargs)
        timed(optimiser, "step", "optimiser")
        return optimiser

    trainer.create_optimizer = create_timed
    timed(trainer.model, "zero_grad", "optimiser")
    trainer.train()


# -- the bound -------------------------------------------------------------------------------------------------


def machine(precision: str) -> tuple[float, float]:
    """Bytes a second that a sum reads, and floating-point operations a second of a large product in `precision`."""
    data = torch.ones(1 << 28)
    best = min(_seconds(data.sum) for _ in range(5))
    a = torch.randn(2048, 2048).to(getattr(torch, precision))
    product = min(_seconds(lambda: a @ a) for _ in range(8))
    return data.nbytes / best, 2 * 2048**3 / product


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bound(parameters: int, precision: str, prompt: int) -> dict[str, float]:
    """Least seconds for the work: weights streamed once a token, 6 operations a parameter and token, AdamW's bytes."""
    bandwidth, rate = machine(precision)
    width = 2 if precision == "bfloat16" else 4
    tokens = PROMPTS * (GROUP * TOKENS + prompt)
    # AdamW reads gradient, weight and two moments and writes the last three, all float32, then the cast copy.
    optimiser = parameters * (7 * 4 + (2 if width == 2 else 0)) / bandwidth
    parts = {
        "generation": TOKENS * parameters * width / bandwidth,
        "update": 6 * parameters * tokens / rate,
        "optimiser": optimiser,
    }
    print(f"machine: {bandwidth / 1e9:.1f} GB/s read, {rate / 1e12:.2f} TFLOP/s in {precision} products")
    return {**parts, "step": sum(parts.values())}


# -- the run ---------------------------------------------------------------------------------------------------


class Worker:
    """A peer in a process of its own."""

    def __init__(self, peer: str, precision: str, model: str, micro_batch: int) -> None:
        self.name = f"{peer} {precision}"
        command = [sys.executable, __file__, "--worker", peer, "--precision", precision, "--model", model]
        command += ["--micro-batch", str(micro_batch)]
        # Both peers wait for their threads in the way outdo sets: a guest of the machine then slows neither by far.
        environment = {"GOMP_SPINCOUNT": "60000", **os.environ}
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.steps: list[dict[str, float]] = []
        self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(
            f"{self.name} ended with status {self.process.wait()}: run it alone with --worker to see why"
        )

    def step(self) -> dict[str, float]:
        """One step of this peer, while the others wait."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def table(workers: list[Worker], limit: dict[str, float], unit: float) -> None:
    """Medians with the spread, ratios to outdo's fastest, and the bound."""
    medians = {w.name: {part: statistics.median(s[part] for s in w.steps) for part in PARTS} for w in workers}
    own = min((name for name in medians if name.startswith("outdo")), key=lambda name: medians[name]["step"])
    scale, label = (1e3, "ms") if unit < 1 else (1.0, "s")
    print(f"\n{'':18}" + "".join(f"{part + ' ' + label:>26}" for part in PARTS) + f"{'peak GiB':>10}")
    for w in workers:
        cells = []
        for part in PARTS:
            values = [s[part] * scale for s in w.steps]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})")
        print(f"{w.name:18}" + "".join(f"{cell:>26}" for cell in cells) + f"{w.steps[-1]['peak']:10.2f}")
    print(f"{'bound':18}" + "".join(f"{limit[part] * scale:26.2f}" for part in PARTS))
    print(f"\nratio of medians to {own}")
    peak = next(w for w in workers if w.name == own).steps[-1]["peak"]
    for w in workers:
        ratios = "".join(f"{medians[w.name][part] / medians[own][part]:26.2f}" for part in PARTS)
        print(f"{w.name:18}{ratios}{w.steps[-1]['peak'] / peak:10.2f}")
    print(f"{'bound':18}" + "".join(f"{limit[part] / medians[own][part]:26.2f}" for part in PARTS))


def main() -> None:
    """Run the peers in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="'smollm2-135m', 'tiny', or a model folder")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measured steps of each peer, after one to warm up"
    )
    tokens = "tokens outdo computes at once: more is faster and takes more memory"
    parser.add_argument("--micro-batch", type=int, default=320, help=tokens)
    parser.add_argument("--own", default="bfloat16", help="precisions of outdo, separated by commas")
    parser.add_argument(
        "--peers", default="bfloat16", help="precisions of TRL, separated by commas; empty: none"
    )
    parser.add_argument("--worker", choices=("outdo", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        if given.worker == "outdo":
            outdo_worker(given.model, given.precision, given.micro_batch)
        else:
            trl_worker(given.model, given.precision)
        return
    from outdo.language.load import load

    with tempfile.TemporaryDirectory() as folder:
        model = given.model
        if model == "tiny":
            write_tiny(Path(folder))
            model = folder
        loaded = load(model)
        if model == "smollm2-135m":
            model = str(loaded.model.config._name_or_path)
        prompt = len(loaded.tokenizer.apply_chat_template(questions(1)[0], return_dict=False))
        own = given.own.split(",")
        limit = bound(sum(p.numel() for p in loaded.model.parameters()), own[0], prompt)
        del loaded
        names = [("outdo", p) for p in own] + [("trl", p) for p in given.peers.split(",") if p]
        workers = [Worker(peer, precision, model, given.micro_batch) for peer, precision in names]
        for w in workers:
            w.step()
        for _ in range(given.rounds):
            for w in workers:
                w.steps.append(w.step())
        table(workers, limit, min(s["step"] for w in workers for s in w.steps))
        for w in workers:
            w.close()


if __name__ == "__main__":
    main()
