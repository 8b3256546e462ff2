"""The language-model head in chunks: log-probabilities of chosen tokens, never the whole logits tensor.

Axes: M positions whose next token is scored, H hidden units, V vocabulary.

With z = W h / temperature and p = softmax(z), the gradient of log p(y) is rank one in the token's own
coefficient: d log p(y) / dz = e_y - p. So the backward pass of a chunk needs one recomputed product and no
elementwise pass over [M, V] beyond the softmax: dW = -(P^T (c * h)) + scatter(c * h), dh = c * (W_y - P W).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outdo.language.sampling import Sampling

CHUNK_ELEMENTS = 1 << 24
"""Logits held at a time: rows are taken in chunks of about this many elements."""


@dataclass(frozen=True, slots=True)
class Head:
    """A linear head: `weight` [V, H] and optional `bias` [V], in the dtype the product is computed in."""

    weight: Tensor
    bias: Tensor | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [M, V] of `hidden` [M, H], in the weight's dtype."""
        return F.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def chunk(self) -> int:
        """Rows that make one chunk."""
        return max(1, CHUNK_ELEMENTS // self.weight.shape[0])


def restrict(logits: Tensor, sampling: Sampling, keep: Tensor | None = None) -> Tensor:
    """Logits of the distribution that is sampled: tempered, tokens outside top-k and top-p at -inf, [M, V].

    In float32 where anything is changed, else as given.

    `keep` [M] names tokens that stay in whatever the cut says: a token that was sampled under slightly other
    numerics (another dtype, another batch) keeps a finite log-probability.
    """
    if sampling.greedy:
        raise ValueError("greedy decoding has no distribution: ask for the argmax of the logits")
    if sampling.temperature != 1.0:
        logits = logits.float() / sampling.temperature
    if not sampling.top_k and sampling.top_p == 1.0:
        return logits
    logits = logits.float()
    outside = torch.zeros_like(logits, dtype=torch.bool)
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        outside |= logits < logits.topk(sampling.top_k, dim=-1).values[:, -1:]
    if sampling.top_p < 1.0:
        ordered, index = logits.masked_fill(outside, -torch.inf).sort(dim=-1, descending=True)
        probability = ordered.softmax(dim=-1)
        before = probability.cumsum(dim=-1) - probability
        outside |= (before >= sampling.top_p).gather(-1, index.argsort(dim=-1))
    if keep is not None:
        outside.scatter_(-1, keep[:, None], False)
    return logits.masked_fill(outside, -torch.inf)


def score(
    hidden: Tensor, head: Head, target: Tensor, sampling: Sampling, *, entropy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Log-probability [M] of `target` [M] and, if asked, entropy [M] in nats, of the sampled distribution; no graph."""
    logps: list[Tensor] = []
    entropies: list[Tensor] = []
    size = head.chunk()
    for start in range(0, len(target), size):
        y = target[start : start + size]
        z = restrict(head.logits(hidden[start : start + size]), sampling, y)
        log_p = z.log_softmax(dim=-1, dtype=torch.float32)
        logps.append(log_p.gather(-1, y[:, None]).squeeze(-1))
        if entropy:
            entropies.append(torch.special.entr(log_p.exp_()).sum(dim=-1))
    logp = torch.cat(logps) if logps else hidden.new_zeros(0, dtype=torch.float32)
    return logp, (torch.cat(entropies) if entropies else torch.zeros_like(logp)) if entropy else None


def score_backward(
    hidden: Tensor,
    head: Head,
    target: Tensor,
    sampling: Sampling,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
    add_weight: Callable[[Tensor], None] | None,
    add_bias: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Gradient [M, H] in float32 of `score` by `hidden`; the weight's and bias's go to `add_weight`, `add_bias` in pieces.

    dz = c (e_y - p) / temperature for the log-probability, and -g p (log p + entropy) / temperature for the entropy.
    """
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    dtype, scale, size = head.weight.dtype, 1.0 / sampling.temperature, head.chunk()
    wanted = grad_logp != 0 if grad_entropy is None else (grad_logp != 0) | (grad_entropy != 0)
    chosen = wanted.nonzero().squeeze(-1)  # positions without a coefficient cost nothing
    for rows in chosen.split(size):
        h, y = hidden[rows].to(dtype), target[rows]
        c = (grad_logp[rows] * scale)[:, None]
        z = restrict(head.logits(h), sampling, y)
        if grad_entropy is None:
            p = z.softmax(dim=-1).to(dtype)
            weighted = (h * c).to(dtype)
            out[rows] = c * (head.weight[y].float() - (p @ head.weight).float())
            if add_weight is not None:
                minus = torch.mm(p.t(), weighted).neg_()
                minus.index_add_(0, y, weighted)
                add_weight(minus)
            if add_bias is not None:
                bias = -(p.float().t() @ c).squeeze(-1)
                add_bias(bias.index_add_(0, y, c.squeeze(-1)))
            continue
        p = z.softmax(dim=-1, dtype=torch.float32)
        logp = p.log().masked_fill_(p == 0, 0.0)
        entropy = -(p * logp).sum(dim=-1, keepdim=True)
        dz = -p * (c + (grad_entropy[rows] * scale)[:, None] * (logp + entropy))
        dz.scatter_add_(-1, y[:, None], c)
        if add_bias is not None:
            add_bias(dz.sum(dim=0))
        dz = dz.to(dtype)
        out[rows] = (dz @ head.weight).float()
        if add_weight is not None:
            add_weight(torch.mm(dz.t(), h))
    return out


class _Score(torch.autograd.Function):
    """`score` with a gradient by hidden, weight and bias, each computed in chunks."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, sampling, dtype):  # noqa: ANN001, ANN205
        head = Head(weight.to(dtype), None if bias is None else bias.to(dtype))
        ctx.save_for_backward(hidden, weight, target, *(() if bias is None else (bias,)))
        ctx.sampling, ctx.dtype = sampling, dtype
        return score(hidden, head, target, sampling)

    @staticmethod
    def backward(ctx, grad_logp, grad_entropy):  # noqa: ANN001, ANN205
        hidden, weight, target, *rest = ctx.saved_tensors
        bias = rest[0] if rest else None
        head = Head(weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype))
        dw = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        db = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        no_entropy = grad_entropy is None or not bool((grad_entropy != 0).any())
        dh = score_backward(
            hidden,
            head,
            target,
            ctx.sampling,
            grad_logp,
            None if no_entropy else grad_entropy,
            None if dw is None else dw.add_,
            None if db is None else db.add_,
        )
        return dh.to(hidden.dtype), dw, db, None, None, None


def differentiable_score(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    sampling: Sampling,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """`score` under autograd: log-probability [M] and entropy [M], product computed in `dtype`."""
    logp, entropy = _Score.apply(hidden, weight, bias, target, sampling, dtype)
    return logp, entropy
