"""A causal language model as a policy: it samples, scores what it sampled, and learns.

Axes: B rows, T completion tokens, M scored tokens of a piece, D hidden units.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outdo.core.batch import Batch, take
from outdo.core.protocols import Evaluation
from outdo.language.adapters import Lora, with_adapters
from outdo.language.agreement import bend, check_head, probe, same_forward
from outdo.language.compiled import llama_decode
from outdo.language.engine import Decode, TransformersDecoding, check_prompts, decode_stepwise, generate
from outdo.language.flat import FlatParameters
from outdo.language.forward import fast_forward, padded_forward, padded_rows
from outdo.language.head import Head, differentiable_score
from outdo.language.llama import LlamaDecoder, flat_order, supports
from outdo.language.load import Loaded, ModelError, load, load_weights
from outdo.language.memory import keep_freed_pages
from outdo.language.packing import Packed, distinct_rows, pack, packed_rows, spread
from outdo.language.placement import Precision, choose_device, compute_dtype
from outdo.language.sampling import Completion, Sampling, TextObs


class CausalPolicy:
    """Any causal model of transformers, trained in full or through LoRA, with float32 master weights.

    Products run in the compute dtype. Llama-shaped models trained in full take a fast path that is checked
    against transformers' forward pass when the policy is built. The model is always in evaluation mode:
    dropout would make the trained log-probabilities those of another policy than the one that sampled.

    An `encoder` makes embeddings [P, D] of an observation (`batch.obs`); prompts name them by the ids that follow
    the vocabulary. It is trained with the model, on the fast path only.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        lora: Lora | None = None,
        value_head: bool = False,
        encoder: nn.Module | None = None,
        precision: Precision = "auto",
        device: str = "auto",
        fast: bool = True,
    ) -> None:
        self.source, self.tokenizer = loaded.source, loaded.tokenizer
        self.device = choose_device(device)
        if self.device.type == "cpu":
            keep_freed_pages()
        self.model: Any = loaded.model.to(self.device).eval()
        # Where pad = eos, torch would drop the gradient of every real eos in the input: padding is known by lengths.
        self.model.get_input_embeddings().padding_idx = None
        config = self.model.config.get_text_config()
        self.dtype = compute_dtype(precision, self.device, config.hidden_size)
        self.context: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        self.stop_tokens = _stop_tokens(self.model, self.tokenizer)
        self.has_critic = value_head
        self.value_head = nn.Linear(config.hidden_size, 1, device=self.device) if value_head else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.encoder = None if encoder is None else encoder.to(self.device)
        self.flat: FlatParameters | None = None
        self.decoder: LlamaDecoder | None = None
        self.slow_because: str | None = "adapters"
        self._adapters: dict[str, Tensor] | None = None  # a reference's own, where the base is shared
        if lora is not None:
            if hasattr(self.model, "peft_config"):
                raise ModelError(
                    f"{loaded.source!r} is an adapter already: leave policy.lora out to go on training it"
                )
            self.model = with_adapters(self.model, lora, loaded.source)
        self.adapted = hasattr(self.model, "peft_config")
        if not self.adapted:
            self._lay_out(fast)
        self._check_paths()
        if self.encoder is not None and self.decoder is None:
            raise ModelError(
                f"an encoder's embeddings need the fast path, which {self.source!r} does not take: {self.slow_because}"
            )

    @classmethod
    def load_from(cls, path: str, *, seed: int = 0, **settings: Any) -> CausalPolicy:
        """Load by shipped name, folder, GGUF file or hub id; `settings` as for the constructor.

        A value head goes on from where the checkpoint in the folder left it; a new one starts at 0.
        """
        policy = cls(load(path, seed=seed), **settings)
        policy._load_extras(Path(path), required=False)
        return policy

    def _lay_out(self, fast: bool) -> None:
        named = dict(self.model.named_parameters())
        self.slow_because = supports(self.model.config) if fast else "switched off"
        names = flat_order(list(named)) if self.slow_because is None else list(named)
        # Only the fast path computes with the shadow; autocast casts for itself.
        compute = self.dtype if self.slow_because is None else torch.float32
        self.flat = FlatParameters([(name, named[name]) for name in names], compute)
        if self.slow_because is None:
            self.decoder = LlamaDecoder(self.model, self.flat)

    @property
    def base(self) -> Any:
        """The transformers model, without peft around it."""
        return self.model.get_base_model() if self.adapted else self.model

    @property
    def _autocast(self) -> torch.dtype | None:
        return None if self.dtype == torch.float32 else self.dtype

    def _head_parameters(self) -> tuple[Tensor, Tensor | None]:
        head = self.base.get_output_embeddings()
        return head.weight, getattr(head, "bias", None)

    def _head(self) -> Head:
        if self.decoder is not None:
            assert self.flat is not None
            return Head(self.flat.weight(self._head_name))
        weight, bias = (None if p is None else p.detach().to(self.dtype) for p in self._head_parameters())
        assert weight is not None
        return Head(weight, bias, *bend(self.base.config.get_text_config()))

    @property
    def _head_name(self) -> str:
        return "model.embed_tokens.weight" if self.base.config.tie_word_embeddings else "lm_head.weight"

    def _check_paths(self) -> None:
        """Refuse a head that cannot be computed in chunks; leave the fast path where it is not transformers'."""
        weight, bias = self._head_parameters()
        head = Head(weight, bias, *bend(self.base.config.get_text_config()))
        ids, expected = probe(self.base)
        check_head(self.base, head, self.source, ids, expected)
        if self.decoder is not None and self.flat is not None:
            decoder = LlamaDecoder(self.model, self.flat.in_float32())
            if not same_forward(decoder, head, ids, expected):
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
        prefix: Tensor | None = None,
    ) -> list[list[Completion]]:
        """`copies` completions of each prompt; copy j of prompt i draws from the stream `(*streams[i], j)`.

        `prefix` [P, D] holds what the prompts name by ids beyond the vocabulary. Raises `PromptTooLongError` with
        the prompt's index.
        """
        return generate(
            self._decode(), prompts, copies, sampling, streams, self.stop_tokens, self.context, prefix
        )

    def _decode(self) -> Decode:
        if self.decoder is not None:
            return llama_decode(self.decoder, self._head())
        pad = self.tokenizer.pad_token_id or 0
        start = partial(TransformersDecoding, self.base.get_decoder(), pad, self._autocast)
        return partial(decode_stepwise, start, self._head())

    # -- learning -----------------------------------------------------------------------------------------

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        """Log-probability, entropy and value [B, T] of the completion tokens; see `Policy.evaluate`.

        Tokens are scored under `batch.obs.sampling`: tempered and cut as they were sampled. A greedy batch is
        scored at temperature 1. The entropy carries gradient only where `entropy` asks for it. Rows that are
        alike are computed once: their gradients add up on the way back.
        """
        self._check_lengths(batch.obs, batch.lengths)
        first, place = distinct_rows(batch.obs.prompts, batch.action, batch.lengths)
        found = self._evaluate(batch.select(first), entropy)
        place = place.to(found.logp.device)
        of = [None if x is None else x[place] for x in (found.logp, found.entropy, found.value)]
        assert of[0] is not None
        return Evaluation(of[0], of[1], of[2])

    def _evaluate(self, batch: Batch, entropy: bool) -> Evaluation:
        """`evaluate`, every row on its own."""
        obs: TextObs = batch.obs
        lengths = batch.lengths
        sampling = Sampling() if obs.sampling.greedy else obs.sampling
        piece = pack(obs.prompts, batch.action, lengths).to(self.device)
        if self.decoder is not None:
            prefix = self._prefix(obs)
            logp, h, hidden = fast_forward(
                self.decoder, self._head_name, piece, sampling, entropy=entropy, prefix=prefix
            )
        else:
            with self._own_adapters():
                hidden = self._padded(obs.prompts, batch.action, lengths, piece)
            weight, bias = self._head_parameters()
            logp, h = differentiable_score(hidden, weight, bias, piece.target, sampling, self._head())
        h = h if entropy else h.detach()
        value = None if self.value_head is None else self.value_head(hidden.float()).squeeze(-1)
        shape = batch.logp.shape
        scores = [None if x is None else spread(x, piece.row, piece.step, shape) for x in (logp, h, value)]
        assert scores[0] is not None
        return Evaluation(scores[0], scores[1], scores[2])

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
            states = self.decoder.forward(piece, self._prefix(batch.obs))[0]
            hidden = self.decoder.final_norm(states)[piece.scored]
        else:
            hidden = self._padded(batch.obs.prompts, longer, lengths, piece)
        last = piece.step == (lengths - 1).to(self.device)[piece.row]
        return self.value_head(hidden[last].float()).squeeze(-1).cpu()

    def _prefix(self, obs: TextObs) -> Tensor | None:
        return None if self.encoder is None else self.encoder(obs)

    def _padded(
        self, prompts: Sequence[tuple[int, ...]], action: Tensor, lengths: Tensor, piece: Packed
    ) -> Tensor:
        return padded_forward(self.base.get_decoder(), prompts, action, lengths, piece, self._autocast)

    @contextmanager
    def _own_adapters(self) -> Generator[None]:
        """Puts a reference's adapters in the place of the trained ones, and those back."""
        mine = self._adapters or {}
        shared = dict(self.model.named_parameters()) if mine else {}
        trained = {name: shared[name].data for name in mine}
        try:
            for name, data in mine.items():
                shared[name].data = data
            yield
        finally:
            for name, data in trained.items():
                shared[name].data = data

    def _check_lengths(self, obs: TextObs, lengths: Tensor) -> None:
        check_prompts(obs.prompts, self.context)
        for i, (prompt, length) in enumerate(zip(obs.prompts, lengths.tolist(), strict=True)):
            if len(prompt) + length > self.context + 1:
                raise ValueError(
                    f"row {i} holds {len(prompt)} prompt and {length} completion tokens; the context is {self.context}"
                )

    def micro_batches(self, batch: Batch, budget: int) -> list[Tensor]:
        """Rows in pieces of about `budget` computed tokens: rows that are alike count once and stay together.

        On the fast path what prompts share counts once, too.
        """
        first, place = distinct_rows(batch.obs.prompts, batch.action, batch.lengths)
        lengths, prompts = batch.lengths[first].tolist(), take(batch.obs.prompts, first)
        if self.decoder is None:
            pieces = padded_rows([len(p) + n for p, n in zip(prompts, lengths, strict=True)], budget)
        else:
            pieces = packed_rows(prompts, lengths, budget)
        alike: list[list[int]] = [[] for _ in lengths]
        for row, at in enumerate(place.tolist()):
            alike[at].append(row)
        return [torch.tensor([row for at in piece.tolist() for row in alike[at]]) for piece in pieces]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The flat buffers `matrices` and `vectors` (or the adapters'), and those of value head and encoder."""
        if self.flat is not None:
            yield "matrices", self.flat.matrices
            if self.flat.vectors.numel():
                yield "vectors", self.flat.vectors
        else:
            yield from ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)
        for extra, module in self._extras().items():
            yield from ((f"{extra}.{name}", p) for name, p in module.named_parameters())

    def updated(self) -> None:
        """Bring the compute-dtype weights up to date."""
        if self.flat is not None:
            self.flat.refresh()

    def reference(self) -> CausalPolicy:
        """A frozen copy of the policy as it is now.

        The fast path copies the weights in the compute dtype, LoRA its adapters (as they are now: the bare base
        is another policy), and any other model is copied in full.
        """
        frozen = copy.copy(self)
        if self.encoder is not None:
            frozen.encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        if self.adapted:
            frozen._adapters = {
                n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad
            }
        elif self.decoder is not None and self.flat is not None:
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
        # Adapters never hold the embeddings; without the setting peft would look the base up on the hub to be sure.
        self.model.save_pretrained(folder, **({"save_embedding_layers": False} if self.adapted else {}))
        self.tokenizer.save_pretrained(folder)
        for extra, module in self._extras().items():
            tensors = {name: p.detach().contiguous() for name, p in module.state_dict().items()}
            save_file(tensors, folder / f"{extra}.safetensors")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Copy weights that `save` wrote into this policy."""
        if self.adapted:
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
        self._load_extras(folder, required=True)
        self.updated()

    def _extras(self) -> dict[str, nn.Module]:
        """What belongs to the policy beside the model of transformers; each has a file of its own."""
        extras = {"value_head": self.value_head, "encoder": self.encoder}
        return {name: module for name, module in extras.items() if module is not None}

    def _load_extras(self, folder: Path, *, required: bool) -> None:
        for extra, module in self._extras().items():
            file = folder / f"{extra}.safetensors"
            if required or file.is_file():
                load_weights(module, file)


def _stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end an answer: the tokenizer's EOS first, then those of the generation configuration."""
    listed = model.generation_config.eos_token_id if model.generation_config is not None else None
    several = listed if isinstance(listed, list) else [listed]
    return tuple(dict.fromkeys(token for token in [tokenizer.eos_token_id, *several] if token is not None))
