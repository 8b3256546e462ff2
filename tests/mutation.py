"""Mutation check of `outdo.core`: break one line at a time, and demand that a test of `tests/core` goes red.

Run `python tests/mutation.py [WORD ...]` (only mutants whose file or description contains one of the words).
Works on a temporary copy of `src/`, on which the tests must be green first. Prints a table of mutants and the
first tests that went red, and exits with 1 if a mutant survived, or is gone because its line has changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "returns",
    "objectives",
    "kl",
    "reduce",
    "baselines",
    "algorithm",
    "presets",
    "policy_gradients",
    "steps",
    "fused",
)


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands in `file` once, becomes `new`."""

    file: str
    what: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "objectives",
        "sign of REINFORCE",
        "return -only(mask, advantage.detach()) *",
        "return only(mask, advantage.detach()) *",
    ),
    Mutant(
        "objectives",
        "REINFORCE: advantage not detached",
        "return -only(mask, advantage.detach())",
        "return -only(mask, advantage)",
    ),
    Mutant("objectives", "sign of the likelihood", "return -only(mask, logp)", "return only(mask, logp)"),
    Mutant(
        "objectives",
        "sign of the clipped surrogate",
        "return only(mask, -surrogate)",
        "return only(mask, surrogate)",
    ),
    Mutant("objectives", "clip: min becomes max", "surrogate = torch.minimum(", "surrogate = torch.maximum("),
    Mutant(
        "objectives",
        "clip: min dropped",
        "torch.minimum(rho * fixed, rho.clamp(1 - low, 1 + high) * fixed)",
        "rho.clamp(1 - low, 1 + high) * fixed",
    ),
    Mutant(
        "objectives",
        "clip dropped",
        "torch.minimum(rho * fixed, rho.clamp(1 - low, 1 + high) * fixed)",
        "rho * fixed",
    ),
    Mutant("objectives", "clip: min that hides NaN", "torch.minimum(rho * fixed,", "torch.fmin(rho * fixed,"),
    Mutant(
        "objectives", "clip: bounds swapped", "rho.clamp(1 - low, 1 + high)", "rho.clamp(1 - high, 1 + low)"
    ),
    Mutant("objectives", "clip share: signs swapped", "flat = ((fixed > 0) &", "flat = ((fixed < 0) &"),
    Mutant(
        "objectives",
        "clip: advantage not detached",
        "fixed = only(mask, advantage.detach())",
        "fixed = only(mask, advantage)",
    ),
    Mutant(
        "objectives",
        "dual clip: on positive advantages",
        "torch.where(fixed < 0, torch.maximum",
        "torch.where(fixed > 0, torch.maximum",
    ),
    Mutant(
        "objectives",
        "dual clip: max becomes min",
        "torch.maximum(surrogate, dual * fixed)",
        "torch.minimum(surrogate, dual * fixed)",
    ),
    Mutant(
        "objectives",
        "ratio: old not detached",
        "only(mask, logp) - only(mask, old_logp.detach())",
        "only(mask, logp) - only(mask, old_logp)",
    ),
    Mutant(
        "objectives",
        "ratio inverted",
        "only(mask, logp) - only(mask, old_logp.detach())",
        "only(mask, old_logp.detach()) - only(mask, logp)",
    ),
    Mutant(
        "objectives",
        "GSPO: divided by the padded length",
        "mask.sum(dim=1, keepdim=True).clamp(min=1)",
        "mask.shape[1]",
    ),
    Mutant(
        "objectives",
        "CISPO: weight not detached",
        "log_ratio(logp, old_logp, mask).exp().detach()",
        "log_ratio(logp, old_logp, mask).exp()",
    ),
    Mutant("objectives", "CISPO: sign", "return -weight * only", "return weight * only"),
    Mutant(
        "objectives",
        "CISPO: advantage not detached",
        "return -weight * only(mask, advantage.detach())",
        "return -weight * only(mask, advantage)",
    ),
    Mutant(
        "objectives",
        "importance weight: not detached",
        "log_ratio(trainer_logp.detach(),",
        "log_ratio(trainer_logp,",
    ),
    Mutant("objectives", "importance weight: cap dropped", ".exp().clamp(max=cap)", ".exp()"),
    Mutant(
        "objectives",
        "importance weight: inverted",
        "log_ratio(trainer_logp.detach(), sampler_logp, mask)",
        "log_ratio(sampler_logp, trainer_logp.detach(), mask)",
    ),
    Mutant(
        "objectives",
        "critic: target not detached",
        "only(mask, target.detach())).square()",
        "only(mask, target)).square()",
    ),
    Mutant(
        "objectives",
        "clipped critic: old value not detached",
        "old = only(mask, old_value.detach())",
        "old = only(mask, old_value)",
    ),
    Mutant(
        "objectives",
        "clipped critic: max becomes min",
        "return torch.maximum(value_mse",
        "return torch.minimum(value_mse",
    ),
    Mutant(
        "objectives",
        "DPO: sign",
        "margin = beta * (chosen - rejected)",
        "margin = beta * (rejected - chosen)",
    ),
    Mutant(
        "objectives",
        "DPO: reference not detached",
        "chosen_logp - ref_chosen_logp.detach()",
        "chosen_logp - ref_chosen_logp",
    ),
    Mutant(
        "kl",
        "direction of the ratio",
        "log_r = only(mask, ref_logp.detach()) - only(mask, logp)",
        "log_r = only(mask, logp) - only(mask, ref_logp.detach())",
    ),
    Mutant(
        "kl",
        "reference not detached",
        "log_r = only(mask, ref_logp.detach())",
        "log_r = only(mask, ref_logp)",
    ),
    Mutant("kl", "k1: sign", "return -log_r", "return log_r"),
    Mutant("kl", "k2: factor", "0.5 * log_r.square()", "log_r.square()"),
    Mutant("kl", "k3: sign of the log", "torch.expm1(log_r) - log_r", "torch.expm1(log_r) + log_r"),
    Mutant(
        "kl",
        "exact: reference not detached",
        "torch.log_softmax(ref_logits.detach()",
        "torch.log_softmax(ref_logits",
    ),
    Mutant("kl", "exact: sign", "(logp.exp() * (logp - ref_logp))", "(logp.exp() * (ref_logp - logp))"),
    Mutant(
        "checks",
        "masking by multiplication",
        "return torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))",
        "return tensor * mask",
    ),
    Mutant(
        "checks", "shape check off", "if len(set(shapes.values())) > 1:", "if len(set(shapes.values())) > 9:"
    ),
    Mutant(
        "reduce",
        "token mean over the micro-batch",
        "return loss.sum() / max(counts.steps, 1)",
        "return loss.sum() / mask.sum().clamp(min=1)",
    ),
    Mutant("reduce", "rows of the micro-batch", "rows = max(counts.rows, 1)", "rows = max(mask.shape[0], 1)"),
    Mutant(
        "reduce",
        "token mean of padded rows",
        "mask.sum(dim=1).clamp(min=1)).sum() / rows",
        "mask.shape[1]).sum() / rows",
    ),
    Mutant("reduce", "mask dropped", "    loss = only(mask, loss)\n", ""),
    Mutant(
        "returns",
        "TD error: sign of V",
        "only(valid, next_value) - only(valid, value)",
        "only(valid, next_value) + only(valid, value)",
    ),
    Mutant(
        "returns",
        "torch form: cut ignored",
        "only(valid & ~cut, discount) * lam",
        "only(valid, discount) * lam",
    ),
    Mutant(
        "returns",
        "torch form: λ dropped",
        "only(valid & ~cut, discount) * lam",
        "only(valid & ~cut, discount)",
    ),
    Mutant(
        "returns",
        "torch form: invalid steps stop the recursion",
        "* lam, torch.ones_like(discount))",
        "* lam, torch.zeros_like(discount))",
    ),
    Mutant("returns", "λ-return without V", "valid, lam) + only(valid, value)", "valid, lam)"),
    Mutant(
        "returns",
        "bootstrap everywhere",
        "zero if next_value is None else only(cut, next_value)",
        "zero if next_value is None else next_value",
    ),
    Mutant(
        "returns",
        "episode starts: cut ignored",
        "(before < 0) | cut.gather(1, before.clamp(min=0))",
        "(before < 0)",
    ),
    Mutant(
        "returns", "next value across a cut", "stop = cut | (following == steps)", "stop = following == steps"
    ),
    Mutant(
        "kernels", "cut ignored", "c[t] = zero if cut[t] else discount[t] * lam", "c[t] = discount[t] * lam"
    ),
    Mutant(
        "kernels",
        "discount of the bootstrap",
        "reward[t] + discount[t] * next_value[t]",
        "reward[t] + next_value[t]",
    ),
    Mutant("kernels", "invalid steps stop the recursion", "c[t] = zero + 1", "c[t] = zero"),
    Mutant("kernels", "third of four rows", "x2 = b2[t] + c2[t] * x2", "x2 = b2[t] + c2[t] * x1"),
    Mutant("kernels", "invalid steps keep a value", "if not keep[t]:", "if not keep[t] and t < 0:"),
    Mutant(
        "baselines",
        "group mean: sign",
        "only(scored, shifted - mean[groups.index])",
        "only(scored, mean[groups.index] - shifted)",
    ),
    Mutant(
        "baselines",
        "group mean: unscored rows count",
        "mean = groups.sum(shifted) / groups.size.clamp(min=1)",
        "mean = groups.sum(shifted) / groups.index.bincount()",
    ),
    Mutant(
        "baselines",
        "group mean: rounding of equal scores",
        "shifted = only(scored, score - groups.lowest(score, scored)[groups.index])",
        "shifted = only(scored, score)",
    ),
    Mutant("baselines", "leave one out: not scaled", "* size / (size - 1).clamp(min=1)", ""),
    Mutant(
        "baselines",
        "group s.d.: ddof swapped",
        "(groups.size - ddof).clamp(min=1)).sqrt()",
        "(groups.size - (1 - ddof)).clamp(min=1)).sqrt()",
    ),
    Mutant(
        "baselines",
        "batch s.d.: ddof swapped",
        "(mask.sum() - ddof).clamp(min=1)).sqrt()",
        "(mask.sum() - (1 - ddof)).clamp(min=1)).sqrt()",
    ),
    Mutant("baselines", "group of one passes", "if bool(single.any()):", "if bool(single.all()):"),
    Mutant(
        "baselines",
        "weights: sign of β",
        "below = only(scored, beta * score +",
        "below = only(scored, -beta * score +",
    ),
    Mutant(
        "baselines",
        "weights: not times G",
        "weight * (groups.size / groups.sum(weight)",
        "weight * (1 / groups.sum(weight)",
    ),
    Mutant(
        "baselines",
        "row score counts padding",
        "return only(valid, reward).sum(dim=1)",
        "return reward.sum(dim=1)",
    ),
    Mutant(
        "parts",
        "running baseline moves before it is used",
        'advantage = value - state["baseline"]',
        "advantage = value - float(mean)",
    ),
    Mutant(
        "parts",
        "running baseline: sign",
        'advantage = value - state["baseline"]',
        'advantage = value + state["baseline"]',
    ),
    Mutant(
        "parts",
        "target of the critic is scaled",
        "target = advantage + only(batch.valid, batch.value)",
        "target = advantage * 1.1 + only(batch.valid, batch.value)",
    ),
    Mutant(
        "parts",
        "GAE: not centred",
        "only(mask, (advantage - mean) / (spread + eps))",
        "only(mask, advantage / (spread + eps))",
    ),
    Mutant(
        "parts",
        "critic's advantage on group check",
        "_require(self.dual is None or self.dual > 1,",
        "_require(True,",
    ),
    Mutant(
        "algorithm",
        "KL in the reward: sign",
        "only(batch.valid, batch.reward) - self.kl.coefficient * estimate",
        "only(batch.valid, batch.reward) + self.kl.coefficient * estimate",
    ),
    Mutant(
        "algorithm",
        "KL in the loss: sign",
        "terms = terms + self.kl.coefficient * penalty",
        "terms = terms - self.kl.coefficient * penalty",
    ),
    Mutant(
        "algorithm",
        "KL times a detached ratio",
        "objectives.log_ratio(logp, old, mask).exp()\n            terms",
        "objectives.log_ratio(logp, old, mask).exp().detach()\n            terms",
    ),
    Mutant(
        "algorithm",
        "entropy: sign",
        "terms = terms - self.entropy_coefficient",
        "terms = terms + self.entropy_coefficient",
    ),
    Mutant(
        "algorithm",
        "critic: sign",
        "total = total + self.value_coefficient",
        "total = total - self.value_coefficient",
    ),
    Mutant(
        "algorithm", "rows not kept carry loss", "return count(batch.loss_mask)", "return count(batch.valid)"
    ),
    Mutant(
        "algorithm",
        "loss over all valid steps",
        "mask, old = batch.loss_mask, _old_logp(batch)",
        "mask, old = batch.valid, _old_logp(batch)",
    ),
    Mutant(
        "algorithm",
        "old logp is always the sampler's",
        "return batch.logp if batch.old_logp is None else batch.old_logp",
        "return batch.logp",
    ),
    Mutant("algorithm", "importance weight dropped", "terms = terms * weight", "terms = terms * 1"),
    Mutant(
        "algorithm", "preparing keeps gradients", "    @torch.no_grad()\n    def prepare", "    def prepare"
    ),
    Mutant(
        "algorithm", "critic without values passes", "if self.needs_critic and not has_critic:", "if False:"
    ),
    Mutant(
        "algorithm",
        "G = 1 passes",
        "if self.needs_groups and group < 2:",
        "if self.needs_groups and group < 1:",
    ),
    Mutant(
        "batch", "steps that carry no loss become rows", "self.loss_mask.flatten()", "self.valid.flatten()"
    ),
    Mutant(
        "batch", "steps mixed up", ".repeat_interleave(self.logp.shape[1])", ".repeat(self.logp.shape[1])"
    ),
    Mutant(
        "algorithm",
        "minibatches scaled over all valid",
        "mask = minibatch.loss_mask",
        "mask = minibatch.valid",
    ),
    Mutant("kernels", "compiled clip dropped", "held if flat else free", "free"),
    Mutant("kernels", "compiled surrogate: sign", "d_logp[i] = -free", "d_logp[i] = free"),
    Mutant("kernels", "compiled score: sign", "d_logp[i] = -a", "d_logp[i] = a"),
    Mutant("kernels", "compiled critic: half the slope", "d_value[i] = error + error", "d_value[i] = error"),
    Mutant("kernels", "clipped value always moves", "abs(moved) <= value_clip", "True"),
    Mutant("fused", "compiled entropy: sign", "- entropy_weight * sums[7]", "+ entropy_weight * sums[7]"),
    Mutant("fused", "compiled entropy: slope", "mul_(-entropy_weight)", "mul_(entropy_weight)"),
    Mutant("fused", "weight of the loss forgotten", "each * outputs[0] for each", "each for each"),
]


def red_tests(folder: Path) -> list[str]:
    """Names of the tests that are red on the copy of the sources, three at most."""
    environment = os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    files = [str(ROOT / "tests" / "core" / f"test_{name}.py") for name in TESTS]
    options = ["--maxfail=3", "--tb=no", "-q", "-rfE", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise RuntimeError(f"pytest could not run: {result.stdout[-2000:]}{result.stderr[-2000:]}")
    return re.findall(r"^(?:FAILED|ERROR) \S*?test_(\S+)", result.stdout, flags=re.MULTILINE)


def run(mutant: Mutant, folder: Path) -> list[str]:
    """Tests that go red with the mutant in place; 'gone' where its line is not there exactly once."""
    path = folder / "src" / "outdo" / "core" / f"{mutant.file}.py"
    original = path.read_text()
    if original.count(mutant.old) != 1:
        return ["gone"]
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        return red_tests(folder)
    finally:
        path.write_text(original)


def main() -> int:
    """Run the chosen mutants; 1 if any survived or is gone."""
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.what}" for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        if red := red_tests(folder):
            raise SystemExit(f"tests are red without a mutant: {', '.join(red)}")
        for mutant in chosen:
            red = run(mutant, folder)
            survived = not red or red == ["gone"]
            survivors += survived
            verdict = ", ".join(red[:2]) if red else "SURVIVED"
            print(f"{'!!' if survived else 'ok'}  {mutant.file:10}  {mutant.what:45}  {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants went red")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
