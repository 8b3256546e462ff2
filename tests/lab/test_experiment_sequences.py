"""F17 and F18: the runs, what they must show, and a core that is broken."""

import pytest
import torch
from outcomes import outcome, outside, run

from outdo.core import objectives
from outdo.lab.exact import tabular
from outdo.lab.experiments import sequences, signs


@pytest.mark.parametrize("name", ["sequences", "signs"])
def test_all_figures_agree(name):
    assert outside(outcome(name).figures) == set()


def test_seeds_side_by_side_are_runs_of_their_own(monkeypatch):
    monkeypatch.setattr(sequences, "STEPS", 30)
    monkeypatch.setattr(sequences.baselines, "groups_without_signal", lambda batch: (0, 1))
    drawn = torch.Generator().manual_seed(5)
    right = tabular.draw

    def mirrored(logits, generator):
        # Both seeds get the same draws: what the second learns must be what the first does.
        half = logits[: len(logits) // 2]
        return right(half, generator).repeat(2, 1)

    monkeypatch.setattr(tabular, "draw", mirrored)
    two, reward, _ = sequences.learn(2, drawn)
    assert torch.equal(two[:12], two[12:])
    assert torch.equal(reward[0], reward[1])
    monkeypatch.setattr(tabular, "draw", right)
    one, alone, _ = sequences.learn(1, drawn.manual_seed(5))
    torch.testing.assert_close(alone[0], reward[0])
    torch.testing.assert_close(one, two[:12], rtol=1e-4, atol=1e-4)


def test_without_the_clip_the_row_on_it_is_red(monkeypatch):
    def unclipped(logp, old_logp, advantage, mask, *_):
        return -(logp - old_logp).exp() * advantage, torch.zeros_like(mask)

    monkeypatch.setattr(objectives, "clipped", unclipped)
    assert "largest gradient of a token past the clip" in outside(
        sequences.past_the_clip(torch.Generator().manual_seed(0))
    )


def test_a_flipped_objective_unlearns(monkeypatch):
    right = objectives.clipped

    def flipped(*args):
        loss, flat = right(*args)
        return -loss, flat

    monkeypatch.setattr(objectives, "clipped", flipped)
    _, reward, _ = sequences.learn(2, torch.Generator().manual_seed(0))
    assert reward[:, 0].mean() > 0.15
    assert reward[:, -10:].mean() < 0.05


def test_the_library_detaches_what_it_is_handed(monkeypatch):
    monkeypatch.setattr(objectives, "reinforce", lambda logp, advantage, mask: -logp * advantage)
    red = outside(run("signs").figures)
    assert "expected direction, as it must be" in red
    assert "as it must be: the policy does better (1: yes)" in red
    assert "expected direction, advantage not detached" not in red


def test_a_flipped_sign_is_red(monkeypatch):
    right = objectives.reinforce
    monkeypatch.setattr(objectives, "reinforce", lambda *args: -right(*args))
    red = outside(run("signs").figures)
    assert {"expected direction, as it must be", "expected direction, sign flipped"} <= red


def test_a_detach_by_hand():
    # One sample at μ = 0, noise 1: a = 1, score −1, critic J = −5, A = 4, log π = −½ − ½ log 2π = −1.418939.
    # With A constant: A · (a − μ) = 4. Differentiated too: + log π · ∂(−(a − 2)²)/∂a = −1.418939 · 2.
    mean, noise = torch.zeros(1, dtype=torch.float64).requires_grad_(), torch.ones(1, dtype=torch.float64)
    batch, logp = signs.drive(mean, noise)
    right = torch.autograd.grad(
        objectives.reinforce(logp, batch.advantage, batch.valid).sum(), mean, retain_graph=True
    )
    wrong = torch.autograd.grad(-(logp * batch.advantage).sum(), mean)
    assert -right[0].item() == pytest.approx(4)
    assert -wrong[0].item() == pytest.approx(4 - 2 * 1.418939, abs=1e-5)
