"""Initial weights from files: matched by name, checked, reported; frozen weights stay to the last bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import TINY_MODEL, Commands, model_of, small_recipe, stub_task, train_model, train_state

from lra.cli import train
from lra.core.errors import UserError
from lra.init import Checkpoint
from lra.network.architecture import GROUPS, belongs
from lra.records import record

SMALL = (
    "experiment=smoke",
    "checkpoint.keep=true",
    "out=runs",
    "train.steps=6",
    "train.eval_every=3",
    "train.warmup=2",
)
SOURCE = Path("runs/source")
TRANSFER = ("attention=softmax", "init=checkpoint", f"init.folder={SOURCE}", "out=elsewhere")


def tiny(*overrides: str, seed: int = 1, **changes: object) -> torch.nn.Module:
    torch.manual_seed(seed)
    return model_of(*TINY_MODEL, *overrides, task=stub_task(**changes))


def start_from(model: torch.nn.Module, folder: Path, take: list[str] | None = None) -> Checkpoint:
    save_file(model.state_dict(), folder / "weights.safetensors")
    return Checkpoint(folder=str(folder), take=take)


def test_every_weight_of_vanilla_and_the_simple_variants_is_in_one_group() -> None:
    """`mixer` contains qkv and out, `biases` overlaps all; the other groups are a partition."""
    parts = [group for group in GROUPS if group not in ("mixer", "biases")]
    for system in ("transformer", "simple", "simple_res", "simple_resl"):
        for name, _ in tiny(f"system={system}").named_parameters():
            assert sum(belongs(name, [group]) for group in parts) == 1, name
            assert belongs(name, ["mixer"]) == belongs(name, ["qkv", "out"])


def test_simple_resl_and_vanilla_interchange_their_weights(tmp_path: Path) -> None:
    """Either q, k and v alone or all weights are loaded, in both directions."""
    pair = ("system=simple_resl", "system=transformer")
    for from_system, to_system in (pair, pair[::-1]):
        source = tiny(from_system, seed=1)
        for take, groups in ((["qkv"], ["qkv"]), (None, list(GROUPS))):
            target = tiny(to_system, seed=2)
            drawn = train_state(target)
            report = start_from(source, tmp_path, take).load(target, stub_task())
            for name, value in target.state_dict().items():
                taken = belongs(name, groups)
                assert torch.equal(value, source.state_dict()[name] if taken else drawn[name]), name
            assert report["taken"]["blocks.*.mixer.query.weight"] == 2
            assert sum(report["taken"].values()) == (12 if take else len(drawn))
            assert report["parameters_taken"] == sum(v.numel() for n, v in drawn.items() if belongs(n, groups))


def test_weights_that_were_not_loaded_are_listed_with_the_reason(tmp_path: Path) -> None:
    """Simple has no output projection; another vocabulary has other rows; deeper models have more blocks."""
    source = tiny("system=simple", "model.depth=3", vocab_size=19)
    report = start_from(source, tmp_path).load(tiny("system=transformer"), stub_task())
    assert report["left"] == {
        "not in the file": {"blocks.*.mixer.out.weight": 2, "blocks.*.mixer.out.bias": 2},
        "shape [19, 6] in the file, [17, 6] in the model": {"embedding.tokens.weight": 1},
    }
    assert set(report["unused"].values()) == {1}
    assert len(report["unused"]) == len(source.blocks[2].state_dict())
    assert len(report["sha256"]) == 64


def test_groups_named_by_take_must_fit(tmp_path: Path) -> None:
    start = start_from(tiny("system=simple", vocab_size=19), tmp_path)
    for take, message in (
        (["mixer"], r"init.take=\[mixer\]: .*blocks.0.mixer.out.weight: not in the file"),
        (["qkv", "embedding"], r"embedding.tokens.weight: shape \[19, 6\] in the file, \[17, 6\] in the model"),
    ):
        start.take = take
        with pytest.raises(UserError, match=message):
            start.load(tiny("system=transformer"), stub_task())
    with pytest.raises(UserError, match="no weight that fits"):
        start_from(torch.nn.Linear(2, 3), tmp_path).load(tiny(), stub_task())


def test_frozen_weights_must_have_been_taken(tmp_path: Path) -> None:
    start = start_from(tiny("system=simple_resl", "model.dim=9"), tmp_path)
    model = tiny("system=transformer")
    model.freeze(["qkv"])
    with pytest.raises(UserError, match=r"blocks.0.mixer.query.weight would keep its random values.*9\] in the file"):
        start.load(model, stub_task())


def test_damaged_and_missing_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        Checkpoint(folder=str(tmp_path), take=None).load(tiny(), stub_task())
    with pytest.raises(UserError, match=r"weights.safetensors: no such file.*checkpoint.keep=true"):
        _ = Checkpoint(folder=str(tmp_path / "none"), take=None).sha256


def test_impossible_freezes_are_refused() -> None:
    with pytest.raises(UserError, match=r"no weights of the group qkv"):
        tiny("attention=fnet").freeze(["qkv"])
    with pytest.raises(UserError, match=r"nothing is left to train"):
        tiny("system=transformer").freeze(list(GROUPS))


@pytest.mark.parametrize("groups", [["qkv"], ["embedding", "head"], ["mixer", "norms"]])
def test_frozen_weights_stay_to_the_bit_and_the_others_move(groups: list[str]) -> None:
    """Weight decay is on, because it changes all weights of the optimiser."""
    model = tiny("system=transformer", "model.dropout=0.3")
    model.freeze(groups)
    before = train_state(model)
    tensors, _ = train_model(model, stub_task(), small_recipe(weight_decay=0.1)).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == belongs(name, groups), name
    kept = {name.split("/")[1] for name in tensors if name.startswith("optimizer/")}
    assert kept == {name for name in before if not belongs(name, groups)}


def test_a_sweep_is_planned_before_the_weights_of_its_first_runs_exist(cli: Commands) -> None:
    words = ("experiment=transfer_small", "task=listops", "case=transfer_source,transfer_qkv", "seed=1,2")
    code, out, err = cli(train.main, *words, "describe=true")
    assert (code, out.count('"run_folder"')) == (0, 2), err


def test_transfer_from_the_command_line(cli: Commands) -> None:
    """The digest of the source is part of the identity: another source is another run."""
    assert cli(train.main, *SMALL, "system=simple_resl")[0] == 0
    next(Path("runs").rglob("seed1")).rename(SOURCE)
    code, _, err = cli(train.main, *SMALL, *TRANSFER, "init.take=[qkv]", "train.freeze=[qkv]")
    assert code == 0, err
    assert "12 tensors from" in err
    [target_folder] = [path.parent for path in Path("elsewhere").rglob(record.NAME)]
    run = record.read(target_folder / record.NAME)
    assert run["parameters"] - run["trainable_parameters"] == 2 * 3 * (16 * 16 + 16)
    assert run["config"]["init"]["sha256"] == run["init"]["sha256"]
    assert "folder" not in run["config"]["init"]
    assert "runs" not in json.dumps(run["config"])
    source, target = (load_file(folder / "weights.safetensors") for folder in (SOURCE, target_folder))
    for name, value in target.items():
        assert torch.equal(value, source[name]) == belongs(name, ["qkv"]), name
    weights = SOURCE / "weights.safetensors"
    save_file({name: value + 1 for name, value in source.items()}, weights)
    code, _, err = cli(train.main, *SMALL, *TRANSFER, "init.take=[qkv]", "train.freeze=[qkv]")
    assert (code, "init.sha256" in err) == (2, True)
    code, _, err = cli(train.main, *SMALL, *TRANSFER, "train.freeze=[qvk]")
    assert (code, err.count("\n"), "train.freeze" in err, "'qkv'" in err) == (2, 1, True, True)
