"""F19: models and bytes against hand arithmetic, and a critic that is forgotten."""

from outcomes import outcome, outside, run

from outdo.core.algorithm import Algorithm


def test_all_figures_agree():
    assert outside(outcome("memory").figures) == set()


def test_rlhf_ppo_holds_four_models():
    assert outcome("memory").plots[0].panels[0].ticks == ["policy", "reference", "reward model", "critic"]


def test_grpo_has_no_critic():
    assert outcome("memory").plots[0].panels[2].ticks == ["policy", "reference"]


def test_a_forgotten_critic_is_red(monkeypatch):
    monkeypatch.setattr(Algorithm, "needs_critic", False)
    assert outside(run("memory").figures) == {"models in memory, RLHF-PPO", "bytes per parameter, RLHF-PPO"}
