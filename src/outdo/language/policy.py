"""A causal language model as a policy: it samples, scores what it sampled, and learns.

Axes: B rows, T completion tokens, M scored tokens of a piece, D hidden units.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outdo.core.batch import Batch
from outdo.core.protocols import Evaluation
from outdo.language.engine import LlamaDecoding, TransformersDecoding, check_prompts, generate
from outdo.language.flat import FlatParameters
from outdo.language.forward import fast_forward, padded_forward, padded_rows
from outdo.language.head import Head, differentiable_score, score
from outdo.language.llama import LlamaDecoder, flat_order, supports
from outdo.language.load import Loaded, ModelError, load
from outdo.language.memory import keep_freed_pages
from outdo.language.packing import pack
from outdo.language.sampling import Completion, Sampling, TextObs

Precision = Literal["auto", "float32", "bfloat16"]
FAST_TOLERANCE = 1e-3
"""Largest difference of a logit, relative to their spread, at which two ways of computing them count as one."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: W + (alpha / rank) B A on the named projections (peft's names; all linear ones by default)."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | str = "all-linear"


def compute_dtype(precision: Precision, device: torch.device, width: int) -> torch.dtype:
    """The dtype of matrix products: `auto` is bfloat16 where it is faster: AMX or a GPU that has it, and not tiny."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    if width < 256:
        return torch.float32
    has = torch.cuda.is_bf16_supported() if device.type == "cuda" else torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has else torch.float32


def choose_device(device: str) -> torch.device:
    """`auto` is the first GPU, else the CPU. Raises ValueError for a device this machine does not have."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device {device!r} cannot be used here: {str(error).splitlines()[0]}; try 'cpu'"
        ) from error
    return chosen


class CausalPolicy:
    """Any causal model of transformers, trained in full or through LoRA, with float32 master weights.

    Products run in the compute dtype. Llama-shaped models trained in full take a fast path that is checked
    against transformers' forward pass when the policy is built. The model is always in evaluation mode:
    dropout would make the trained log-probabilities those of another policy than the one that sampled.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        lora: Lora | None = None,
        value_head: bool = False,
        precision: Precision = "auto",
        device: str = "auto",
        fast: bool = True,
    ) -> None:
        self.source, self.tokenizer = loaded.source, loaded.tokenizer
        self.device = choose_device(device)
        if self.device.type == "cpu":
            keep_freed_pages()
        self.model: Any = loaded.model.to(self.device).eval()
        config = self.model.config.get_text_config()
        self.dtype = compute_dtype(precision, self.device, config.hidden_size)
        self.context: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.stop_tokens = _stop_tokens(self.model, self.tokenizer)
        self.has_critic = value_head
        self.value_head = nn.Linear(config.hidden_size, 1, device=self.device) if value_head else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.lora = lora
        self.flat: FlatParameters | None = None
        self.decoder: LlamaDecoder | None = None
        if lora is not None:
            self.model = _with_adapters(self.model, lora)
        else:
            self._lay_out(fast)
        self._check_head()

    @classmethod
    def load_from(cls, path: str, *, seed: int = 0, **settings: Any) -> CausalPolicy:
        """Load by shipped name, folder, GGUF file or hub id; `settings` as for the constructor."""
        return cls(load(path, seed=seed), **settings)

    def _lay_out(self, fast: bool) -> None:
        named = dict(self.model.named_parameters())
        self.slow_because = supports(self.model.config) if fast else "switched off"
        names = flat_order(list(named)) if self.slow_because is None else list(named)
        self.flat = FlatParameters([(name, named[name]) for name in names], self.dtype)
        if self.slow_because is None:
            self.decoder = LlamaDecoder(self.model, self.flat)

    @property
    def base(self) -> Any:
        """The transformers model, without peft around it."""
        return self.model.get_base_model() if self.lora is not None else self.model

    @property
    def _autocast(self) -> torch.dtype | None:
        return None if self.dtype == torch.float32 else self.dtype

    def _head_parameters(self) -> tuple[Tensor, Tensor | None]:
        head = self.base.get_output_embeddings()
        return head.weight, getattr(head, "bias", None)

    def _head(self) -> Head:
        weight, bias = self._head_parameters()
        if self.decoder is not None:
            assert self.flat is not None
            return Head(self.flat.weight(self._head_name))
        return Head(weight.detach().to(self.dtype), None if bias is None else bias.detach().to(self.dtype))

    @property
    def _head_name(self) -> str:
        return "model.embed_tokens.weight" if self.model.config.tie_word_embeddings else "lm_head.weight"

    @torch.no_grad()
    def _check_head(self) -> None:
        """Compare this class's logits with the model's own on a few tokens; refuse, or leave the fast path."""
        size = self.base.get_input_embeddings().weight.shape[0]
        ids = (torch.arange(8, device=self.device) * 7919) % size
        expected = self.base(input_ids=ids[None]).logits[0].float()
        spread = expected.std() + 1e-12
        weight, bias = self._head_parameters()
        body = self.base.get_decoder()(input_ids=ids[None]).last_hidden_state[0]
        if (Head(weight, bias).logits(body) - expected).abs().max() > FAST_TOLERANCE * spread:
            raise ModelError(
                f"the head of {self.source!r} is not a plain linear layer (soft-capped or scaled logits): its "
                "log-probabilities cannot be computed in chunks, so outdo does not train it"
            )
        if self.decoder is None:
            return
        exact = self.flat if self.dtype == torch.float32 else None
        if exact is None:
            decoder = LlamaDecoder(self.model, self.flat.in_float32())  # type: ignore[union-attr]
        else:
            decoder = self.decoder
        none = torch.zeros(1, dtype=torch.long)
        packed = pack([tuple(ids.tolist())], none[:, None], none).to(self.device)
        hidden = decoder.final_norm(decoder.forward(packed)[0])
        if (Head(weight, bias).logits(hidden) - expected).abs().max() > FAST_TOLERANCE * spread:
            self.decoder, self.slow_because = (
                None,
                "its forward pass differs from transformers' on this model",
            )

    # -- text ---------------------------------------------------------------------------------------------

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the assistant answers; special tokens only as the template has them.

        A model without a chat template gets the messages' contents, one after another, after its BOS token if it
        has one.
        """
        if self.tokenizer.chat_template is None:
            return list(self.tokenizer("\n".join(message["content"] for message in messages)).input_ids)
        return list(
            self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` alone, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    # -- sampling -----------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        copies: int,
        sampling: Sampling,
        streams: Sequence[tuple[int, ...]],
    ) -> list[list[Completion]]:
        """`copies` completions of each prompt; copy j of prompt i draws from the stream `(*streams[i], j)`.

        Raises `PromptTooLong` with the prompt's index.
        """
        return generate(
            self._decoding, self._head(), prompts, copies, sampling, streams, self.stop_tokens, self.context
        )

    def _decoding(self) -> LlamaDecoding | TransformersDecoding:
        if self.decoder is not None:
            return LlamaDecoding(self.decoder)
        pad = self.tokenizer.pad_token_id or 0
        return TransformersDecoding(self.base.get_decoder(), pad, self._autocast)

    # -- learning -----------------------------------------------------------------------------------------

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        """Log-probability, entropy and value [B, T] of the completion tokens; see `Policy.evaluate`.

        Tokens are scored under `batch.obs.sampling`: tempered and cut as they were sampled. A greedy batch is
        scored at temperature 1. The entropy carries gradient only where `entropy` asks for it.
        """
        obs: TextObs = batch.obs
        lengths = batch.lengths
        self._check_lengths(obs, lengths)
        sampling = Sampling() if obs.sampling.greedy else obs.sampling
        piece = pack(obs.prompts, batch.action, lengths).to(self.device)
        if self.decoder is not None:
            logp, h, hidden = fast_forward(self.decoder, self._head_name, piece, sampling, entropy=entropy)
        else:
            hidden = padded_forward(
                self.base.get_decoder(), obs.prompts, batch.action, lengths, piece, self._autocast
            )
            logp, h = differentiable_score(
                hidden, *self._head_parameters(), piece.target, sampling, self.dtype
            )
        h = h if entropy else h.detach()
        value = None if self.value_head is None else self.value_head(hidden.float()).squeeze(-1)
        shape = batch.logp.shape
        spread = [_spread(x, piece.row, piece.step, shape) for x in (logp, h)]
        return Evaluation(*spread, None if value is None else _spread(value, piece.row, piece.step, shape))

    @torch.no_grad()
    def final_value(self, batch: Batch) -> Tensor:
        """Value [B] of the state after each row's last token, for completions that were cut off."""
        if self.value_head is None:
            raise ValueError("this policy has no value head: build it with value_head=True")
        # One more step is scored than was taken: the state it is taken from is the one after the last token.
        longer = torch.cat((batch.action, torch.zeros_like(batch.action[:, :1])), dim=1)
        lengths = batch.lengths + 1
        piece = pack(batch.obs.prompts, longer, lengths).to(self.device)
        if self.decoder is not None:
            hidden = self.decoder.final_norm(self.decoder.forward(piece)[0])[piece.scored]
        else:
            hidden = padded_forward(
                self.base.get_decoder(), batch.obs.prompts, longer, lengths, piece, self._autocast
            )
        last = piece.step == (lengths - 1).to(self.device)[piece.row]
        return self.value_head(hidden[last].float()).squeeze(-1).cpu()

    def _check_lengths(self, obs: TextObs, lengths: Tensor) -> None:
        check_prompts(obs.prompts, self.context)
        for i, (prompt, length) in enumerate(zip(obs.prompts, lengths.tolist(), strict=True)):
            if len(prompt) + length > self.context + 1:
                raise ValueError(
                    f"row {i} holds {len(prompt)} prompt and {length} completion tokens; the context is {self.context}"
                )

    def micro_batches(self, batch: Batch, budget: int) -> list[Tensor]:
        """Rows in pieces of about `budget` computed tokens: a shared prompt counts once on the fast path."""
        lengths, prompts = batch.lengths.tolist(), batch.obs.prompts
        if self.decoder is None:
            return padded_rows([len(p) + n for p, n in zip(prompts, lengths, strict=True)], budget)
        order = sorted(range(len(prompts)), key=lambda i: (prompts[i], -lengths[i]))
        pieces: list[list[int]] = []
        used, previous = budget, None
        for i in order:
            cost = lengths[i] + (0 if prompts[i] == previous else len(prompts[i]))
            if used + cost > budget:
                pieces.append([])
                used, cost = 0, lengths[i] + len(prompts[i])
            pieces[-1].append(i)
            used, previous = used + cost, prompts[i]
        return [torch.tensor(piece) for piece in pieces]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The flat buffers `matrices` and `vectors` (or the adapters' parameters), and the value head's."""
        if self.flat is not None:
            yield "matrices", self.flat.matrices
            if self.flat.vectors.numel():
                yield "vectors", self.flat.vectors
        else:
            yield from ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)
        if self.value_head is not None:
            yield from (("value_head." + name, p) for name, p in self.value_head.named_parameters())

    def updated(self) -> None:
        """Bring the compute-dtype weights up to date."""
        if self.flat is not None:
            self.flat.refresh()

    def reference(self) -> CausalPolicy:
        """A frozen copy of the policy as it is now: in the compute dtype on the fast path, in full otherwise."""
        frozen = copy.copy(self)
        if self.decoder is not None and self.flat is not None:
            frozen.flat = self.flat.frozen()
            frozen.decoder = LlamaDecoder(self.model, frozen.flat)
        else:
            frozen.model = copy.deepcopy(self.model).requires_grad_(False)
            frozen.flat = None
        return frozen

    # -- state --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Nothing beside the weights: sampling streams are keyed by the caller."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accepts what `state_dict` gave."""
        if state:
            raise ValueError(f"a causal policy keeps no state beside its weights, got {sorted(state)}")

    def save(self, folder: Path) -> None:
        """Write the float32 weights (or the adapters) and the tokenizer in Hugging Face format."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.value_head is not None:
            tensors = {name: p.detach().contiguous() for name, p in self.value_head.state_dict().items()}
            save_file(tensors, folder / "value_head.safetensors")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Copy weights that `save` wrote into this policy."""
        if self.lora is not None:
            from peft import set_peft_model_state_dict

            set_peft_model_state_dict(self.model, load_file(folder / "adapter_model.safetensors"))
        else:
            own = dict(self.model.named_parameters())
            found: set[str] = set()
            for file in sorted(folder.glob("model*.safetensors")):
                for name, tensor in load_file(file).items():
                    if name in own:
                        own[name].copy_(tensor)
                        found.add(name)
            if missing := sorted(set(own) - found):
                raise ModelError(f"{folder} lacks the weights of {missing[0]} (and {len(missing) - 1} more)")
        if self.value_head is not None:
            self.value_head.load_state_dict(load_file(folder / "value_head.safetensors"))
        self.updated()


def _with_adapters(model: Any, lora: Lora) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("LoRA needs peft: pip install 'outdo[lora]'") from error
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0)  # type: ignore[arg-type]
    return get_peft_model(model, config).eval()


def _stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends an answer: the tokenizer's EOS and those of the generation configuration."""
    listed = model.generation_config.eos_token_id if model.generation_config is not None else None
    several = listed if isinstance(listed, list) else [listed]
    return tuple(sorted({token for token in [tokenizer.eos_token_id, *several] if token is not None}))


def _spread(values: Tensor, row: Tensor, step: Tensor, shape: torch.Size) -> Tensor:
    """Put values [M] at their places in [B, T], 0 elsewhere."""
    out = values.new_zeros(shape)
    return out.index_put((row, step), values)
