"""The policy-gradient facts, exactly: enumeration of an MDP, bandits in closed form, two small runs."""

import numpy as np
import pytest
import torch

from oracles import enumerate_trajectories, exact_gradient, grid_world, values
from outdo.core import kl, objectives, returns
from outdo.core.batch import Batch
from outdo.core.parts import GroupMean
from outdo.core.presets import algorithm_from, preset
from outdo.core.protocols import Evaluation

LOGITS = torch.tensor([[0.2, -0.4], [0.7, 0.1], [-0.3, 0.5]], dtype=torch.float64)


def all_rows(gamma=1.0):
    """Every trajectory of the MDP as one batch."""
    every = enumerate_trajectories(grid_world())
    cut = torch.zeros_like(every.state, dtype=torch.bool)
    cut[:, -1] = True
    discount = torch.where(cut, 0.0, gamma).double()
    return Batch(
        obs=every.state,
        action=every.action,
        logp=every.logp(LOGITS),
        reward=every.reward,
        discount=discount,
        cut=cut,
        valid=torch.ones_like(cut),
        group=torch.zeros(len(every.start), dtype=torch.int64),
    )


def per_trajectory(advantage):
    """Gradient of each trajectory's REINFORCE ascent direction `[N, S, A]`, and probabilities `[N]`."""
    every = enumerate_trajectories(grid_world())
    probability = every.probability(LOGITS)
    gradients = []
    for row in range(len(probability)):
        table = LOGITS.clone().requires_grad_()
        mask = torch.ones_like(advantage, dtype=torch.bool)
        (-objectives.reinforce(every.logp(table), advantage, mask))[row].sum().backward()
        gradients.append(table.grad)
    return torch.stack(gradients), probability


def mean_of(gradients, probability):
    return (gradients * probability[:, None, None]).sum(dim=0)


def variance_of(gradients, probability):
    centred = gradients - mean_of(gradients, probability)
    return (centred.square().sum(dim=(1, 2)) * probability).sum().item()


def test_enumeration_is_complete():
    assert enumerate_trajectories(grid_world()).probability(LOGITS).sum().item() == pytest.approx(1)


def test_f2_f3_reward_to_go_has_the_exact_gradient_and_less_variance():
    batch = all_rows()
    exact = exact_gradient(grid_world(), LOGITS, 1.0)
    episode = per_trajectory(returns.episode_return(batch.reward, batch.discount, batch.cut, batch.valid))
    to_go = per_trajectory(returns.reward_to_go(batch.reward, batch.discount, batch.cut, batch.valid))
    torch.testing.assert_close(mean_of(*episode), exact)
    torch.testing.assert_close(mean_of(*to_go), exact)
    assert variance_of(*to_go) < 0.8 * variance_of(*episode)


def test_f3_with_discounting_the_episode_return_is_exact():
    batch = all_rows(0.9)
    gradient = per_trajectory(returns.episode_return(batch.reward, batch.discount, batch.cut, batch.valid))
    torch.testing.assert_close(mean_of(*gradient), exact_gradient(grid_world(), LOGITS, 0.9))


def test_a_state_baseline_is_unbiased_and_gae_with_the_true_critic_is_exact_for_every_lambda():
    batch, truth = all_rows(), values(grid_world(), LOGITS)
    value = torch.stack([truth[t, batch.obs[:, t]] for t in range(3)], dim=1)
    after = returns.next_values(value, torch.zeros_like(value), batch.cut, batch.valid)
    exact = exact_gradient(grid_world(), LOGITS, 1.0)
    variances = []
    for lam in (1.0, 0.5, 0.0):
        advantage = returns.gae(batch.reward, value, after, batch.discount, batch.cut, batch.valid, lam)
        gradient = per_trajectory(advantage)
        torch.testing.assert_close(mean_of(*gradient), exact)
        variances.append(variance_of(*gradient))
    to_go = per_trajectory(returns.reward_to_go(batch.reward, batch.discount, batch.cut, batch.valid))
    assert variances[0] < 0.7 * variance_of(*to_go)
    assert max(variances[1:]) < variances[0]


def test_an_action_dependent_baseline_is_biased():
    batch = all_rows()
    to_go = returns.reward_to_go(batch.reward, batch.discount, batch.cut, batch.valid)
    gradient = per_trajectory(to_go - batch.action)
    assert (mean_of(*gradient) - exact_gradient(grid_world(), LOGITS, 1.0)).abs().max() > 0.05


def bandit_gradients(payouts, baseline):
    """Ascent gradient on logit B for a sample of each arm, logits (0, 0)."""
    samples = []
    for arm in (0, 1):
        logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        advantage = torch.full((1, 1), payouts[arm] - baseline, dtype=torch.float64)
        logp = torch.log_softmax(logits, dim=-1)[:, arm : arm + 1]
        objectives.reinforce(logp, advantage, torch.ones_like(logp, dtype=torch.bool)).sum().backward()
        samples.append(-logits.grad[0, 1].item())
    return samples


@pytest.mark.parametrize(
    ("payouts", "baseline", "expected"),
    [((10, 11), 0, [-5, 5.5]), ((10, 11), 10.5, [0.25, 0.25]), ((6, 14), 0, [-3, 7]), ((6, 14), 10, [2, 2])],
)
def test_f4_bandit(payouts, baseline, expected):
    assert bandit_gradients(payouts, baseline) == pytest.approx(expected)


@pytest.mark.parametrize(("baseline", "spread"), [(0, 7.8125**0.5), (5.5, 0.5)])
def test_f5_spread_of_one_sample_estimates(baseline, spread):
    # The gradient is ±½(payout + noise − b); noise of variance 1 adds ¼ to the variance over the arms.
    samples = bandit_gradients((5, 6), baseline)
    assert np.mean(samples) == pytest.approx(0.25)
    assert (np.var(samples) + 0.25) ** 0.5 == pytest.approx(spread)


def bandit_run(algorithm, seed, steps=2000):
    """REINFORCE on arms paying 10 and 11 with noise 2, rate .05; the better arm's last probability."""
    rng = np.random.default_rng(seed)
    logits, state = torch.zeros(2, dtype=torch.float64), algorithm.initial_state()
    one = torch.ones(1, 1, dtype=torch.bool)
    for _ in range(steps):
        table = logits.clone().requires_grad_()
        logp = torch.log_softmax(table, dim=0)
        arm = int(rng.random() < logp[1].exp().item())
        reward = torch.tensor([[10.0 + arm + 2 * rng.normal()]], dtype=torch.float64)
        batch = Batch(
            obs=one,
            action=one,
            logp=logp[arm].detach()[None, None],
            reward=reward,
            discount=torch.zeros_like(reward),
            cut=one,
            valid=one,
            group=torch.zeros(1, dtype=torch.int64),
        )
        batch, state = algorithm.prepare(batch, state)
        algorithm.loss(batch, Evaluation(logp[arm][None, None]), algorithm.counts(batch)).total.backward()
        logits = logits - 0.05 * table.grad
    return torch.softmax(logits, dim=0)[1].item()


def test_f6_the_running_baseline_finds_the_better_arm():
    algorithm = preset("reinforce_baseline").algorithm
    assert np.mean([bandit_run(algorithm, seed, steps=1000) for seed in range(3)]) > 0.85


def test_f15_bandit_run_digit_for_digit():
    rng = np.random.default_rng(0)
    means, logits = np.array([0.2, 0.5, 0.8, 0.3]), np.zeros(4)
    one = torch.ones(8, 1, dtype=torch.bool)
    printed = {}
    for step in range(201):
        policy = np.exp(logits - logits.max())
        policy /= policy.sum()
        if step in (0, 20, 50, 200):
            printed[step] = np.round(policy, 2).tolist()
        actions = rng.choice(4, size=8, p=policy)
        reward = torch.from_numpy(means[actions] + 0.1 * rng.normal(size=8))[:, None]
        batch = Batch(
            obs=one,
            action=one,
            logp=torch.zeros_like(reward),
            reward=reward,
            discount=torch.zeros_like(reward),
            cut=one,
            valid=one,
            group=torch.zeros(8, dtype=torch.int64),
        )
        table = torch.from_numpy(logits).requires_grad_()
        prepared, _ = GroupMean(eps=1e-8).compute(batch, {})
        logp = torch.log_softmax(table, dim=0)[torch.from_numpy(actions)][:, None]
        objectives.reinforce(logp, prepared.advantage, one).mean().backward()
        logits = logits - 0.5 * table.grad.numpy()
    assert printed == {
        0: [0.25, 0.25, 0.25, 0.25],
        20: [0.02, 0.04, 0.91, 0.02],
        50: [0, 0.01, 0.99, 0],
        200: [0, 0, 1, 0],
    }


def test_f17_grpo_learns_token_sequences():
    torch.manual_seed(0)
    target = torch.tensor([[1, 3, 0, 2], [2, 2, 1, 0], [0, 1, 3, 3]])
    logits = torch.zeros(3, 4, 4, requires_grad=True)
    start = logits.detach().clone()
    optimiser = torch.optim.Adam([logits], lr=0.1)
    algorithm = algorithm_from({"preset": "grpo", "update": {"epochs": 2}})
    prompt = torch.arange(3).repeat_interleave(8)
    cut = torch.arange(4).expand(24, 4) == 3
    for _ in range(150):
        action = torch.distributions.Categorical(logits=logits.detach()[prompt]).sample()

        def logp_of(table, action=action):
            return torch.log_softmax(table[prompt], dim=-1).gather(-1, action[..., None])[..., 0]

        matches = (action == target[prompt]).float().mean(dim=1, keepdim=True)
        batch = Batch(
            obs=prompt,
            action=action,
            logp=logp_of(logits).detach(),
            reward=torch.where(cut, matches, 0.0),
            discount=torch.where(cut, 0.0, 1.0),
            cut=cut,
            valid=torch.ones_like(cut),
            group=prompt,
            ref_logp=logp_of(start),
        )
        batch, _ = algorithm.prepare(batch)
        for _ in range(algorithm.update.epochs):
            optimiser.zero_grad()
            algorithm.loss(batch, Evaluation(logp_of(logits)), algorithm.counts(batch)).total.backward()
            optimiser.step()
    chance = torch.softmax(logits.detach(), dim=-1).gather(-1, target[..., None]).mean().item()
    assert chance > 0.9


@pytest.mark.parametrize(
    "table", [{"kind": "in_loss", "estimator": "k2"}, {"kind": "in_reward", "estimator": "k1"}]
)
def test_kl_sign_one_step_lowers_the_kl_to_the_reference(table):
    # Zero advantages from the task, β large: E over all actions of one step on the loss.
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    algorithm = algorithm_from(
        {
            "advantage": {"kind": "return"},
            "objective": {"kind": "reinforce", "reduce": "token_sum"},
            "kl": {**table, "coefficient": 5.0},
        }
    )
    logits = policy.log().requires_grad_()
    for action in range(3):
        one = torch.ones(1, 1, dtype=torch.bool)
        logp = torch.log_softmax(logits, dim=0)[action][None, None]
        batch = Batch(
            obs=one,
            action=one,
            logp=logp.detach(),
            reward=torch.zeros(1, 1, dtype=torch.float64),
            discount=torch.zeros(1, 1, dtype=torch.float64),
            cut=one,
            valid=one,
            group=torch.zeros(1, dtype=torch.int64),
            ref_logp=reference[action].log()[None, None],
        )
        batch, _ = algorithm.prepare(batch)
        loss = algorithm.loss(batch, Evaluation(logp), algorithm.counts(batch)).total
        (policy[action] * loss).backward()
    before = kl.exact(policy.log(), reference.log())
    expected = 5 * torch.tensor([0.3207, -0.0825, -0.2382], dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=5e-4)
    assert kl.exact(policy.log() - 0.05 * logits.grad, reference.log()) < 0.9 * before
