"""The language-model head in chunks: log-probabilities of chosen tokens, never the whole logits tensor.

Axes: M positions whose next token is scored, H hidden units, V vocabulary.

With z = W h / temperature and p = softmax(z), the gradient of log p(y) is rank one in the token's own
coefficient: d log p(y) / dz = e_y - p. So the backward pass of a chunk needs one recomputed product (none where
all rows are one chunk of float32, whose P is kept) and no elementwise pass over [M, V] beyond the softmax:
dW = -(P^T (c * h)) + scatter(c * h), dh = c * (W_y - P W).
"""

# torch calls the two methods of an autograd function with its own signature.
# pyright: reportMissingParameterType=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outdo.language.sampling import Sampling

CHUNK_ELEMENTS = 1 << 24
"""Logits held at a time: rows are taken in chunks of about this many elements."""
SINK_ROWS = 1 << 13
"""Rows of the head's weight whose gradient is computed at a time."""

FEW = 256
"""Up to so many rows AMX is up to twice as fast with the weight on the left of the product."""


@dataclass(frozen=True, slots=True)
class Head:
    """A linear head, `weight` [V, H] and optional `bias` [V], in the dtype the product is computed in.

    `scale` and `cap` cover the models that bend their logits: z = cap * tanh(scale * (W h + b) / cap).
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [M, V] of `hidden` [M, H]: in the weight's dtype for a plain head, else in float32."""
        hidden = hidden.to(self.weight.dtype)
        if len(hidden) <= FEW and self.weight.dtype == torch.bfloat16 and self.weight.device.type == "cpu":
            z = (self.weight @ hidden.t()).t().contiguous()
            z = z if self.bias is None else z + self.bias
        else:
            z = F.linear(hidden, self.weight, self.bias)
        if self.plain:
            return z
        z = z.float() * self.scale
        return z if self.cap is None else self.cap * torch.tanh(z / self.cap)

    @property
    def plain(self) -> bool:
        """Whether the logits are the product itself."""
        return self.scale == 1.0 and self.cap is None

    def slope(self, logits: Tensor) -> Tensor | float:
        """Derivative of the logits by the product: scale * (1 - (z / cap)^2)."""
        return self.scale if self.cap is None else self.scale * (1 - (logits / self.cap).square())

    def chunk(self) -> int:
        """Rows that make one chunk."""
        return max(1, CHUNK_ELEMENTS // self.weight.shape[0])

    def part(self) -> int:
        """Rows scored at a time, a quarter chunk: three float32 tensors are held at once, backward two as computed."""
        return max(1, self.chunk() // 4)

    def keeps(self, rows: int) -> bool:
        """Whether the probabilities of `rows` rows are kept for the backward pass (`score_kept`)."""
        return self.plain and self.weight.dtype == torch.float32 and 0 < rows <= self.chunk()


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


def score(hidden: Tensor, head: Head, target: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Log-probability [M] of `target` [M] and entropy [M] in nats, of the sampled distribution; no graph."""
    none = hidden.new_zeros(0, dtype=torch.float32)
    scores = [(none, none)]
    for h, y in zip(hidden.split(head.part()), target.split(head.part()), strict=True):
        scores.append(_score(head.logits(h), y, sampling)[:2])
    return torch.cat([logp for logp, _ in scores]), torch.cat([entropy for _, entropy in scores])


def score_kept(
    hidden: Tensor, head: Head, target: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor, Tensor]:
    """`score` of one chunk, and the probabilities [M, V], of which `score_backward` need not compute the logits again.

    They take the place of the logits: in float32, of a plain head.
    """
    p = head.logits(hidden)
    few = max(1, head.part() // 4)  # beside the logits little room is taken
    scores: list[tuple[Tensor, Tensor]] = []
    for z, y in zip(p.split(few), target.split(few), strict=True):
        logp, entropy, z[:] = _score(z, y, sampling)
        scores.append((logp, entropy))
    return torch.cat([logp for logp, _ in scores]), torch.cat([entropy for _, entropy in scores]), p


def _score(z: Tensor, y: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy and probabilities by logits z [M, V]."""
    log_p = restrict(z, sampling, y).log_softmax(dim=-1, dtype=torch.float32)
    logp, p = log_p.gather(-1, y[:, None]).squeeze(-1), log_p.exp()
    if not sampling.top_k and sampling.top_p == 1.0:
        return logp, -log_p.mul_(p).sum(dim=-1), p
    # A token outside the cut has p log p = 0 times -inf, which entr knows to be 0.
    return logp, torch.special.entr(p).sum(dim=-1), p


@dataclass(frozen=True, slots=True)
class Sink:
    """Where gradients of the head's weight [V, H] and bias [V] are added; None where unwanted."""

    weight: Tensor | None
    bias: Tensor | None = None

    def add_product(self, dz: Tensor, h: Tensor) -> None:
        """Add dz^T h to the weight's gradient, for `dz` [M, V] and `h` [M, H]; some rows at a time if it is cast."""
        if self.weight is not None and self.weight.dtype == dz.dtype:
            self.weight.addmm_(dz.t(), h)
        elif self.weight is not None:
            for into, piece in zip(self.weight.split(SINK_ROWS), dz.split(SINK_ROWS, dim=1), strict=True):
                into.add_(piece.t() @ h)


def score_backward(
    hidden: Tensor,
    head: Head,
    target: Tensor,
    sampling: Sampling,
    grad_logp: Tensor,
    grad_entropy: Tensor | None,
    sink: Sink,
    kept: Tensor | None = None,
) -> Tensor:
    """Gradient [M, H] in float32 of `score` by `hidden`; the head's own goes to `sink`.

    `kept` are the probabilities [M, V] of `score_kept`, where the entropy has no gradient.
    Positions whose coefficients are 0 cost nothing: a group without signal has no backward pass.
    """
    out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    wanted = grad_logp != 0 if grad_entropy is None else (grad_logp != 0) | (grad_entropy != 0)
    for rows in wanted.nonzero().squeeze(-1).split(head.chunk()):
        h, y, c = hidden[rows].to(head.weight.dtype), target[rows], grad_logp[rows][:, None]
        if grad_entropy is None and head.plain:
            if kept is None:
                p = restrict(head.logits(h), sampling, y).softmax(dim=-1).to(h.dtype)
            else:
                p = kept if len(rows) == len(kept) else kept[rows]
            out[rows] = _logp_backward(h, head, y, p, c / sampling.temperature, sink)
        else:
            g = torch.zeros_like(c) if grad_entropy is None else grad_entropy[rows][:, None]
            out[rows] = _full_backward(h, head, y, sampling, c, g, sink)
    return out


def _logp_backward(h: Tensor, head: Head, y: Tensor, p: Tensor, c: Tensor, sink: Sink) -> Tensor:
    """The gradient c (e_y - p), whose coefficient is taken out of the product with P."""
    if sink.weight is not None:
        weighted = (h * c).to(h.dtype)
        sink.add_product(p, -weighted)
        sink.weight.index_add_(0, y, weighted.to(sink.weight.dtype))
    if sink.bias is not None:
        bias = -(p.float().t() @ c).squeeze(-1)
        sink.bias.add_(bias.index_add_(0, y, c.squeeze(-1)))
    return c * (head.weight[y].float() - (p @ head.weight).float())


def _full_backward(
    h: Tensor, head: Head, y: Tensor, sampling: Sampling, c: Tensor, g: Tensor, sink: Sink
) -> Tensor:
    """The gradient [c (e_y - p) - g p (log p + entropy)] slope / temperature, element by element."""
    raw = head.logits(h)
    p = restrict(raw, sampling, y).softmax(dim=-1, dtype=torch.float32)
    entropy = torch.special.entr(p).sum(dim=-1, keepdim=True)
    dz = g * (torch.special.entr(p) - p * entropy) - c * p
    dz = (dz.scatter_add_(-1, y[:, None], c) * head.slope(raw) / sampling.temperature).to(h.dtype)
    sink.add_product(dz, h)
    if sink.bias is not None:
        sink.bias.add_(dz.float().sum(dim=0))
    return (dz @ head.weight).float()


class _DifferentiableScore(torch.autograd.Function):
    """`score` with a gradient by hidden, weight and bias, each computed in chunks."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, sampling, head):  # noqa: ANN001, ANN205
        ctx.save_for_backward(hidden, weight, bias, target)
        ctx.sampling, ctx.head = sampling, head
        return score(hidden, head, target, sampling)

    @staticmethod
    def backward(ctx, grad_logp, grad_entropy):  # noqa: ANN001, ANN205
        hidden, weight, bias, target = ctx.saved_tensors
        dw = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        db = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        entropy = grad_entropy if bool((grad_entropy != 0).any()) else None
        dh = score_backward(hidden, ctx.head, target, ctx.sampling, grad_logp, entropy, Sink(dw, db))
        return dh.to(hidden.dtype), dw, db, None, None, None


def differentiable_score(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, sampling: Sampling, head: Head
) -> tuple[Tensor, Tensor]:
    """`score` under autograd: log-probability [M] and entropy [M].

    `weight` and `bias` are the parameters that take the gradient; `head` holds them in the compute dtype.
    """
    logp, entropy = _DifferentiableScore.apply(hidden, weight, bias, target, sampling, head)
    return logp, entropy
