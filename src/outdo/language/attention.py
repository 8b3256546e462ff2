"""Attention over a packed piece: roots attend to themselves, branches to their root and themselves.

Axes: N packed tokens, G roots of P steps, R rows of C branch steps, H query and K key/value heads, E head size,
L keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outdo.language.packing import Packed

DENSE_SCORES = 1 << 25
"""Attention scores up to this many elements are held as one tensor (fastest on a CPU); beyond it they are fused."""


class Part:
    """One padded part of a piece, its roots or its branches: where its tokens are and what they may see."""

    def __init__(self, index: Tensor, total: int, mask: Tensor) -> None:
        flat = index.reshape(-1)
        self.index = index.clamp(
            max=total - 1
        )  # padding repeats the last token; nothing reads what it computes
        self.real = (flat < total).nonzero().squeeze(-1)
        self.at = flat[self.real]
        self.full = len(self.at) == len(flat)
        self.mask = mask  # [rows, 1, steps, L]
        self.bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)

    def gather(self, packed: Tensor) -> Tensor:
        """Packed [N, heads, E] to padded [rows, heads, steps, E]."""
        return self._spread(packed.index_select(0, self.index.view(-1)))

    def scatter(self, padded: Tensor, packed: Tensor) -> None:
        """Padded [rows, heads, steps, E] into its places in `packed` [N, heads, E]."""
        flat = padded.transpose(1, 2).flatten(0, 1)
        packed.index_copy_(0, self.at, flat if self.full else flat.index_select(0, self.real))

    def gather_gradient(self, packed: Tensor) -> Tensor:
        """As `gather`, with 0 at padding, so that padding has no gradient."""
        real = packed.index_select(0, self.at)
        if not self.full:
            real = packed.new_zeros(self.index.numel(), *packed.shape[1:]).index_copy_(0, self.real, real)
        return self._spread(real)

    def _spread(self, flat: Tensor) -> Tensor:
        return flat.view(*self.index.shape, *flat.shape[1:]).transpose(1, 2)


@dataclass(slots=True)
class Operands:
    """Query [rows, H, steps, E], key and value [rows, K, L, E] of one part, and once computed its dense weights."""

    part: Part
    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor | None = None


class Layout:
    """Both parts of a piece, and the attention they take part in."""

    def __init__(self, packed: Packed, heads: int, kv_heads: int, padded: int) -> None:
        self.heads, self.kv_heads, self.rows = heads, kv_heads, packed.row_root
        total, device = len(packed.tokens), packed.tokens.device
        self.total, self.padded = total, padded  # what the tensors hold beyond `total` is padding
        reach = torch.arange(packed.root.shape[1], device=device) < packed.root_lengths[:, None]
        own = [
            torch.ones(n, n, dtype=torch.bool, device=device).tril()
            for n in (packed.root.shape[1], packed.branch.shape[1])
        ]
        self.roots = Part(packed.root, total, own[0].expand(1, 1, -1, -1))
        steps, count = packed.branch.shape[1], len(packed.branch)
        seen = reach[self.rows][:, None].expand(count, steps, -1)
        mask = torch.cat((seen, own[1].expand(count, -1, -1)), dim=2)[:, None]
        self.branches = Part(packed.branch, total, mask) if steps else None
        branch_scores = 0 if self.branches is None else mask.numel()
        self.scores = heads * (packed.root.numel() * packed.root.shape[1] + branch_scores)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        return q, k, v

    def operands(self, qkv: Tensor) -> list[Operands]:
        """What attention is computed from, of roots and branches, for query, key and value [N, H + 2K, E]."""
        roots = Operands(self.roots, *self._split(self.roots.gather(qkv)))
        if self.branches is None:
            return [roots]
        q, k, v = self._split(self.branches.gather(qkv))
        k, v = torch.cat((roots.k[self.rows], k), dim=2), torch.cat((roots.v[self.rows], v), dim=2)
        return [roots, Operands(self.branches, q, k, v)]

    def attend(self, operands: list[Operands]) -> Tensor:
        """Attention output [N, H * E]."""
        out = operands[0].q.new_empty(self.padded, self.heads, operands[0].q.shape[3])
        out[self.total :] = 0
        for of_part in operands:
            of_part.part.scatter(attention(of_part), out)
        return out.flatten(1)

    def attend_backward(self, operands: list[Operands], grad: Tensor) -> Tensor:
        """Gradient [N, H + 2K, E] by query, key and value."""
        grad = grad.view(self.padded, self.heads, -1)
        out = grad.new_empty(self.padded, self.heads + 2 * self.kv_heads, grad.shape[2])
        out[self.total :] = 0
        root, *branch = operands
        dq, dk, dv = attention_backward(root, self.roots.gather_gradient(grad))
        for of_part in branch:
            dcq, dkeys, dvalues = attention_backward(of_part, of_part.part.gather_gradient(grad))
            shared = root.k.shape[2]
            dk = dk.float().index_add_(0, self.rows, dkeys[:, :, :shared].float()).to(dk.dtype)
            dv = dv.float().index_add_(0, self.rows, dvalues[:, :, :shared].float()).to(dv.dtype)
            of_part.part.scatter(torch.cat((dcq, dkeys[:, :, shared:], dvalues[:, :, shared:]), dim=1), out)
        self.roots.scatter(torch.cat((dq, dk, dv), dim=1), out)
        return out


def _dense(q: Tensor, k: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= DENSE_SCORES


def attention(x: Operands) -> Tensor:
    """softmax(q k^T / sqrt(E) + mask) v, [rows, H, steps, E], for q of H heads and k, v of K heads."""
    if not _dense(x.q, x.k):
        gqa = x.q.shape[1] != x.k.shape[1]
        return F.scaled_dot_product_attention(x.q, x.k, x.v, attn_mask=x.part.mask, enable_gqa=gqa)
    x.weights = _weights(_group(x.q, x.k), x.k, x.part)
    return (x.weights.to(x.v.dtype) @ x.v).view_as(x.q)


def _group(q: Tensor, k: Tensor) -> Tensor:
    """Query heads that share a key/value head, as query positions: [rows, K, (H/K) * steps, E]."""
    return q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])


def _weights(q: Tensor, k: Tensor, part: Part) -> Tensor:
    """Attention weights [rows, K, (H/K) * steps, L] in float32."""
    products = q @ k.transpose(-1, -2)
    shape = (*products.shape[:2], -1, *part.bias.shape[-2:])
    scores = torch.add(part.bias[:, :, None], products.view(shape), alpha=1 / math.sqrt(q.shape[-1]))
    return scores.softmax(dim=-1).view(products.shape)


def attention_backward(x: Operands, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of `attention` by q, k and v, given `grad` [rows, H, steps, E]."""
    if not _dense(x.q, x.k):
        leaves = [each.detach().requires_grad_() for each in (x.q, x.k, x.v)]
        with torch.enable_grad():
            out = attention(Operands(x.part, *leaves))
        dq, dk, dv = torch.autograd.grad(out, leaves, grad)
        return dq, dk, dv
    grouped, grad = _group(x.q, x.k), _group(grad, x.k)
    weights = _weights(grouped, x.k, x.part) if x.weights is None else x.weights
    dweights = (grad @ x.v.transpose(-1, -2)).float()
    dscores = torch.ops.aten._softmax_backward_data(dweights, weights, -1, torch.float32)
    dscores = dscores.mul_(1 / math.sqrt(x.q.shape[-1])).to(x.q.dtype)
    dv = weights.to(x.v.dtype).transpose(-1, -2) @ grad
    return (dscores @ x.k).view_as(x.q), dscores.transpose(-1, -2) @ grouped, dv
