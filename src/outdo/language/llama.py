"""A forward and backward pass of its own for Llama-shaped decoders (Llama, SmolLM, Mistral, Qwen2, Qwen3).

It computes what transformers computes, over packed tokens whose shared prompts are computed once, with the
weights of query, key and value (and gate and up) as one matrix each, and adds weight gradients straight into
one flat float32 buffer. Products run in the compute dtype, the residual stream and the norms in float32.
Equality with transformers' own forward and autograd is tested; `supports` says which configurations it covers.

Axes: N packed tokens, D hidden, H query heads, K key/value heads, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from outdo.language.attention import Layout, Operands
from outdo.language.elementwise import (
    column_norm,
    gated,
    gated_backward,
    rms_norm,
    rms_norm_backward,
)
from outdo.language.flat import FlatParameters
from outdo.language.packing import Packed

LLAMA_SHAPED = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `config.model_type` whose decoder this file computes."""

KEPT_SCORES = 1 << 22
"""Up to so many attention scores in all layers together are kept for the backward pass, not computed again."""


def supports(config: Any) -> str | None:
    """None if the fast path covers the model's configuration, else the reason why it does not."""
    if config.model_type not in LLAMA_SHAPED:
        return f"model type {config.model_type}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act}"
    if getattr(config, "mlp_bias", False):
        return "biases in the feed-forward block"
    if config.model_type in ("llama", "mistral") and getattr(config, "attention_bias", False):
        return "biases in attention"
    if config.model_type == "qwen3" and config.attention_bias:
        return "biases in attention"
    window = getattr(config, "sliding_window", None)
    if (
        window is not None
        and getattr(config, "use_sliding_window", True)
        and window < config.max_position_embeddings
    ):
        return "sliding-window attention"
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return "partial rotary embedding"
    if config.rope_parameters.get("rope_type", "default") in ("dynamic", "longrope"):
        return f"rotary scaling {config.rope_parameters['rope_type']}"
    return None


def flat_order(names: list[str]) -> list[str]:
    """Parameter names with query, key, value and gate, up next to each other, so that each set is one matrix."""
    return sorted(
        names, key=lambda name: (name.rsplit(".", 3)[0] if ".layers." in name else "", _rank(name), name)
    )


def _rank(name: str) -> int:
    parts = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias")
    parts += ("gate_proj.weight", "up_proj.weight")
    return next((i for i, part in enumerate(parts) if name.endswith(part)), len(parts))


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one decoder layer in the compute dtype (norms in float32), or the gradients in the same places."""

    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class _Saved:
    """What the backward pass of one layer needs of the forward pass; all but `x` in the compute dtype.

    `operands` is what attention was computed from, where that is small; elsewhere it comes from `qkv` again.
    """

    x: Tensor
    qkv: Tensor
    operands: list[Operands] | None
    attended: Tensor
    projected: Tensor
    gate_up: Tensor

    @property
    def middle(self) -> Tensor:
        """The residual stream between attention and feed-forward block, as the forward pass computed it."""
        return self.x + self.projected


class LlamaDecoder:
    """The body of a Llama-shaped model over a `FlatParameters` buffer: hidden states, and their backward pass."""

    def __init__(self, model: Any, flat: FlatParameters) -> None:
        config = model.config
        self.flat = flat
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.rotary = model.model.rotary_emb
        layers = range(config.num_hidden_layers)
        self.weights = [self._block(i, flat.weight) for i in layers]
        self.grads = [self._block(i, flat.grad) for i in layers] if flat.matrices.grad is not None else []
        self.embedding = flat.weight("model.embed_tokens.weight")
        self.norm = flat.weight("model.norm.weight")
        self._angles: tuple[Tensor, Tensor] | None = None

    def _block(self, index: int, span: Callable[..., Tensor]) -> Block:
        at = f"model.layers.{index}."
        attention = at + "self_attn."
        qkv = [attention + part for part in ("q_proj", "k_proj", "v_proj")]
        normed = attention + "q_norm.weight" in self.flat
        return Block(
            norm1=span(at + "input_layernorm.weight"),
            qkv=span(*(name + ".weight" for name in qkv)),
            qkv_bias=span(*(name + ".bias" for name in qkv)) if qkv[0] + ".bias" in self.flat else None,
            q_norm=span(attention + "q_norm.weight") if normed else None,
            k_norm=span(attention + "k_norm.weight") if normed else None,
            o=span(attention + "o_proj.weight"),
            norm2=span(at + "post_attention_layernorm.weight"),
            gate_up=span(at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"),
            down=span(at + "mlp.down_proj.weight"),
        )

    def angles(self, positions: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine [N, 1, E / 2] of the rotary embedding at `positions` [N], all below `count`."""
        if self._angles is None or self._angles[0].shape[0] < count:
            steps = torch.arange(max(count, 256), device=positions.device)[None]
            cos, sin = self.rotary(torch.zeros(1, dtype=torch.float32, device=positions.device), steps)
            half = self.head_size // 2  # transformers gives them twice, once for each half of a head
            self._angles = (cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous())
        return self._angles[0][positions], self._angles[1][positions]

    def _padded(self, tokens: Tensor) -> Tensor:
        """Packed tokens or positions with zeros up to N; nothing attends to what they stand for."""
        multiple = 32 if self.embedding.dtype == torch.bfloat16 else 1
        return F.pad(tokens, (0, -len(tokens) % multiple))

    def project(self, w: Block, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Normalise, project and rotate: query, key and value [N, H + 2K, E] of one layer."""
        qkv = self._raw_qkv(w, rms_norm(x, w.norm1, self.eps, w.qkv.dtype))
        return self._rotate(self._head_norm(w, qkv), cos, sin)

    def _raw_qkv(self, w: Block, normed: Tensor) -> Tensor:
        bias = None if w.qkv_bias is None else w.qkv_bias.to(normed.dtype)
        return F.linear(normed, w.qkv, bias).view(len(normed), self.heads + 2 * self.kv_heads, self.head_size)

    def _head_norm(self, w: Block, qkv: Tensor) -> Tensor:
        if w.q_norm is None or w.k_norm is None:
            return qkv
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q = rms_norm(q.float(), w.q_norm, self.eps, qkv.dtype)
        return torch.cat((q, rms_norm(k.float(), w.k_norm, self.eps, qkv.dtype), v), dim=1)

    def _rotate(self, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding of queries and keys; values pass. The same with -sin is its transpose."""
        turned, half = self.heads + self.kv_heads, self.head_size // 2
        first, second = qkv[:, :turned, :half], qkv[:, :turned, half:]
        out = torch.empty_like(qkv)
        torch.addcmul(first * cos, second, -sin, out=out[:, :turned, :half])
        torch.addcmul(second * cos, first, sin, out=out[:, :turned, half:])
        out[:, turned:] = qkv[:, turned:]
        return out

    def feed_forward(self, w: Block, middle: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output [N, D], and the gate and up projections [N, 2F] it came from."""
        gate_up = F.linear(rms_norm(middle, w.norm2, self.eps, w.gate_up.dtype), w.gate_up)
        return middle + F.linear(gated(gate_up), w.down), gate_up

    def column_qkv(self, w: Block, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`project` for a few tokens that are the columns of x [D, N], the weight on the left of the product."""
        flat = w.qkv @ column_norm(x, w.norm1, self.eps, w.qkv.dtype)
        if w.qkv_bias is not None:
            flat = flat + w.qkv_bias.to(flat.dtype)[:, None]
        qkv = flat.t().contiguous().view(x.shape[1], self.heads + 2 * self.kv_heads, self.head_size)
        return self._rotate(self._head_norm(w, qkv), cos, sin)

    def column_feed_forward(self, w: Block, middle: Tensor) -> Tensor:
        """`feed_forward` for columns [D, N]: the layer's output [D, N]."""
        gate, up = (w.gate_up @ column_norm(middle, w.norm2, self.eps, w.gate_up.dtype)).chunk(2)
        return middle + w.down @ F.silu(gate).mul_(up)

    def embed(self, tokens: Tensor, prefix: Tensor | None) -> Tensor:
        """Embeddings [N, D] in float32; ids from the vocabulary's end on are rows of `prefix` [P, D]."""
        if prefix is None:
            return self.embedding[tokens].float()
        beyond = tokens - len(self.embedding)
        own = beyond >= 0
        x = self.embedding[tokens.masked_fill(own, 0)].float()
        x[own] = prefix[beyond[own]]
        return x

    def forward(
        self, packed: Packed, prefix: Tensor | None = None, *, save: bool = False
    ) -> tuple[Tensor, list[_Saved], list[Tensor]]:
        """Hidden states [N, D] before the final norm, what `backward` needs, and each layer's [N, H + 2K, E].

        `prefix` [P, D] are embeddings of ids beyond the vocabulary (`embed`).
        In bfloat16 N is rounded up to a multiple of 32: products of other sizes take up to twice as long on AMX.
        The last list is given when nothing is saved: it holds the keys and values a decoding cache starts from.
        """
        cos, sin = self.angles(self._padded(packed.positions), packed.max_position)
        layout = Layout(packed, self.heads, self.kv_heads, len(cos))
        x = self.embed(self._padded(packed.tokens), prefix)
        kept = layout.scores * len(self.weights) <= KEPT_SCORES
        saved: list[_Saved] = []
        qkvs: list[Tensor] = []
        for w in self.weights:
            qkv = self.project(w, x, cos, sin)
            operands: list[Operands] | None = layout.operands(qkv)
            attended = layout.attend(operands)
            operands = operands if kept else None  # what is not kept makes room at once
            projected = F.linear(attended, w.o)
            after, gate_up = self.feed_forward(w, x + projected)
            if save:
                saved.append(_Saved(x, qkv, operands, attended, projected, gate_up))
            else:
                qkvs.append(qkv)
            x = after
        return x, saved, qkvs

    def final_norm(self, x: Tensor) -> Tensor:
        """Normalised hidden states [N, D] in float32."""
        return rms_norm(x, self.norm, self.eps, torch.float32)

    def final_norm_backward(self, x: Tensor, grad: Tensor) -> Tensor:
        """Gradient by the states before the final norm; the norm's own is added to the flat buffer."""
        return rms_norm_backward(x, self.norm, self.eps, grad, self.flat.grad("model.norm.weight"))

    def backward(
        self, packed: Packed, saved: list[_Saved], grad: Tensor, prefix_grad: Tensor | None = None
    ) -> None:
        """Add the gradient of every weight, given the loss's gradient `grad` [N, D] by the output of `forward`.

        That by the prefix is added to `prefix_grad` [P, D], where there was one. `saved` is consumed: each layer's
        entry is dropped as soon as it has been used.
        """
        cos, sin = self.angles(self._padded(packed.positions), packed.max_position)
        layout = Layout(packed, self.heads, self.kv_heads, len(cos))
        for w, g in zip(reversed(self.weights), reversed(self.grads), strict=True):
            kept = saved.pop()
            grad = self._feed_forward_backward(w, g, kept, grad)
            grad = self._attention_backward(w, g, kept, grad, layout, cos, sin)
        target, tokens = self.flat.grad("model.embed_tokens.weight"), packed.tokens
        grad = grad[: len(tokens)]
        if prefix_grad is not None:
            beyond = tokens - len(target)
            own = beyond >= 0
            prefix_grad.index_add_(0, beyond[own], grad[own])
            tokens, grad = tokens[~own], grad[~own]
        target.index_add_(0, tokens, grad)

    def _feed_forward_backward(self, w: Block, g: Block, kept: _Saved, grad: Tensor) -> Tensor:
        dtype = w.down.dtype
        dy = grad.to(dtype)
        active, dgate_up = gated_backward(kept.gate_up, dy @ w.down)
        add_product(g.down, dy, active)
        middle = kept.middle
        add_product(g.gate_up, dgate_up, rms_norm(middle, w.norm2, self.eps, dtype))
        dh = dgate_up @ w.gate_up
        return grad + rms_norm_backward(middle, w.norm2, self.eps, dh.float(), g.norm2)

    def _attention_backward(
        self, w: Block, g: Block, kept: _Saved, grad: Tensor, layout: Layout, cos: Tensor, sin: Tensor
    ) -> Tensor:
        dtype = w.o.dtype
        dy = grad.to(dtype)
        add_product(g.o, dy, kept.attended)
        operands = layout.operands(kept.qkv) if kept.operands is None else kept.operands
        dqkv = self._rotate(layout.attend_backward(operands, dy @ w.o), cos, -sin)
        normed = rms_norm(kept.x, w.norm1, self.eps, dtype)
        if w.q_norm is not None:
            dqkv = self._head_norm_backward(w, g, normed, dqkv)
        flat = dqkv.reshape(len(dqkv), -1)
        add_product(g.qkv, flat, normed)
        if g.qkv_bias is not None:
            g.qkv_bias.add_(flat.sum(dim=0, dtype=torch.float32))
        dh = flat @ w.qkv
        return grad + rms_norm_backward(kept.x, w.norm1, self.eps, dh.float(), g.norm1)

    def _head_norm_backward(self, w: Block, g: Block, normed: Tensor, grad: Tensor) -> Tensor:
        assert w.q_norm is not None
        assert w.k_norm is not None
        assert g.q_norm is not None
        assert g.k_norm is not None
        raw = self._raw_qkv(w, normed)
        sizes = (self.heads, self.kv_heads, self.kv_heads)
        (q, k, _), (dq, dk, dv) = raw.split(sizes, dim=1), grad.split(sizes, dim=1)
        dq = rms_norm_backward(q.float(), w.q_norm, self.eps, dq.float(), g.q_norm)
        dk = rms_norm_backward(k.float(), w.k_norm, self.eps, dk.float(), g.k_norm)
        return torch.cat((dq.to(grad.dtype), dk.to(grad.dtype), dv), dim=1)


def add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """`into += left^T right` for `left` [N, A], `right` [N, B]: a weight gradient."""
    if into.dtype == left.dtype:
        into.addmm_(left.t(), right)
    else:
        into.add_(torch.mm(left.t(), right))
