"""lra-bench: how is measured, and that both sides of every comparison do the same work."""

import json
import math
import signal
from functools import cache
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Commands, composed, mixer_of, noise, stub_task
from torch import nn

from lra.bench import accuracy, models, page, peers
from lra.bench.layers import layer_of, work
from lra.bench.measure import allocated, flops, product, ratio, saved, seconds, side_by_side, take_turns
from lra.bench.profile import DROPOUT, profile
from lra.bench.settings import BenchSettings, settings_of
from lra.bench.steps import ours, straightforward_model, textbook
from lra.bench.straightforward import update
from lra.bench.worker import BenchPlace, OutOfMemory, Worker, Workload, is_out_of_memory
from lra.cli.bench import main
from lra.core.errors import UserError
from lra.core.paths import PACKAGE
from lra.ops.dropout import Dropout, set_keys
from lra.runs.build import assemble
from lra.runs.initial_weights import draw_model
from lra.training.update import accumulate

TINY = ("model.dim=12", "model.heads=3", "model.depth=2", "model.mlp_dim=10")
SMALL_LISTOPS = ("task=listops", "task.train_size=40", "task.val_size=10", "task.test_size=10", "task.min_length=10")
SMALL_LISTOPS += ("task.max_length=60", "task.max_depth=5", "task.max_args=5", "train.batch_size=6")
CPU = BenchPlace(device="cpu", threads=1, memory_limit=None)


@cache
def settings(*overrides: str) -> BenchSettings:
    return settings_of(composed(*overrides, config="bench"))


def layer_work(subject: str, *overrides: str, length: int = 29, batch: int = 2, direction: str = "train") -> Workload:
    def again(*words: str) -> BenchSettings:
        return settings(*TINY, *overrides, *words)

    return work(layer_of(subject, again(), again), length, batch, direction, "cpu")


def test_every_other_round_runs_backwards() -> None:
    calls, clock = [], count()
    subjects = {name: lambda turn, name=name: (calls.append((name, turn)), next(clock))[1] for name in "abc"}
    assert take_turns(subjects, 3) == {"a": [3, 8, 9], "b": [4, 7, 10], "c": [5, 6, 11]}
    assert sorted(calls[:3]) == [("a", 0), ("b", 0), ("c", 0)]
    assert "".join(name for name, _ in calls[3:]) == "abccbaabc"
    assert [turn for _, turn in calls[3:]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_who_runs_out_of_memory_drops_out() -> None:
    def greedy(turn: int) -> float:
        if turn == 1:
            raise OutOfMemory("too much")
        return 1.0

    assert take_turns({"greedy": greedy, "modest": lambda turn: 2.0}, 3) == {"modest": [2.0, 2.0, 2.0]}


def test_ratios_are_of_rounds() -> None:
    """The ratio of the medians would be 3 / 2."""
    assert ratio([1.0, 8.0, 3.0], [2.0, 2.0, 1.0]) == (3.0, 0.5, 4.0)


def test_counted_operations_of_a_layer() -> None:
    """Textbook SimpleAttention and softmax, by formula; the backward pass has twice the products of the forward one."""
    length, dim, head, batch = 29, 12, 4, 2
    projections = 4 * 2 * batch * length * dim * dim
    cases = (
        ("textbook:simple variant=transformer", projections + 4 * batch * length * dim * head, 3),
        ("textbook:softmax", projections + 4 * batch * length * length * dim, 3),
        ("softmax model.dropout=0", projections + 4 * batch * length * length * dim, None),
    )
    for subject, forward, factor in cases:
        assert flops(layer_work(subject, direction="forward")) == forward
        if factor is not None:
            assert flops(layer_work(subject)) == factor * forward
    fused = flops(layer_work("softmax model.dropout=0")) - 3 * projections
    assert fused == (4 + 10) * batch * length * length * dim  # it forms the weights again: five products, not four


def test_counted_operations_of_fourier_transforms() -> None:
    """5 n log2(n) for each, half of it where one side is real; the numbers and axes are those of the signal."""
    real, half, every = torch.randn(3, 32, 7), *(torch.randn(3, n, 7, dtype=torch.complex64) for n in (17, 32))
    for expected, transform in (
        (21 * 5 * 32 * 5 / 2, lambda: torch.fft.rfft(real, dim=1)),
        (21 * 5 * 32 * 5 / 2, lambda: torch.fft.irfft(half, 32, dim=1)),
        (21 * 5 * 32 * 5, lambda: torch.fft.fft(every, dim=1)),
        (21 * 5 * 32 * 5, lambda: torch.fft.ifft(every, dim=1)),
        (3 * 5 * 224 * math.log2(224), lambda: torch.fft.fft2(every)),
    ):
        once = Workload(step=lambda turn, transform=transform: transform(), device="cpu", module=nn.Module())
        assert flops(once) == round(expected)


@pytest.mark.parametrize("reads", [None, 5])
def test_counted_operations_of_the_gram_form(reads: int | None) -> None:
    """Two products of L D D for each document, and small ones, those in pieces as a whole. Where few positions are
    read, no second one: W_q and the state one after the other."""
    length, dim, head, batch = 521, 21, 7, 2
    mixer = mixer_of("simple", "attention.form=gram", dim=dim, qkv_dim=dim, max_positions=length)
    x = noise(batch, length, dim)
    moments = length * dim * dim + dim * dim  # the second moves them to the mean
    state = moments + dim**3 + dim * dim * head + 2 * dim * dim  # W_k G, W_v, and both of the mean
    reading = dim * dim * head + length * dim * dim if reads is None else reads * (dim * dim + dim * head)
    operations = flops(Workload(step=lambda turn: mixer(x, None, reads), device="cpu", module=mixer))
    assert operations == 2 * batch * (state + reading)


def model_work(subject: str, *overrides: str, length: int = 29, direction: str = "train") -> Workload:
    def again(*words: str) -> BenchSettings:
        return settings(*TINY, *overrides, *words)

    return models.work(layer_of(subject, again(), again), length, 3, direction, "cpu")


@pytest.mark.parametrize("task", ["text", "matching"])
def test_counted_operations_of_a_model(task: str) -> None:
    """By formula, with one position more than tokens, the CLS; the backward pass has twice the forward one's."""
    positions, dim, hidden, depth = 30, 12, 10, 2
    documents = 2 if task == "matching" else 1
    attention = 4 * dim * dim + 2 * positions * dim
    block = 2 * positions * (attention + 2 * dim * hidden)
    layers = [dim, hidden, 2] if documents == 1 else [2 * dim, hidden, hidden // 2, 2]
    head = 2 * sum(inputs * outputs for inputs, outputs in pairwise(layers))
    forward = 3 * (documents * depth * block + head)
    assert flops(model_work("textbook:softmax", f"task={task}", direction="forward")) == forward
    assert flops(model_work("textbook:softmax", f"task={task}")) == 3 * forward


@pytest.mark.parametrize("direction", ["train", "forward"])
@pytest.mark.parametrize("subject", ["simple", "textbook:simple"])
def test_a_step_of_a_model_is_cut_as_in_training(subject: str, direction: str) -> None:
    """Three examples are read as two and one, or at once."""
    for cut, parts in ((2, [2, 1]), (5, [3])):
        work, read = model_work(subject, f"train.micro_batch={cut}", direction=direction), []
        work.module.register_forward_pre_hook(lambda _, inputs, read=read: read.append(len(inputs[0])))
        work.step(1)
        assert read == parts


def test_models_do_the_work_of_a_step() -> None:
    """Both read batch examples of the length, whatever the task's; ours computes less of the last block."""
    simple, reference = (model_work(subject) for subject in ("simple", "textbook:simple"))
    assert simple.facts == reference.facts
    assert simple.facts["tokens"] == {"real": 3 * 29, "computed": 3 * 29}
    assert flops(simple) < flops(reference)
    for workload in (simple, reference):
        weight = workload.module.head[0].weight
        before = weight.detach().clone()
        workload.step(1)  # the learning rate of step 0 is 0
        assert not torch.equal(weight, before)
    read = model_work("simple", direction="forward")
    read.step(0)
    assert not read.module.training
    assert all(parameter.grad is None for parameter in read.module.parameters())
    torch.use_deterministic_algorithms(False)


def test_what_is_saved_for_the_backward_pass() -> None:
    """A linear map keeps its input once; its weight is its own."""
    module, x = nn.Linear(7, 5), torch.randn(3, 7, requires_grad=True)
    linear = Workload(step=lambda turn: None, device="cpu", module=module, forward=lambda: module(x) + module(x))
    assert saved(linear) == 3 * 7 * 4


def test_the_peak_of_allocated_tensors() -> None:
    """11 and 7 numbers meet, then 11 and 13; what lives on from step to step counts while it is there twice."""
    kept = {}

    def step(turn: int) -> None:
        first, second = torch.ones(11), torch.ones(7)
        del second
        third = torch.ones(13)
        del first, third

    def keep(turn: int) -> None:
        kept["it"] = torch.ones(17)

    module = nn.Linear(7, 5)
    for call, elements in ((step, 24), (keep, 17), (lambda turn: module(torch.ones(3, 7)), 3 * 7 + 3 * 5)):
        assert allocated(Workload(step=call, device="cpu", module=module)) == 4 * elements


def test_the_peak_of_a_layer_holds_what_it_saves() -> None:
    work = layer_work("softmax")
    assert allocated(work) >= saved(work) > 0


def test_the_exponent_of_a_power() -> None:
    lengths = [512, 1024, 4096]
    assert page.exponent(lengths, [3e-9 * length**1.7 for length in lengths]) == pytest.approx(1.7)
    assert page.exponent([512], [1.0]) is None


def test_the_line_of_a_line_and_of_a_parabola() -> None:
    lengths = [512, 1024, 4096]
    assert page.line(lengths, [3 + 0.25 * length for length in lengths]) == pytest.approx((3, 0.25, 0))
    assert page.line(lengths, [float(length**2) for length in lengths])[2] > 0.3
    assert page.line(lengths[:2], [1.0, 2.0]) is None


def test_out_of_memory_is_a_result() -> None:
    """An allocation that fails, one beyond the limit, and a process that the system kills."""
    subjects = {
        "impossible": (product, (10**7, 1, "fp32", "cpu")),
        "possible": (product, (10, 1, "fp32", "cpu")),
    }
    results = side_by_side(subjects, CPU, 1, "fp32")
    assert results["impossible"]["status"] == "out of memory"
    assert "can't allocate memory" in results["impossible"]["reason"]
    assert results["possible"]["status"] == "measured"
    assert results["possible"]["flops"] == 2 * 10**3
    assert results["possible"]["ratio"] is None  # there is no reference
    limited = BenchPlace(device="cpu", threads=1, memory_limit=0.01)
    arguments = (1000, 1, "fp32", "cpu")
    for place, refused in ((limited, False), (BenchPlace(device="cpu", threads=1, memory_limit=0.001), True)):
        with Worker(place, product, *arguments) as worker:
            if refused:
                with pytest.raises(OutOfMemory):
                    worker.ask(flops)
            else:
                assert worker.ask(flops) == 2 * 10**9
    with pytest.raises(OutOfMemory, match="killed"), Worker(CPU, signal.raise_signal, signal.SIGKILL) as worker:
        worker.ask(flops)


def test_only_failed_allocations_are_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("Resource temporarily unavailable"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="negative dimension"), Worker(CPU, product, -1, 1, "fp32", "cpu") as worker:
        worker.ask(flops)


@pytest.mark.parametrize("task", ["text", "matching"])
@pytest.mark.parametrize("protocol", ["paper", "strict"])
@pytest.mark.parametrize("system", ["simple", "simple_res", "simple_resl", "transformer"])
def test_the_straightforward_step_is_the_same_step(task: str, protocol: str, system: str) -> None:
    """Loss and gradients of a whole batch in float64, without dropout; P = 1 and 2."""
    given = settings(
        *TINY,
        f"task={task}",
        f"protocol={protocol}",
        f"system={system}",
        "task.max_length=11",
        "model.dropout=0",
        "train.batch_size=5",
    )
    assembled = assemble(given)
    facts = assembled.builder.facts
    split = stub_task(**vars(facts)).train
    model = draw_model(assembled, facts, given.seed).double().train()
    with torch.no_grad():
        model.embedding.cls.normal_()
        model.embedding.positions.normal_()
    other = straightforward_model(given, facts).double()
    other.load_state_dict(model.state_dict())
    examples = np.array([3, 19, 4, 0, 11])
    loss = accumulate(model, split, examples, 2, seed=1, step=0, precision="fp32")[0].item()
    tokens = torch.from_numpy(split.pad(examples, facts.max_len)).long()
    still = torch.optim.SGD(other.parameters(), lr=0)
    other_loss = update(other, still, tokens, torch.from_numpy(split.targets(examples)), 2, bf16=False)
    assert other_loss == pytest.approx(loss, rel=1e-12)
    other_parameters = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(other_parameters[name].grad, parameter.grad, rtol=1e-9, atol=1e-13)


def test_there_is_no_straightforward_step_for_what_it_is_not() -> None:
    cases = (
        ("protocol=lra", r"model\.\w+=.*the straightforward step has"),
        ("attention=linear", "knows simple and softmax only"),
        ("train.clip_norm=1.0", "train.clip_norm=1.0"),
        ("attention.dropout_on=output", "attention.dropout_on=output"),
    )
    for override, message in cases:
        given = settings(*TINY, override)
        with pytest.raises(UserError, match=message):
            straightforward_model(given, assemble(given).builder.facts)


def test_both_steps_read_the_same_examples() -> None:
    given = settings(*TINY, "task.max_length=11", "train.batch_size=4")
    our_step, textbook_step = ours(given, "cpu"), textbook(given, "cpu")
    assert our_step.facts == textbook_step.facts
    assert our_step.facts["tokens"] == {"real": 44, "computed": 44}
    weights = dict(textbook_step.module.named_parameters())
    for name, parameter in our_step.module.named_parameters():
        assert torch.equal(parameter, weights[name])
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), Dropout(0.5)], ids=["torch", "lra"])
def test_dropout_is_told_apart_from_other_products(drop: nn.Module) -> None:
    """Masks and both passes count as dropout, so nothing element-wise is left."""
    module = nn.Sequential(nn.Linear(64, 64, bias=False), drop)
    set_keys(module, seed=1, step=0, rows=range(8))
    x, weights = torch.randn(8, 32, 64), torch.randn(8, 32, 64)

    def step(turn: int) -> None:
        module.zero_grad()
        module(x).backward(weights)

    kinds = profile(Workload(step=step, device="cpu", module=module))
    assert kinds[DROPOUT] > 0
    assert kinds["matrix products"] > 0
    assert "sums and element-wise" not in kinds


def test_rounding_errors() -> None:
    """fp32 rounds near 1e-7, bf16 near 1e-3."""
    given = settings(*TINY, "attention=simple", "batch=2")
    for precision, least, most in (("fp32", 1e-9, 1e-6), ("bf16", 1e-4, 0.1)):
        errors = accuracy.errors(given, 301, 1.0, precision, "textbook", 0, "cpu")
        assert all(least < errors[part] < most for part in accuracy.PARTS)


@pytest.mark.parametrize("variant", ["simple", "simple_resl"])
@pytest.mark.parametrize("inputs", accuracy.INPUTS)
def test_the_gram_form_rounds_no_more_than_the_textbook_form_in_fp32(inputs: str, variant: str) -> None:
    """At the width of text, where sums are long enough for it to matter."""
    given = settings("attention=simple", f"variant={variant}", "batch=2")
    drawn = [
        [accuracy.errors(given, 769, accuracy.INPUTS[inputs], "fp32", form, draw, "cpu") for form in accuracy.FORMS]
        for draw in range(5)
    ]
    for part in accuracy.PARTS:
        textbook, gram = (sum(draw[form][part] for draw in drawn) for form in range(2))
        assert gram < textbook, part


def test_the_gram_form_rounds_no_more_than_the_textbook_form_in_bf16() -> None:
    check_bf16_errors("cpu")


@pytest.mark.gpu
def test_the_gram_form_rounds_no_more_than_the_textbook_form_on_a_gpu() -> None:
    check_bf16_errors("cuda")


def check_bf16_errors(device: str) -> None:
    for changes in ((), ("variant=transformer", "attention.dropout_on=output"), ("protocol=strict",)):
        given = settings(*TINY, "attention=simple", "batch=3", *changes)
        for shared in accuracy.INPUTS.values():
            textbook, gram = (accuracy.errors(given, 301, shared, "bf16", form, 0, device) for form in accuracy.FORMS)
            for part in accuracy.PARTS:
                assert 1e-4 < gram[part] < 1.1 * textbook[part]


def test_a_missing_peer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"performer-pytorch is not installed; pip install 'lra\[peers\]'"):
        peers.check("performer-pytorch", {})
    with pytest.raises(UserError, match="did you mean 'linformer'"):
        peers.check("linfromer", {})


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_are_layers(name: str) -> None:
    peers.check(name, {})
    torch.manual_seed(1)
    layer = peers.build(name, {}, dim=32, heads=4, length=512, dropout=0.0)
    assert layer(torch.randn(2, 512, 32)).shape == (2, 512, 32)


def test_subjects_that_mean_nothing(cli: Commands) -> None:
    cases = (
        ("[simpel]", "attention=simpel: no such option; did you mean 'simple'?"),
        ("[a:b]", "expected an attention, stepwise:NAME, textbook:NAME or peer:NAME"),
        ("[stepwise:softmax]", "'stepwise:softmax': its layer has no recurrence over positions"),
        ("[textbook:linear]", "no such textbook attention"),
        ("['simple model.dpeth=3']", "did you mean 'model.depth'?"),
        ("['simple attention.form=fast']", "attention.form=fast"),
        ("[simple,simple]", "stands there twice"),
    )
    for subjects, message in cases:
        code, _, err = cli(main, "what=layer", f"subjects={subjects}", *TINY)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lengths=[32,16,32]",), "lengths=[32, 16, 32]: 32 stands there twice"),
        (("model.heads=5",), "model.heads=5 does not divide model.qkv_dim="),
        (("subjects=[textbook:softmax]", "model.qkv_dim=6"), "textbook:softmax: model.qkv_dim=6, but it is as wide as"),
        (
            ("subjects=[textbook:softmax]", "model.attention_bias=false"),
            "model.attention_bias=false, but its projections",
        ),
        (("what=epoch", "data=real", "rounds=5", "train.steps=3", "train.warmup=1"), "rounds=5: a training has"),
    ],
)
def test_what_would_be_measured_wrongly_is_refused(words: tuple[str, ...], message: str, cli: Commands) -> None:
    code, _, err = cli(main, "what=layer", *TINY, "lengths=[16]", *words)
    assert (code, message in err, len(err.strip().splitlines())) == (2, True, 1)
    assert not list(Path("runs").rglob(page.NAME))


def read(folder: str) -> tuple[dict, str]:
    with open(f"{folder}/{page.NAME}") as file:
        record = json.load(file)
    with open(f"{folder}/{page.PAGE}") as file:
        text = file.read()
    assert "\n".join(page.page(record)) == text  # of the record alone
    assert record["provenance"]["threads"] == 1
    return record, text


def test_layers_end_to_end(cli: Commands) -> None:
    subjects = "subjects=[simple,'performer attention.features=5']"
    command = ("what=layer", subjects, "lengths=[16,32]", "batch=2", "rounds=2", *TINY)
    code, _, err = cli(main, *command, "memory_limit=1")
    assert code == 0, err
    record, text = read("runs/bench/layer_text_paper")
    assert len(record["results"]) == 2 * 2
    for result in record["results"]:
        assert result["status"] == "measured"
        assert len(result["seconds"]) == 2
        assert result["allocated_bytes"] > 0
        assert result["saved_bytes"] > 0
    assert record["results"][0]["ratio"] == [1.0, 1.0, 1.0]
    assert "`performer attention.features=5`" in text
    for suffix, data in page.figure(record["results"]).items():
        with open(f"runs/bench/layer_text_paper/train.{suffix}", "rb") as file:
            assert file.read() == data
    code, _, err = cli(main, *command)
    assert code == 2
    assert "measured before" in err
    for result in record["results"]:
        result |= {"direction": "forward", "saved_bytes": None}
    record["results"][3] = {**record["results"][3], "status": "out of memory", "reason": "too much"}
    text = "\n".join(page.page(record))
    assert "Saved" not in text
    assert text.count("out of memory") == text.count("| L = 32")
    for result in record["results"]:
        result |= {"status": "out of memory", "reason": "too much"}
    assert page.write(Path("all_of_them"), record).exists()
    assert sorted(path.name for path in Path("all_of_them").iterdir()) == [
        "README.md", "bench.json", "forward.png", "forward.svg"
    ]  # fmt: skip


def test_seconds_are_those_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the clock of the process, which goes on by three in each step."""
    done = []
    monkeypatch.setattr("time.process_time", lambda: 100.0 + 3 * len(done))
    work = Workload(step=done.append, device="cpu", module=nn.Module())
    assert (seconds(work, 1, 0), seconds(work, 30, 2)) == (3, 3)
    assert done == [0, *range(60, 90)]


def test_the_lengths_of_a_single_subject_take_turns(cli: Commands) -> None:
    """So a ratio or an exponent is of one round, however the machine changes from round to round."""
    code, _, err = cli(main, "what=layer", "subjects=[simple]", "lengths=[16,32,64]", "rounds=2", *TINY)
    assert code == 0, err
    record, text = read("runs/bench/layer_text_paper")
    first, *others = record["results"]
    assert [result["length"] for result in record["results"]] == [16, 32, 64]
    assert first["ratio"] == [1.0, 1.0, 1.0]
    for other in others:
        ratios = [time / base_time for time, base_time in zip(other["seconds"], first["seconds"], strict=True)]
        assert other["ratio"] == pytest.approx([sum(ratios) / 2, min(ratios), max(ratios)])
    assert "take turns of as many tokens" in text
    assert "Time beside L = 16" in text
    for result in record["results"]:
        result["seconds"] = [1e-3 * result["length"] ** 0.75, 5e-3 * result["length"] ** 1.25]
    assert page.exponents_of_rounds(record["results"]) == pytest.approx([0.75, 1.25])
    assert "of the rounds: 1.000 [0.750, 1.250]" in "\n".join(page.page(record))
    assert page.exponents_of_rounds(record["results"][:1]) == []


def test_models_end_to_end(cli: Commands) -> None:
    command = (
        "what=model",
        "subjects=['simple variant=simple_res',textbook:softmax]",
        "lengths=[16]",
        "rounds=1",
        *TINY,
    )
    for override, message in (
        ("data=real", "what=model reads random tokens"),
        ("subjects=[peer:linformer]", "use what=layer"),
        ("subjects=[textbook:simple,'textbook:softmax model.norm=post']", "the straightforward step has pre"),
        ("lengths=[0]", "lengths"),
    ):
        code, _, err = cli(main, *command, override)
        assert code == 2
        assert message in err
    code, _, err = cli(main, *command, "directions=[train,forward]")
    assert code == 0, err
    record, text = read("runs/bench/model_text_paper")
    assert [result["direction"] for result in record["results"]] == 2 * ["train"] + 2 * ["forward"]
    assert all(result["status"] == "measured" for result in record["results"])
    assert "Saved" not in text
    assert "## Training step" in text
    assert Path("runs/bench/model_text_paper/forward.svg").exists()


def test_steps_end_to_end(cli: Commands) -> None:
    code, _, err = cli(main, *SMALL_LISTOPS, *TINY, "rounds=2", "out=step")
    assert code == 0, err
    record, text = read("step")
    base, lra = record["results"]
    assert (base["subject"], lra["subject"]) == ("straightforward", "lra")
    assert 0 < lra["flops"] < base["flops"]
    assert f"floor {lra['flops'] / base['flops']:.3f}" in text
    assert lra["tokens"] == base["tokens"] == {"real": 6 * 60, "computed": 6 * 60}


def test_an_epoch_end_to_end(cli: Commands) -> None:
    """Real batches: both read the same tokens, ours computes fewer and pads each micro-batch to its own longest."""
    command = ("what=epoch", "protocol=strict", "rounds=3", "train.micro_batch=1", "out=epoch")
    code, _, err = cli(main, *SMALL_LISTOPS, *TINY, *command)
    assert code == 2
    assert "set data=real" in err
    code, _, err = cli(main, *SMALL_LISTOPS, *TINY, *command, "data=real")
    assert code == 0, err
    record, text = read("epoch")
    base, lra = record["results"]
    assert lra["batches"] == base["batches"] == 3
    assert lra["tokens"]["real"] == base["tokens"]["real"]
    assert base["tokens"]["computed"] == 3 * 6 * 60
    assert lra["tokens"]["real"] <= lra["tokens"]["computed"] < base["tokens"]["computed"]
    assert f"ratio of the sums is {sum(lra['seconds']) / sum(base['seconds']):.3f}" in text


def test_profile_and_accuracy_end_to_end(cli: Commands) -> None:
    code, _, err = cli(main, "what=profile", *SMALL_LISTOPS, *TINY, "out=profile")
    assert code == 0, err
    record, text = read("profile")
    for result in record["results"]:
        assert {"matrix products", "dropout", "norms", "optimiser"} <= set(result["kinds"])
    assert "| dropout |" in text
    code, _, err = cli(main, "what=accuracy", *TINY, "lengths=[16]", "rounds=2", "out=accuracy")
    assert code == 0, err
    record, _ = read("accuracy")
    assert len(record["results"]) == 2 * 2 * 2
    code, _, err = cli(main, "what=accuracy", "attention=softmax")
    assert code == 2
    assert "expected attention=simple" in err


def test_accuracy_measures_both_precisions_and_takes_none(cli: Commands) -> None:
    code, _, err = cli(main, "what=accuracy", "precision=bf16")
    assert (code, "it measures fp32 and bf16" in err) == (2, True)


@pytest.mark.parametrize("kept", sorted((PACKAGE.parent / "results" / "bench").iterdir()), ids=lambda path: path.name)
def test_kept_pages_are_those_of_their_measurements(kept: Path) -> None:
    record = json.loads((kept / page.NAME).read_text())
    assert "\n".join(page.page(record)) == (kept / page.PAGE).read_text()
