"""Returns, TD errors, GAE and λ-returns against hand arithmetic, closed forms, a plain loop and polgrad."""

import numpy as np
import polgrad
import pytest
import torch

from oracles import gae_by_loop
from outdo.core import returns


def row(*numbers, dtype=torch.float64):
    return torch.tensor([numbers], dtype=dtype)


def flags(*numbers):
    return torch.tensor([numbers], dtype=torch.bool)


ALL = flags(1, 1, 1, 1)
LAST = flags(0, 0, 0, 1)


def close(actual, expected):
    torch.testing.assert_close(actual, row(*expected))


def test_f1_discounted_returns_by_hand():
    # γ = 0.9: 10, 9, 8.1, 7.29.
    close(returns.reward_to_go(row(0, 0, 0, 10), row(0.9, 0.9, 0.9, 0), LAST, ALL), [7.29, 8.1, 9, 10])
    # γ = 0.8: 1 + 0.512·5 = 3.56; 1 + 0.8·5 = 5; the 5's share is 2.56 against 4 = 2.56 · 1.5625.
    discount = row(0.8, 0.8, 0.8, 0)
    assert returns.reward_to_go(row(1, 0, 0, 5), discount, LAST, ALL)[0, 0].item() == pytest.approx(3.56)
    assert returns.reward_to_go(row(1, 5, 0, 0), discount, LAST, ALL)[0, 0].item() == pytest.approx(5.0)
    assert pytest.approx(1 / 0.8**2) == (5 - 1) / (3.56 - 1)


def test_episode_return_is_g0_of_each_episode_and_skips_invalid_steps():
    # Episodes (1, 2) and (3, junk, 4) with γ = 0.5: G_0 = 1 + 0.5·2 = 2 and 3 + 0.5·4 = 5.
    got = returns.episode_return(
        row(1, 2, 3, float("nan"), 4), row(0.5, 0, 0.5, 9, 0), flags(0, 1, 0, 1, 1), flags(1, 1, 1, 0, 1)
    )
    close(got, [2, 2, 5, 0, 5])


def test_episode_return_when_a_row_begins_with_invalid_steps_and_ends_without_a_cut():
    got = returns.episode_return(row(7, 1, 7, 2), row(1, 1, 1, 1), flags(1, 0, 0, 0), flags(0, 1, 0, 1))
    close(got, [0, 3, 0, 3])


def test_reward_to_go_bootstraps_at_a_cut():
    got = returns.reward_to_go(row(1, 1), row(0.5, 0.5), flags(0, 1), flags(1, 1), next_value=row(99, 4))
    close(got, [1 + 0.5 * 3, 1 + 0.5 * 4])


def test_time_limit_is_not_death():
    # γ=.99, λ=.95, r=1, V=10, cut at t=1 with V(final)=10; the reset state has V=0 and must not matter.
    # A_1 = 1 + 9.9 − 10 = 0.9; A_0 = 0.9 + .9405·0.9 = 1.74645.
    args = (
        row(1, 1, 1),
        row(10, 10, 0),
        row(10, 10, 0),
        row(0.99, 0.99, 0.99),
        flags(0, 1, 1),
        flags(1, 1, 1),
    )
    close(returns.gae(*args, 0.95)[:, :2], [1.74645, 0.9])
    # Taken for a death, or with V(reset) = 0, it would be −9 and −7.5645: 0.9 + .9405·(−9).
    died = (*args[:2], row(10, 0, 0), row(0.99, 0, 0.99), *args[4:])
    close(returns.gae(*died, 0.95)[:, :2], [-7.5645, -9])


def test_bootstrap_is_the_value_of_the_final_observation():
    # 1 + .99·10 − 4 = 6.9; with V(s_t) = 4 in its place it would be 0.96.
    close(returns.gae(row(1), row(4), row(10), row(0.99), flags(1), flags(1), 0.95), [6.9])
    close(returns.td_error(row(1), row(4), row(10), row(0.99), flags(1)), [6.9])


def test_end_of_an_episode_is_read_at_its_own_step():
    # The episode ends at t=1 with r = −5; V(reset) = 100 belongs to t=2 and must not reach t=1.
    got = returns.gae(
        row(0, -5, 0), row(0, 0, 100), row(0, 0, 0), row(0.99, 0, 0.99), flags(0, 1, 1), flags(1, 1, 1), 1
    )
    close(got[:, 1:2], [-5])


def test_a_reset_row_weighs_nothing():
    # t=1 ends an episode, t=2 is the reset row of next-step autoreset: whatever it holds, nothing changes.
    reward, value, after = row(1, 2, 0, 3), row(5, 6, 0, 7), row(6, 0, 0, 8)
    args = (row(0.9, 0, 0.9, 0.9), flags(0, 1, 0, 1), flags(1, 1, 0, 1))
    clean = returns.gae(reward, value, after, *args, 0.9)
    junk = torch.tensor([[False, False, True, False]])
    dirty = [x.masked_fill(junk, float("nan")) for x in (reward, value, after)]
    torch.testing.assert_close(returns.gae(*dirty, *args, 0.9), clean, rtol=0, atol=0)
    assert clean[0, 2] == 0


def test_recursion_carries_across_invalid_steps():
    # Dropping the invalid steps from the row gives the same advantages as marking them.
    reward, value, after = row(1, 9, 9, 2), row(3, 9, 9, 4), row(4, 9, 9, 0)
    long = returns.gae(reward, value, after, row(0.9, 9, 9, 0), flags(0, 1, 1, 1), flags(1, 0, 0, 1), 0.8)
    short = returns.gae(row(1, 2), row(3, 4), row(4, 0), row(0.9, 0), flags(0, 1), flags(1, 1), 0.8)
    # A_1 = 2 − 4 = −2; A_0 = 1 + .9·4 − 3 + .72·(−2) = 0.16.
    close(short, [0.16, -2])
    close(long, [0.16, 0, 0, -2])


def test_next_values_skip_invalid_steps_and_read_the_final_value_at_cuts():
    got = returns.next_values(
        row(1, 9, 2, 3, 9), row(10, 20, 30, 40, 50), flags(0, 1, 1, 0, 0), flags(1, 0, 1, 1, 0)
    )
    close(got, [2, 0, 30, 40, 0])


def random_case(seed, rows, steps, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def noise():
        return torch.randn(rows, steps, generator=generator, dtype=dtype)

    def chance(p):
        return torch.rand(rows, steps, generator=generator) < p

    discount = torch.where(chance(0.1), 0.0, 0.97).to(dtype)
    return noise(), noise(), noise(), discount, chance(0.2), chance(0.8)


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 17), (9, 64)])
@pytest.mark.parametrize("form", [returns.gae, returns.gae_torch])
def test_both_forms_equal_the_definition(form, shape, lam):
    case = random_case(1, *shape)
    expected = gae_by_loop(*(x.numpy() for x in case), lam)
    np.testing.assert_allclose(form(*case, lam).numpy(), expected, rtol=1e-10, atol=1e-12)


def test_float32_kernel_equals_the_torch_form_and_keeps_the_type():
    case = random_case(2, 10, 33, torch.float32)
    got = returns.gae(*case, 0.95)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, returns.gae_torch(*case, 0.95))


def test_kernel_takes_views():
    case = random_case(3, 12, 10)
    views = tuple(x.T[:, ::2] for x in case)
    torch.testing.assert_close(returns.gae(*views, 0.9), returns.gae_torch(*views, 0.9))


def test_empty_batches_pass():
    assert returns.gae(*random_case(0, 0, 4), 0.9).shape == (0, 4)
    assert returns.gae(*random_case(0, 3, 0), 0.9).shape == (3, 0)


def test_gae_is_differentiable_in_the_critic():
    reward, value, after, discount, cut, valid = random_case(4, 2, 6)
    value.requires_grad_()
    after.requires_grad_()
    reward.requires_grad_()
    torch.autograd.gradcheck(
        lambda r, v, n: returns.gae(r, v, n, discount, cut, valid, 0.9), (reward, value, after)
    )


@pytest.mark.parametrize("form", [returns.gae, returns.gae_torch])
def test_junk_at_invalid_steps_has_no_influence(form):
    case = random_case(5, 6, 20)
    clean = form(*case, 0.9)
    for junk in (float("nan"), float("inf"), 1e30):
        dirty = [torch.where(case[5], x, junk) for x in case[:4]]
        torch.testing.assert_close(form(*dirty, ~case[5] | case[4], case[5], 0.9), clean, rtol=0, atol=0)


@pytest.mark.parametrize("form", [returns.gae, returns.gae_torch])
def test_nothing_leaks_back_across_a_cut(form):
    reward, value, after, discount, _, valid = random_case(6, 4, 8)
    valid = torch.ones_like(valid)
    cut = torch.zeros_like(valid)
    cut[:, 3] = True
    before = form(reward, value, after, discount, cut, valid, 0.9)
    later = form(reward + (torch.arange(8) > 3) * 100, value, after, discount, cut, valid, 0.9)
    torch.testing.assert_close(later[:, :4], before[:, :4], rtol=0, atol=0)
    assert (later[:, 4:] != before[:, 4:]).any()


def test_lambda_extremes():
    reward, value, after, discount, cut, valid = random_case(7, 5, 9)
    delta = returns.td_error(reward, value, after, discount, valid)
    torch.testing.assert_close(returns.gae(reward, value, after, discount, cut, valid, 0.0), delta)
    # λ=1 telescopes to the bootstrapped return minus V where next_value is the next step's value.
    cut[:, -1] = True
    after = returns.next_values(value, after, cut, valid)
    # A row whose last valid step is no cut bootstraps there as well.
    last = valid & (valid.flip(1).cumsum(1).flip(1) == 1)
    monte_carlo = returns.reward_to_go(reward, discount, cut | last, valid, after)
    expected = torch.where(valid, monte_carlo - value, 0.0)
    torch.testing.assert_close(returns.gae(reward, value, after, discount, cut, valid, 1.0), expected)


def test_lambda_return_by_hand():
    # G_1 = 2 + .5·6 = 5; G_0 = 1 + .5·(.2·4 + .8·5) = 3.4 with λ = .8.
    got = returns.lambda_return(row(1, 2), row(9, 4), row(4, 6), row(0.5, 0.5), flags(0, 1), flags(1, 1), 0.8)
    close(got, [3.4, 5])


@pytest.mark.parametrize("lam", [0.0, 0.9, 0.99, 1.0])
def test_f7_bias_and_spread_of_the_first_advantage(lam):
    # 20 steps, γ=1, true values 0, critic −0.3 on states 1 … 19; A_0 is linear in the rewards, so its bias is
    # A_0 at zero rewards and its s.d. 0.3·√Σ (∂A_0/∂r_k)².
    value = torch.full((1, 20), -0.3, dtype=torch.float64)
    value[0, 0] = 0
    after = torch.cat([value[:, 1:], torch.zeros(1, 1, dtype=torch.float64)], dim=1)
    discount = torch.ones(1, 20, dtype=torch.float64)
    discount[0, -1] = 0
    cut = torch.arange(20)[None] == 19
    reward = torch.zeros(1, 20, dtype=torch.float64, requires_grad=True)
    first = returns.gae(reward, value, after, discount, cut, torch.ones_like(cut), lam)[0, 0]
    first.backward()
    spread = 0.3 * (20 if lam == 1 else (1 - lam**40) / (1 - lam**2)) ** 0.5
    assert first.item() == pytest.approx(-0.3 * (1 - lam**19), abs=1e-12)
    assert 0.3 * reward.grad.square().sum().sqrt().item() == pytest.approx(spread)
    published = {0.0: (-0.300, 0.300), 0.9: (-0.2595, 0.683), 0.99: (-0.0521, 1.224), 1.0: (0, 1.342)}
    assert (first.item(), spread) == pytest.approx(published[lam], abs=5e-4)


def test_gae_equals_polgrad():
    reward, value, *_ = random_case(8, 4, 6)
    valid = torch.arange(6) < torch.tensor([[1], [3], [6], [4]])
    cut = valid & (valid.flip(1).cumsum(1).flip(1) == 1)
    discount = torch.where(cut, 0.0, 0.98).double()
    after = returns.next_values(value, torch.zeros_like(value), cut, valid)
    advantage, target = polgrad.gae(
        reward, value, config=polgrad.GAEConfig(gamma=0.98, lam=0.9), response_mask=valid
    )
    args = (reward, value, after, discount, cut, valid, 0.9)
    torch.testing.assert_close(returns.gae(*args), advantage)
    torch.testing.assert_close(returns.lambda_return(*args), target)


def test_shapes_must_agree():
    case = list(random_case(0, 2, 3))
    for i in range(6):
        wrong = [x[:, :1] if i == j else x for j, x in enumerate(case)]
        with pytest.raises(ValueError, match="equal shapes"):
            returns.gae(*wrong, 0.9)
    with pytest.raises(ValueError, match="equal shapes"):
        returns.next_values(case[0], case[1][:, :1], case[4], case[5])
