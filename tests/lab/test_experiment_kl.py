"""F10 and F11: the rows agree, and a broken estimator or placement turns the right ones red."""

import math

import pytest
from outcomes import names, outcome, outside, run

from outdo.core import kl, objectives
from outdo.core.algorithm import Algorithm


def measured(name):
    return {figure.name: figure for figure in outcome(name).figures}


@pytest.mark.parametrize("name", ["kl", "kl_gradient"])
def test_all_figures_agree(name):
    assert outside(outcome(name).figures) == set()


def test_the_exact_values_by_hand():
    # .6 log(.6/.4) + .3 log(.3/.4) + .1 log(.1/.2) = .6 · .405465 − .3 · .287682 − .1 · .693147 = .087660
    assert measured("kl")["true KL"].exact == pytest.approx(0.087660, abs=1e-6)
    # E[k1²] = .6 · .164402 + .3 · .082761 + .1 · .480453 = .171515; k2 is half of it, the s.d. √(.171515 − .007684)
    assert measured("kl")["k2 mean"].exact == pytest.approx(0.085757, abs=1e-6)
    assert measured("kl")["k1 s.d."].exact == pytest.approx(math.sqrt(0.163831), abs=1e-5)


def test_the_gradients_by_hand():
    # ∂KL/∂logit_a = π(a) (log π(a)/π_ref(a) − KL): .5 (.916291 − .274887) = .320702 for the first.
    found = measured("kl_gradient")
    assert found["∇ k2 in the loss, logit 1"].measured == pytest.approx(0.320702, abs=1e-6)
    # ∇KL(π_ref‖π) = π − π_ref = (.3, 0, −.3)
    assert found["∇ k3 in the loss, logit 3"].measured == pytest.approx(-0.3)


@pytest.mark.parametrize(
    ("estimator", "factor", "red"),
    [("k1", -1.0, "k1 mean"), ("k2", 2.0, "k2 mean"), ("k3", 1.1, "k3 mean"), ("k3", 1.1, "k3 s.d.")],
)
def test_a_wrong_estimator_turns_its_values_red(monkeypatch, estimator, factor, red):
    right = kl.estimate

    def wrong(logp, ref_logp, mask, name):
        return right(logp, ref_logp, mask, name) * (factor if name == estimator else 1.0)

    monkeypatch.setattr(kl, "estimate", wrong)
    assert red in outside(run("kl").figures)


def test_k3_in_place_of_k2_turns_its_gradient_red(monkeypatch):
    right = kl.estimate
    monkeypatch.setattr(kl, "estimate", lambda *args: right(*args[:3], "k3" if args[3] == "k2" else args[3]))
    assert names(outcome("kl_gradient").figures, "∇ k2 in the loss") <= outside(run("kl_gradient").figures)


def test_a_kl_that_never_reaches_the_reward_is_red(monkeypatch):
    monkeypatch.setattr(Algorithm, "prepare", lambda self, batch: self.advantage.compute(batch, {}))
    red = outside(run("kl_gradient").figures)
    assert red == names(outcome("kl_gradient").figures, "∇ k1 in the reward")


def test_a_ratio_without_gradient_is_red(monkeypatch):
    right = objectives.log_ratio
    monkeypatch.setattr(objectives, "log_ratio", lambda *args: right(*args).detach())
    red = outside(run("kl_gradient").figures)
    assert names(outcome("kl_gradient").figures, "∇ k1 × ratio") <= red
    assert names(outcome("kl_gradient").figures, "∇ k3 × ratio") <= red
