"""Checkpoints: whole or not there, and verified when read."""

from __future__ import annotations

import json

import pytest
import torch
from toy import TablePolicy

from outdo.training import checkpoint
from outdo.training.checkpoint import CheckpointError, atomic_folder, pack, unpack


def write(folder, step, **state):
    checkpoint.save(checkpoint.step_folder(folder, step), TablePolicy(), {"a/exp_avg": torch.ones(2)}, state)


def test_state_comes_back_as_it_was():
    state = {
        "a": [1, 2.5, None, True, "x", {"deep": torch.arange(3)}],
        "tiny": 5e-324,
        "third": 1 / 3,
        "big": 2**70,
        "bytes": torch.tensor([255], dtype=torch.uint8),
    }
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(pack(state, tensors))
    back = unpack(json.loads(text), tensors)
    assert torch.equal(back["a"][5].pop("deep"), torch.arange(3))
    assert torch.equal(back.pop("bytes"), torch.tensor([255], dtype=torch.uint8))
    state["a"][5].pop("deep")
    state.pop("bytes")
    assert back == state


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, {3}, object(), torch.float32])
def test_what_would_not_come_back_is_refused_with_its_place(value):
    with pytest.raises(TypeError, match=r"state\.deep\.0"):
        pack({"deep": [value]}, {})


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail(error: BaseException) -> None:
        with atomic_folder(tmp_path / "target") as folder:
            (folder / "file").write_text("begun")
            raise error

    with pytest.raises(CheckpointError, match=r"could not write .*target: no\."):
        fail(RuntimeError("no"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(tmp_path / "target") as folder:
        (folder / "file").write_text("all")
        assert not (tmp_path / "target").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    checkpoint.verify(tmp_path / "target")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes"),
        (lambda file: file.write_bytes(b"\xff" + file.read_bytes()[1:]), "damaged"),
        (lambda file: file.unlink(), "missing"),
    ],
    ids=["truncated", "flipped", "deleted"],
)
@pytest.mark.parametrize("name", ["state.json", "policy/table.safetensors", "optimiser.safetensors"])
def test_a_damaged_checkpoint_is_never_read(damage, message, name, tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2)
    damage(tmp_path / "step-000002" / name)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.verify(tmp_path / "step-000002")
    with pytest.warns(UserWarning, match="skipping a damaged checkpoint"):
        assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"
    damage(tmp_path / "step-000001" / name)
    with pytest.warns(UserWarning, match="skipping"), pytest.raises(CheckpointError, match="step-000002"):
        checkpoint.latest(tmp_path)


def test_a_folder_without_manifest_is_no_checkpoint(tmp_path):
    (tmp_path / "step-000003").mkdir()
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        checkpoint.verify(tmp_path / "step-000003")
    assert checkpoint.latest(tmp_path / "nothing") is None


def test_policy_moments_and_state_come_back(tmp_path):
    policy = TablePolicy()
    with torch.no_grad():
        policy.logits.normal_()
    policy.updates = 5
    checkpoint.save(
        tmp_path / "step-000001", policy, {"logits/exp_avg": torch.rand(3)}, {"position": {"step": 4}}
    )
    other = TablePolicy()
    state, moments = checkpoint.load(tmp_path / "step-000001", other)
    assert torch.equal(other.logits, policy.logits)
    assert other.updates == 5
    assert state == {"position": {"step": 4}}
    assert list(moments) == ["logits/exp_avg"]


def test_prune_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3, 10, 20):
        write(tmp_path, step)
    checkpoint.point_best(tmp_path, 2)
    checkpoint.prune(tmp_path, keep=2, best=2)
    assert list(checkpoint.numbered(tmp_path)) == [2, 10, 20]
    checkpoint.verify(tmp_path / "best")
    checkpoint.point_best(tmp_path, 20)
    assert (tmp_path / "best").resolve().name == "step-000020"


def test_sweep_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / ".step-000004.partial").mkdir()
    (tmp_path / ".step-000002.deleted").mkdir()
    (tmp_path / ".best.partial").symlink_to("step-000004")
    write(tmp_path, 4)
    checkpoint.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]


def test_no_pickle_is_written(tmp_path):
    write(tmp_path, 1, x=torch.ones(2))
    names = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {".json", ".safetensors"}
