"""F1 to F7: within tolerance, exact values by hand, and rows that turn red where the core is broken."""

import math

import pytest
import torch
from outcomes import outcome, outside, run

from outdo.core import baselines, kl, objectives, returns
from outdo.core.threads import threads
from outdo.lab.experiment import Scale
from outdo.lab.experiments import baseline_noise, causality, gae, running_baseline
from outdo.lab.registry import experiments

NAMES = ["returns", "causality", "theorem", "baseline", "baseline_noise", "running_baseline", "gae"]


@pytest.fixture(autouse=True)
def one_thread():
    with threads(1):
        yield


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """What is said of learning with a running baseline holds after 300 steps, too."""
    monkeypatch.setattr(running_baseline, "STEPS", 300)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_within(name):
    assert outside(outcome(name).figures) == set()


def flipped(function):
    return lambda *args, **settings: -function(*args, **settings)


def undiscounted(reward, value, next_value, discount, cut, valid, lam):
    return REAL["returns.gae"](reward, value, next_value, (discount > 0).to(discount.dtype), cut, valid, lam)


def short_sighted(reward, value, next_value, discount, cut, valid, lam):
    return REAL["returns.gae"](reward, value, next_value, discount, cut, valid, lam * lam)


def undetached(logp, advantage, mask):
    """The advantage times the probability, as where a ratio is forgotten."""
    return -torch.where(mask, advantage * logp.exp(), 0.0)


REAL = {
    "returns.gae": returns.gae,
    "returns.episode_return": returns.episode_return,
    "objectives.reinforce": objectives.reinforce,
    "baselines.group_std": baselines.group_std,
    "kl.estimate": kl.estimate,
}
MODULES = {"returns": returns, "objectives": objectives, "baselines": baselines, "kl": kl}


@pytest.mark.parametrize(
    ("name", "target", "broken", "red"),
    [
        (
            "returns",
            "returns.gae",
            flipped,
            {"G_0 of (0, 0, 0, 10), γ = 0.9", "G_0 of (1, 5, 0, 0), γ = 0.8"},
        ),
        ("returns", "returns.gae", lambda real: undiscounted, {"the same 10 one step earlier"}),
        ("causality", "objectives.reinforce", flipped, {"grid world, whole return: error of E[ĝ]"}),
        (
            "causality",
            "returns.episode_return",
            lambda real: returns.reward_to_go,
            {"chain, whole return: total variance", "chain: reward-to-go varies less (1: yes)"},
        ),
        ("theorem", "objectives.reinforce", flipped, {"∂J/∂logit s0→", "∂J/∂logit s1→"}),
        ("theorem", "returns.gae", lambda real: undiscounted, {"∂J/∂logit s1→"}),
        ("baseline", "objectives.reinforce", flipped, {"payouts 6 and 14, b = 10: mean"}),
        ("baseline", "objectives.reinforce", lambda real: undetached, {"payouts 10 and 11, b = 0: arm B"}),
        (
            "baseline_noise",
            "objectives.reinforce",
            flipped,
            {"b = 5.5: mean, seed 0", "no baseline: hump of arm 0"},
        ),
        (
            "baseline_noise",
            "returns.gae",
            lambda real: lambda *a: 1.1 * real(*a),
            {"no baseline: s.d., seed 0"},
        ),
        (
            "running_baseline",
            "objectives.reinforce",
            flipped,
            {"most probability ends on the better arm (1: yes)", "baseline held at 0: slower (1: yes)"},
        ),
        ("gae", "returns.gae", flipped, {"bias, λ = 0", "bias, λ = 0.9"}),
        ("gae", "returns.gae", lambda real: short_sighted, {"s.d., λ = 0.99", "s.d., λ = 0.9"}),
        ("group", "baselines.group_std", lambda real: lambda s, g, m, ddof=0: real(s, g, m, 1 - ddof), set()),
        ("kl", "kl.estimate", flipped, {"k1 mean"}),
    ],
)
def test_a_broken_core_turns_rows_red(monkeypatch, name, target, broken, red):
    module, _, function = target.partition(".")
    monkeypatch.setattr(MODULES[module], function, broken(REAL[target]))
    found = outside(run(name).figures)
    assert found
    assert red <= found


@pytest.mark.parametrize("name", [name for name in NAMES if name != "running_baseline"])
def test_names_of_figures_do_not_depend_on_the_scale(name):
    few = experiments()[name].run(Scale(seeds=2)).figures
    assert [figure.name for figure in few] == [figure.name for figure in outcome(name).figures]


def test_the_published_numbers_are_there():
    published = {
        name: [figure.published for figure in outcome(name).figures if figure.published is not None]
        for name in NAMES
    }
    assert published["returns"] == [7.29, 8.1, 3.56, 5.0, 1.5625]
    assert published["baseline"] == [-5, 5.5, 0.25, 10.5, 0.25, 0.25, 0.25, 0, -3, 7, 2, 2]
    assert {2.78, 0.5, 0.25, -2.5, 3} <= set(published["baseline_noise"])
    assert published["gae"] == [-0.31, 0.31, -0.27, 0.7, -0.06, 1.24, -0.01, 1.36]
    assert published["running_baseline"] == [1, 1, 1]


def test_seeded_spreads_have_the_published_digits():
    shown = {figure.name: figure.measured for figure in outcome("baseline_noise").figures}
    assert f"{shown['no baseline: s.d., seed 0']:.2f}" == "2.78"
    assert f"{shown['b = 5.5: s.d., seed 0']:.2f}" == "0.50"


def test_exact_values_of_gae_by_hand():
    # λ = 1: 20 independent noises of 0.3, and the errors at both ends cancel. λ = 0: one noise, the whole error.
    assert gae.exact_spread(1.0) == pytest.approx(0.3 * math.sqrt(20))
    assert gae.exact_spread(0.0) == pytest.approx(0.3)
    assert gae.exact_bias(1.0) == 0
    assert gae.exact_bias(0.0) == pytest.approx(-0.3)
    # The stated closed form, 0.3·√((1 − λ^40)/(1 − λ²)).
    assert gae.exact_spread(0.9) == pytest.approx(0.3 * math.sqrt((1 - 0.9**40) / (1 - 0.81)))


def test_exact_spreads_of_the_noisy_bandit_by_hand():
    # Without a baseline E[ĝ²] = ¼·(½(25 + 1) + ½(36 + 1)) = 7.875; less (¼)². With b = 5.5: ¼·(¼ + 1) − 1/16 = ¼.
    assert baseline_noise.BASELINES[0.0][1] == pytest.approx(math.sqrt(7.875 - 0.0625))
    assert baseline_noise.BASELINES[5.5][1] == pytest.approx(math.sqrt(0.3125 - 0.0625))


def test_variances_on_the_chain_by_hand():
    # One logit of a step with n flips ahead: ¼·E[G²] − 1/16, E[G²] = n/4 + n²/4. n = 6: ¼·10.5 − 1/16 = 2.5625.
    assert causality.VARIANCE["whole return"] == pytest.approx(12 * 2.5625)
    # n = 1 … 6: ¼·(0.5, 1.5, 3, 5, 7.5, 10.5) − 1/16, twice: 2·(7 − 0.375).
    assert causality.VARIANCE["reward-to-go"] == pytest.approx(2 * (28 / 4 - 6 / 16))
