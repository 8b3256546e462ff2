"""Attention over a packed piece: roots attend to themselves, branches to their root and themselves.

Axes: N packed tokens, G roots of P steps, R rows of C branch steps, H query and K key/value heads, E head size,
L keys.
"""

from __future__ import annotations

import math

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
        self.mask = mask  # [rows, 1, steps, L]
        self.bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)

    def gather(self, packed: Tensor) -> Tensor:
        """Packed [N, heads, E] to padded [rows, heads, steps, E]."""
        return packed[self.index].transpose(1, 2)

    def scatter(self, padded: Tensor, packed: Tensor) -> None:
        """Padded [rows, heads, steps, E] into its places in `packed` [N, heads, E]."""
        packed[self.at] = padded.transpose(1, 2).flatten(0, 1)[self.real]

    def gather_gradient(self, packed: Tensor) -> Tensor:
        """As `gather`, with 0 at padding, so that padding has no gradient."""
        out = packed.new_zeros(self.index.numel(), *packed.shape[1:])
        out[self.real] = packed[self.at]
        return out.view(*self.index.shape, *packed.shape[1:]).transpose(1, 2)


class Layout:
    """Both parts of a piece, and the attention they take part in."""

    def __init__(self, packed: Packed, heads: int, kv_heads: int) -> None:
        self.heads, self.kv_heads, self.rows = heads, kv_heads, packed.row_root
        total, device = len(packed.tokens), packed.tokens.device
        self.total = total  # what the tensors hold beyond it is padding
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

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        return q, k, v

    def attend(self, qkv: Tensor) -> Tensor:
        """Attention output [N, H * E] of query, key and value [N, H + 2K, E]."""
        out = qkv.new_empty(len(qkv), self.heads, qkv.shape[2])
        out[self.total :] = 0
        q, k, v = self._split(self.roots.gather(qkv))
        self.roots.scatter(attention(q, k, v, self.roots), out)
        if self.branches is not None:
            q, ck, cv = self._split(self.branches.gather(qkv))
            k, v = torch.cat((k[self.rows], ck), dim=2), torch.cat((v[self.rows], cv), dim=2)
            self.branches.scatter(attention(q, k, v, self.branches), out)
        return out.flatten(1)

    def attend_backward(self, qkv: Tensor, grad: Tensor) -> Tensor:
        """Gradient [N, H + 2K, E] by query, key and value; the attention is recomputed, not stored."""
        grad = grad.view(len(qkv), self.heads, -1)
        out = torch.empty_like(qkv)
        out[self.total :] = 0
        q, k, v = self._split(self.roots.gather(qkv))
        dq, dk, dv = attention_backward(q, k, v, self.roots, self.roots.gather_gradient(grad))
        if self.branches is not None:
            cq, ck, cv = self._split(self.branches.gather(qkv))
            keys, values = torch.cat((k[self.rows], ck), dim=2), torch.cat((v[self.rows], cv), dim=2)
            dcq, dkeys, dvalues = attention_backward(
                cq, keys, values, self.branches, self.branches.gather_gradient(grad)
            )
            shared = k.shape[2]
            dk = dk.float().index_add_(0, self.rows, dkeys[:, :, :shared].float()).to(dk.dtype)
            dv = dv.float().index_add_(0, self.rows, dvalues[:, :, :shared].float()).to(dv.dtype)
            self.branches.scatter(torch.cat((dcq, dkeys[:, :, shared:], dvalues[:, :, shared:]), dim=1), out)
        self.roots.scatter(torch.cat((dq, dk, dv), dim=1), out)
        return out


def _dense(q: Tensor, k: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] <= DENSE_SCORES


def attention(q: Tensor, k: Tensor, v: Tensor, part: Part) -> Tensor:
    """softmax(q k^T / sqrt(E) + mask) v, [rows, H, steps, E], for q of H heads and k, v of K heads."""
    if not _dense(q, k):
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=part.mask, enable_gqa=gqa)
    return (_weights(_group(q, k), k, part).to(v.dtype) @ v).view_as(q)


def _group(q: Tensor, k: Tensor) -> Tensor:
    """Query heads that share a key/value head, as query positions: [rows, K, (H/K) * steps, E]."""
    return q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])


def _weights(q: Tensor, k: Tensor, part: Part) -> Tensor:
    """Attention weights [rows, K, (H/K) * steps, L] in float32."""
    products = q @ k.transpose(-1, -2)
    shape = (*products.shape[:2], -1, *part.bias.shape[-2:])
    scores = torch.add(part.bias[:, :, None], products.view(shape), alpha=1 / math.sqrt(q.shape[-1]))
    return scores.softmax(dim=-1).view(products.shape)


def attention_backward(
    q: Tensor, k: Tensor, v: Tensor, part: Part, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of `attention` by q, k and v, given `grad` [rows, H, steps, E]."""
    if not _dense(q, k):
        leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad():
            out = attention(leaves[0], leaves[1], leaves[2], part)
        dq, dk, dv = torch.autograd.grad(out, leaves, grad)
        return dq, dk, dv
    grouped, grad = _group(q, k), _group(grad, k)
    weights = _weights(grouped, k, part)
    dweights = (grad @ v.transpose(-1, -2)).float()
    dscores = torch.ops.aten._softmax_backward_data(dweights, weights, -1, torch.float32)
    dscores = dscores.mul_(1 / math.sqrt(q.shape[-1])).to(q.dtype)
    dv = weights.to(v.dtype).transpose(-1, -2) @ grad
    return (dscores @ k).view_as(q), dscores.transpose(-1, -2) @ grouped, dv
