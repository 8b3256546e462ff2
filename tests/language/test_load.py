"""Finding and loading models: what is there loads, what is not is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from models import build, policy_of

from outdo.language.load import ModelError, load, tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    build("llama").save_pretrained(place)
    policy_of(build("llama")).tokenizer.save_pretrained(place)
    return place


def test_a_folder_loads_with_its_weights(folder: Path) -> None:
    loaded = load(str(folder))
    assert all(
        torch.equal(p, q) for p, q in zip(loaded.model.parameters(), build("llama").parameters(), strict=True)
    )


def test_tiny_is_the_same_for_a_seed_and_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = tiny(0)[0], tiny(0)[0], tiny(1)[0]
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model folder at .*nothing"):
        load(str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"no GGUF file at .*none\.gguf"):
        load(str(tmp_path / "none.gguf"))


def test_folder_without_its_files_says_which(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(str(folder))


def test_folder_without_safetensors_does_not_fall_back_to_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no \*\.safetensors file \(pickled pytorch_model\.bin is not read"):
        load(str(folder))


def test_broken_weights_are_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors is broken"):
        load(str(folder))


def test_broken_config_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the model"):
        load(str(folder))


def test_broken_gguf_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match=r"cannot read the GGUF file .*broken\.gguf"):
        load(str(file))


def test_weights_missing_from_a_checkpoint_are_named(folder: Path, tmp_path: Path) -> None:
    policy = policy_of(build("llama"))
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    from safetensors.torch import load_file, save_file

    tensors = load_file(half / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, half / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks the weights of model\.norm\.weight"):
        policy.load(half)
