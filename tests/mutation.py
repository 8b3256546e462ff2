"""Mutation check of `outdo.core`: break one line at a time, and demand that a test of `tests/core` goes red.

Run `python tests/mutation.py [WORD ...]` (only mutants whose file or description contains one of the words).
Works on a temporary copy of `src/`, on which the tests must be green first. Prints a table of mutants and the
first test that went red, and exits with 1 if a mutant survived, or is gone because its line has changed. Each
mutant has a fork of this process, in which the libraries are imported already, and the package is not yet.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
import torch

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
    "rewards",
    "statistics",
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
        "scaled = (advantage - mean) / (spread + eps)",
        "scaled = advantage / (spread + eps)",
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
    Mutant("fused", "compiled entropy: sign", "- self.entropy * sums[7]", "+ self.entropy * sums[7]"),
    Mutant("fused", "compiled entropy: slope", "mul_(-settings.entropy", "mul_(settings.entropy"),
    Mutant("fused", "weight of the loss forgotten", "each * outputs[0] for each", "each for each"),
    Mutant(
        "rewards",
        "weight dropped",
        "parts = [(weights[name], terms[name][row])",
        "parts = [(1.0, terms[name][row])",
    ),
    Mutant(
        "rewards",
        "terms of weight 0 decide",
        "weighted = [name for name in terms if weights[name] != 0]",
        "weighted = list(terms)",
    ),
    Mutant(
        "rewards",
        "a term applies to every group",
        "for name in weighted if (name, group) in applies]",
        "for name in weighted]",
    ),
    Mutant(
        "rewards",
        "a row that a term cannot score",
        "if known and len(known) == len(parts) else None",
        "if known else None",
    ),
    Mutant(
        "rewards",
        "a row without any term is worth 0",
        "if known and len(known) == len(parts) else None",
        "if len(known) == len(parts) else None",
    ),
    Mutant("rewards", "failed rows keep a total", "total[failure.row] = None", "pass"),
    Mutant("rewards", "failures of weight 0 drop rows", "if weights[failure.term] != 0:", "if True:"),
    Mutant(
        "rewards",
        "not finite passes",
        "(float(item), None) if math.isfinite(item) else",
        "(float(item), None) if True else",
    ),
    Mutant(
        "rewards", "failures never stop", 'if problem is not None and term.on_error == "stop":', "if False:"
    ),
    Mutant("rewards", "length of the list unchecked", "if len(result) != count:", "if False:"),
    Mutant(
        "rewards",
        "warned of no signal always",
        "if len(total) > 1 and len(known) <= 1:",
        "if len(total) > 1:",
    ),
    Mutant("statistics", "Wilson: centre not moved", "centre = rate + z * z / (2 * trials)", "centre = rate"),
    Mutant("statistics", "Wilson: both ends above", "(centre - spread) / scale", "(centre + spread) / scale"),
    Mutant("statistics", "pass@k: its complement", "return 1.0 - math.comb(", "return math.comb("),
    Mutant(
        "statistics",
        "clusters: values count as independent",
        "size = float(count) if variance == 0 else min(count, mean * (1 - mean) / variance)",
        "size = float(count)",
    ),
    Mutant(
        "statistics",
        "clusters: M instead of M − 1",
        "len(clusters) / (len(clusters) - 1) * squares",
        "squares",
    ),
    Mutant(
        "statistics",
        "interquartile mean: border in whole",
        "low, high = len(values) / 4, len(values) * 3 / 4",
        "low, high = len(values) // 4, -(-len(values) * 3 // 4)",
    ),
    Mutant("statistics", "mean: divisor n", "for x in values) / nu)", "for x in values) / len(values))"),
    Mutant("statistics", "bootstrap: one-sided tail", "tail = (1 - confidence) / 2", "tail = 1 - confidence"),
]


class FirstRed:
    """A plugin of pytest that remembers the first test, or file of tests, that went red."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note a failure of set-up, test or tear-down."""
        if report.failed and not self.name:
            self.name = report.nodeid.rpartition("/test_")[2]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file of tests that cannot be imported."""
        self.pytest_runtest_logreport(report)


def first_red(mutated: str) -> str:
    """The first test that goes red on the copy of the sources in `sys.path`, tests of `mutated` first; or ''."""
    names = sorted(TESTS, key=lambda name: name != mutated)  # stable: the others keep their order
    files = [str(ROOT / "tests" / "core" / f"test_{name}.py") for name in names]
    first = FirstRed()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        code = pytest.main(["-x", "--tb=no", "-p", "no:cacheprovider", *files], plugins=[first])
    if not first.name and code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not run: {code!r}")
    return first.name


def run(mutant: Mutant, core: Path, processes: Pool) -> str:
    """The test that goes red with the mutant in place; 'gone' where its line is not there exactly once."""
    path = core / f"{mutant.file}.py"
    original, stamp = path.read_text(), path.stat()
    if original.count(mutant.old) != 1:
        return "gone"
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        return processes.apply(first_red, (mutant.file,))
    finally:
        path.write_text(original)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # so that compiled kernels stay valid


def main() -> int:
    """Run the chosen mutants; 1 if any survived or is gone."""
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.what}" for word in words)]
    survivors = 0
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    for library in ("numba", "polgrad"):
        import_module(library)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        sys.path.insert(0, str(source))
        with get_context("fork").Pool(1, maxtasksperchild=1) as processes:
            if red := processes.apply(first_red, ("",)):
                raise SystemExit(f"a test is red without a mutant: {red}")
            for mutant in chosen:
                red = run(mutant, source / "outdo" / "core", processes)
                survived = red in ("", "gone")
                survivors += survived
                mark, verdict = "!!" if survived else "ok", red or "SURVIVED"
                print(f"{mark}  {mutant.file:10}  {mutant.what:45}  {verdict}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants went red")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
