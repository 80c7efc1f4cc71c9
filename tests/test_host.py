"""lra-bench what=host: every part of the loop is timed, by its name, and the model in it asks for the operations of the
full one."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from support import Commands, composed
from torch.utils._python_dispatch import TorchDispatchMode

from lra.bench import host, instant, page
from lra.bench.settings import BenchSettings, settings_of
from lra.cli.bench import main
from lra.core.errors import UserError
from lra.ops.dropout import set_keys
from lra.records import checkpoint
from lra.runs.build import assemble
from lra.runs.stand_in import stand_in
from lra.training.batches import micro_batches

TINY = ("task=text", "task.max_length=101", "model.dim=14", "model.heads=7", "model.depth=2", "model.mlp_dim=10")
TINY += ("train.batch_size=5", "train.micro_batch=3")
STEPS = 3
SLOW = 0.05  # seconds
SLOWED = {  # by part, what is called within it at least once, and in no other part
    host.CHOOSE: "lra.training.batches.cuts",
    host.READ: "lra.data.Split.pad",
    "copies to the device": "lra.bench.instant.copied",
    "which noise: keys, words, features": "lra.ops.dropout.streams.key",
    host.FORWARD: "lra.model.embedding.Embedding.forward",
    host.BACKWARD: "torch.Tensor.backward",
    "adding up losses, freeing what micro-batches kept": "lra.training.distributed.add_gradients",
    "the optimiser, and the norm of the gradient": "torch.optim.AdamW.step",
    "the numbers of a step": "lra.training.update.Update.look",
    "between steps: bar, memory, signals": "lra.runs.device.KeptMemory.between_parts",
    host.MEASURE: "lra.records.course.EndOfTraining.take",
    host.SAVE: "safetensors.torch.save",
    host.WAIT: "lra.training.batches.ThreadPoolExecutor.submit",
    host.REST: "lra.training.fit.Training.due",
}


def settings(*overrides: str) -> BenchSettings:
    return settings_of(composed(*TINY, *overrides, config="bench"))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "STEPS", STEPS)


def slowed(call: Callable[..., object]) -> Callable[..., object]:
    """The same call, after a while in which its thread is busy."""

    def slow(*given: object, **named: object) -> object:
        begun = time.thread_time()
        while time.thread_time() - begun < SLOW:
            pass
        return call(*given, **named)

    return slow


@pytest.mark.parametrize(("part", "call"), SLOWED.items(), ids=list(SLOWED))
def test_a_part_has_what_its_calls_take(monkeypatch: pytest.MonkeyPatch, part: str, call: str) -> None:
    """But that the first batch of a round may be read before it, and that a checkpoint takes what its disk does."""
    monkeypatch.setattr(call, slowed(resolve_name(call)))
    seconds = {result["part"]: result["cpu"][0] for result in host.run(settings("rounds=1"))}
    assert seconds.keys() == SLOWED.keys()
    assert max(seconds.keys() - ({host.SAVE} - {part}), key=seconds.__getitem__) == part
    assert seconds[part] >= SLOW * (STEPS - 1) / STEPS


def test_the_parts_are_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the thread that trains take what goes by from one checkpoint to the next, and nearly all has a name."""
    ends, write = [], checkpoint.write

    def written(*given: object) -> None:
        write(*given)
        ends.append(time.perf_counter())

    monkeypatch.setattr(checkpoint, "write", written)
    rounds = 5
    results = list(host.run(settings(f"rounds={rounds}")))
    assert len(ends) == 1 + rounds
    whole = {
        result["part"]: sum(result["wall"]) * (1 if result["part"] in host.RARE else STEPS)
        for result in results
        if result["group"] != "ahead"
    }
    assert sum(whole.values()) == pytest.approx(ends[-1] - ends[0], rel=0.05)
    assert whole[host.REST] < 0.1 * sum(whole.values())


class Asked(TorchDispatchMode):
    """The names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("system", ["simple", "simple_res", "transformer"])
@pytest.mark.parametrize("task", ["text", "listops", "matching"])
def test_the_small_model_asks_for_the_operations_of_the_full_one(task: str, system: str) -> None:
    """Forward and backward, at the sizes of the paper."""
    given = settings_of(composed(f"task={task}", f"system={system}", config="bench"))
    small = BenchSettings(**{**vars(given), "model": instant.shrunk(given.model)})
    facts, names = assemble(given).builder.facts, []
    split = stand_in(facts, 2, 1)
    (part,) = micro_batches(assemble(small).model(facts), split, np.arange(2), 2)
    for device, sizes in (("meta", given), ("cpu", small)):
        with torch.device(device):
            model = assemble(sizes).model(facts)
        if device == "cpu":
            instant.shorten(model)
        tokens = torch.from_numpy(part.tokens).to(device).long()
        with instant.cpu_as_accelerator(given.model["dim"], small.model["dim"]):
            for _ in range(2):  # in the first pass the heads of layers are not known
                set_keys(model, seed=1, step=0, rows=part.rows)
                with Asked() as asked:
                    model(tokens).sum().backward()
        names.append(asked.names)
    assert len(names[0]) > 100
    assert names[1] == ["aten.slice.Tensor", *names[0]]  # which shortens the documents


def test_documents_that_are_predicted_position_by_position_are_not_shortened() -> None:
    with pytest.raises(UserError, match="what=host shortens documents: expected a task that classifies"):
        next(host.run(settings_of(composed("task=books", "attention=linear", "protocol=strict", config="bench"))))


def test_host_end_to_end(cli: Commands) -> None:
    code, _, err = cli(main, "what=host", *TINY, "rounds=2", "out=host")
    assert code == 0, err
    record, text = json.loads(Path("host", page.NAME).read_text()), Path("host", page.PAGE).read_text()
    assert [result["part"] for result in record["results"]] == [host.CHOOSE, *host.CALLS, host.WAIT, host.REST]
    for result in record["results"]:
        assert f"| {result['part']} |" in text
        for kind in ("cpu", "wall"):
            assert len(result[kind]) == 2
            assert min(result[kind]) > 0
    besides = [result for result in record["results"] if result["part"] not in host.MODEL]
    sums = [sum(result["cpu"][turn] * result["in_a_step"] for result in besides) for turn in range(2)]
    assert f"**{1e3 * sum(sums) / 2:.2f} ms of a processor besides the model; the goal is 2 ms.**" in text
