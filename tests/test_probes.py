"""The probes: every answer against a plain loop, their draws, and what a model reads and is scored on."""

import re
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Commands, composed, facts, model_of, options
from torch.nn.functional import cross_entropy

from lra.cli import prepare, report, train
from lra.config import configure
from lra.core.errors import UserError
from lra.data.card import card
from lra.data.probes import BLOCK, Draws, Probe
from lra.data.splits import PositionLabels
from lra.tasks import Place, Task
from lra.tasks.word_problem import products
from lra.training.evaluate import Predictions, evaluate
from lra.training.update import accumulate

SIZES = ("task.train_size=211", "task.val_size=53", "task.test_size=67")
PROBES = {
    "mqar": ("task.length=46", "task.pairs=[3,7]", "task.vocabulary=38"),
    "selective_copy": ("task.length=41", "task.tokens=7", "task.vocabulary=13"),
    "memorise": ("task.length=22", "task.vocabulary=31"),
    "compress": ("task.length=11", "task.vocabulary=7"),
    "fuzzy_recall": ("task.length=59", "task.vocabulary=10", "task.key_size=2", "task.value_size=3"),
    "noisy_recall": ("task.length=34", "task.vocabulary=17", "task.noise_vocabulary=5", "task.noise=0.3"),
    "word_problem": ("task.group=s4", "task.length=13"),
}
TINY = ("model.dim=6", "model.heads=3", "model.depth=2", "model.mlp_dim=10")


@cache
def probe(name: str, *overrides: str) -> Probe:
    """A builder of a few small examples."""
    values = composed(f"task={name}", *SIZES, *PROBES[name], *overrides)["task"]
    return configure.build(configure.plain(values), "task", [])()


def place(cache: Path, workers: int = 1) -> Place:
    return Place(cache=cache, data_dir=None, workers=workers, progress=lambda done, total: None)


@pytest.fixture(scope="module", params=PROBES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Probe, Task]:
    builder = probe(request.param)
    return builder, builder.build(place(tmp_path_factory.mktemp("cache")))


# ---------------------------------------------------------------- answers, by loops


def selective_copy(tokens: list[int]) -> dict[int, int]:
    shown = [token for token in tokens if token < 12]
    first = tokens.index(13) + 1
    return dict(enumerate(shown, start=first))


def compress(tokens: list[int]) -> dict[int, int]:
    return dict(enumerate(tokens[:-1]))


def recall(tokens: list[int], keys: int, values: int, final: tuple[int, ...]) -> dict[int, int]:
    """Words of keys or values, read one after the other with the cut end put back."""
    kind = lambda token: "k" if token <= keys else "v" if token <= keys + values else "n"  # noqa: E731
    answers, known, at = {}, {}, 0
    tokens = [*tokens, *final]
    while at < len(tokens):
        if kind(tokens[at]) != "k":
            at += 1
            continue
        start = at
        while kind(tokens[at]) == "k":
            at += 1
        key, first = tuple(tokens[start:at]), at
        while at < len(tokens) and kind(tokens[at]) == "v":
            at += 1
        value = tuple(tokens[first:at])
        if key in known:
            assert known[key] == value
            answers |= {first + number - 1: token for number, token in enumerate(value)}
        known[key] = value
    return answers


def word_problem(tokens: list[int]) -> dict[int, int]:
    elements = list(permutations(range(4)))
    answers, state = {}, (0, 1, 2, 3)
    for at, token in enumerate(tokens):
        element = elements[token - 1]
        state = tuple(element[i] for i in state)  # first what was, then the element
        answers[at] = elements.index(state)
    return answers


def rows(split: PositionLabels) -> list[tuple[list[int], dict[int, int]]]:
    """The tokens of each example, and its answers by their places."""
    examples = []
    for example in range(len(split)):
        span = slice(split.ends[example], split.ends[example + 1])
        answers = dict(zip(split.places[span].tolist(), split.labels[span].tolist(), strict=True))
        examples.append((split.document(example).tolist(), answers))
    return examples


def test_mqar_asks_for_every_pair_once(tmp_path: Path) -> None:
    task = probe("mqar").build(place(tmp_path))
    for split in (task.train, task.val, task.test):
        for number, (tokens, answers) in enumerate(rows(split)):
            pairs = (3, 7)[number % 2]
            shown = dict(zip(tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
            assert len(shown) == len(set(shown.values())) == pairs
            assert max(shown) <= 19 < min(shown.values())
            assert all(at >= 2 * pairs and at % 2 == 0 for at in answers)
            assert {tokens[at]: answer for at, answer in answers.items()} == shown


def test_selective_copy_by_a_loop(tmp_path: Path) -> None:
    task = probe("selective_copy").build(place(tmp_path))
    for tokens, answers in rows(task.train) + rows(task.test):
        assert len(answers) == 7
        assert answers == selective_copy(tokens)
        assert tokens[-8] == 13
        assert tokens[-9] < 12  # no blank behind the last
        assert tokens[-7:] == [12] * 7


def test_memorise_has_one_table(tmp_path: Path) -> None:
    task = probe("memorise").build(place(tmp_path))
    table: dict[int, int] = {}
    for tokens, answers in rows(task.train) + rows(task.val) + rows(task.test):
        assert list(answers) == list(range(1, 22, 2))
        for at, answer in answers.items():
            assert tokens[at] == 31
            assert table.setdefault(tokens[at - 1], answer) == answer
    assert sorted(table) == list(range(1, 16))
    assert len(set(table.values())) == 15
    assert set(table.values()) <= set(range(16, 31))


def test_compress_by_a_loop(tmp_path: Path) -> None:
    task = probe("compress").build(place(tmp_path))
    for tokens, answers in rows(task.train) + rows(task.test):
        assert tokens[-1] == 7
        assert max(tokens[:-1]) < 7
        assert answers == compress(tokens)


@pytest.mark.parametrize(("name", "keys", "values"), [("fuzzy_recall", 4, 5), ("noisy_recall", 6, 6)])
def test_recall_by_a_dictionary(name: str, keys: int, values: int, tmp_path: Path) -> None:
    task = probe(name).build(place(tmp_path))
    sizes = {"train": set(), "test": set()}
    for split in sizes:
        for tokens, answers in rows(getattr(task, split)):
            last = answers[len(tokens) - 1]  # the last pair is always asked for
            assert answers == recall(tokens, keys, values, (last,))
            text = "".join("k" if token <= keys else "-" for token in tokens)
            sizes[split] |= {len(word) for word in re.findall("k+", text)}
    assert (
        sizes
        == {
            "fuzzy_recall": {"train": {1, 2}, "test": {2}},
            "noisy_recall": {"train": {1}, "test": {1}},
        }[name]
    )


def test_noise_has_its_share(tmp_path: Path) -> None:
    task = probe("noisy_recall", "task.length=402").build(place(tmp_path))
    tokens = task.train.tokens.reshape(211, 401)[:, 2:-1]  # the first and the last pair are none
    share = np.mean(tokens > 12)
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / (211 * 199)) ** 0.5


def test_word_problem_by_composition(tmp_path: Path) -> None:
    for scored, wanted in (("all", range(13)), ("last", [12])):
        task = probe("word_problem", f"task.scored={scored}").build(place(tmp_path))
        for tokens, answers in rows(task.train) + rows(task.test):
            assert answers == {at: word_problem(tokens)[at] for at in wanted}


def test_products_by_hand() -> None:
    # S3 in lexicographic order: 012, 021, 102, 120, 201, 210.
    # First 021, then 102: 0 -> 0 -> 1, 1 -> 2 -> 2, 2 -> 1 -> 0, which is 120.
    assert products("s3")[1, 2] == 3
    assert products("s3")[2, 1] == 4
    assert products("z7")[5, 4] == 2
    assert [len(products(group)) for group in ("a3", "a4", "a5", "s3", "s4", "s5", "z60")] == [
        3,
        12,
        60,
        6,
        24,
        120,
        60,
    ]


@pytest.mark.parametrize("group", ["a5", "s4", "z11"])
def test_products_are_those_of_a_group(group: str) -> None:
    table = products(group)
    order = np.arange(len(table))
    assert (table[0] == order).all()  # the first element is the neutral one
    assert (np.sort(table, axis=0) == order[:, None]).all()
    assert (np.sort(table, axis=1) == order).all()
    p, q, r = np.random.default_rng(1).integers(0, len(table), (3, 500))
    assert (table[table[p, q], r] == table[p, table[q, r]]).all()
    assert (table == table.T).all() == group.startswith("z")


# ---------------------------------------------------------------- draws


def test_draws_are_even_and_in_range() -> None:
    draws = Draws(3, 0)
    counts = np.bincount(draws.below(7, 70, 1_000).ravel(), minlength=7)
    assert len(counts) == 7
    assert abs(counts - 10_000).max() < 5 * 10_000**0.5
    shares = draws.shares(100_000)
    assert 0 < shares.min() < shares.max() < 1
    assert abs(shares.mean() - 0.5) < 4 * (1 / 12 / 100_000) ** 0.5


def test_subsets_have_no_repeats_and_every_order() -> None:
    subsets = Draws(3, 0).subsets(4, 24_000, 3)
    orders, counts = np.unique(subsets, axis=0, return_counts=True)
    assert sorted(map(tuple, orders.tolist())) == sorted(permutations(range(4), 3))
    assert abs(counts - 1_000).max() < 5 * 1_000**0.5


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_queries_follow_the_power_law(power: float, tmp_path: Path) -> None:
    """The places of the first of two queries, against numpy's choice without replacement."""
    sizes = ("task.train_size=4000", "task.pairs=2", "task.length=18", f"task.power={power}")
    task = probe("mqar", *sizes).build(place(tmp_path))
    weights = np.arange(1, 8) ** (power - 1.0)
    rng = np.random.default_rng(2)
    reference = [rng.choice(7, 2, replace=False, p=weights / weights.sum()) for _ in range(4_000)]
    expected = np.bincount(np.array(reference)[:, 0], minlength=7) / 4_000
    places = [min(at for at in answers if tokens[at] == tokens[0]) for tokens, answers in rows(task.train)]
    shares = np.bincount((np.array(places) - 4) // 2, minlength=7) / 4_000
    assert abs(shares - expected).max() < 4 * (2 * 0.25 / 4_000) ** 0.5


def test_blanks_stand_before_any_token(tmp_path: Path) -> None:
    """Twenty-six blanks over seven tokens: the number before each is binomial."""
    task = probe("selective_copy", "task.train_size=3000").build(place(tmp_path))
    tokens = task.train.tokens.reshape(3_000, 41)[:, :33]
    where = np.argsort(tokens == 12, axis=1, kind="stable")[:, :7]
    before = np.diff(where, axis=1, prepend=-1) - 1
    assert (before.sum(axis=1) == 26).all()
    deviation = (26 * 6 / 49) ** 0.5
    assert abs(before.mean(axis=0) - 26 / 7).max() < 4 * deviation / 3_000**0.5
    assert abs(before.std(axis=0) / deviation - 1).max() < 0.1


def test_workers_do_not_change_a_byte(built: tuple[Probe, Task], tmp_path: Path) -> None:
    builder, task = built
    assert builder.build(place(tmp_path / "two", workers=2)).digest == task.digest


DIGESTS = {
    "mqar": "10cc65202d6e",
    "selective_copy": "601fc80a5d30",
    "memorise": "e5f0f9470831",
    "compress": "7b570ce3fc58",
    "fuzzy_recall": "f90fa655dfb0",
    "noisy_recall": "a26600bde3b3",
    "word_problem": "68e8401c0e5f",
}


def test_the_bytes_of_a_seed_are_known(built: tuple[Probe, Task]) -> None:
    """The same on every machine; a change is a new version of the task."""
    builder, task = built
    assert task.digest[:12] == DIGESTS[builder.name]


def test_more_examples_leave_the_earlier_ones(tmp_path: Path) -> None:
    few, many = (
        probe("noisy_recall", f"task.train_size={size}").build(place(tmp_path)).train for size in (BLOCK + 3, BLOCK + 7)
    )
    assert (many.tokens[: len(few.tokens)] == few.tokens).all()
    assert (many.labels[: len(few.labels)] == few.labels).all()


def test_splits_and_seeds_differ(built: tuple[Probe, Task], tmp_path: Path) -> None:
    builder, task = built
    other = probe(builder.name, "task.seed=2").build(place(tmp_path))
    documents = [
        {tuple(tokens) for tokens, _ in rows(split)} for split in (task.train, task.val, task.test, other.train)
    ]
    assert len(set().union(*documents)) == sum(map(len, documents)) == 211 + 53 + 67 + 211


# ---------------------------------------------------------------- names, cards, baselines, groups, mistakes


def test_names_say_what_is_not_published() -> None:
    published = ("task.length=64", "task.pairs=4", "task.vocabulary=8192")
    sizes = ("task.train_size=100000", "task.val_size=3000", "task.test_size=3000")
    assert probe("mqar", *published, *sizes).facts.name == "mqar (length 64, pairs 4)"
    assert probe("mqar").facts.name == "mqar (length 46, pairs 3-7, vocabulary 38, 211/53/67 examples)"
    assert probe("compress", "task.causal=false").facts.name.endswith("211/53/67 examples, two-sided)")


def test_the_card_counts_answers(built: tuple[Probe, Task]) -> None:
    _, task = built
    text = card(task)
    assert f"| {len(task.test.labels):,} answers, {len(np.unique(task.test.labels))} different |" in text
    assert "- train and test share 0 different examples" in text
    assert "- scored: positions with an answer" in text


def test_baselines_by_loops(built: tuple[Probe, Task]) -> None:
    builder, task = built
    counts = np.bincount(task.train.labels)
    expected = {"most frequent answer": np.mean(task.test.labels == counts.argmax())}
    examples = rows(task.test)
    if builder.name == "mqar":
        expected["a value of the context at random"] = np.mean(
            [1 / len(answers) for _, answers in examples for _ in answers]
        )
    if builder.name == "selective_copy":
        shown = [[token for token in tokens if token < 12] for tokens, _ in examples]
        hits = [
            symbols.count(answer) / 7
            for symbols, (_, answers) in zip(shown, examples, strict=True)
            for answer in answers.values()
        ]
        expected["a token of the context at random"] = np.mean(hits)
    if builder.name.endswith("recall"):
        first, stop = {"fuzzy_recall": (5, 10), "noisy_recall": (7, 13)}[builder.name]
        hits = []
        for tokens, answers in examples:
            for at, answer in answers.items():
                values = [token for token in tokens[: at + 1] if first <= token < stop]
                hits.append(values.count(answer) / len(values))
        expected["a value of the context at random"] = np.mean(hits)
    if builder.name == "word_problem":
        hits = [answer == tokens[at] - 1 for tokens, answers in examples for at, answer in answers.items()]
        expected["the element itself"] = np.mean(hits)
        assert np.mean(builder.guesses(task) == task.test.labels) == np.mean(hits)
    assert task.baselines == pytest.approx({name: 100 * share for name, share in expected.items()})


def test_every_prediction_has_one_value_in_each_group(built: tuple[Probe, Task]) -> None:
    builder, task = built
    groups = builder.groups(task.test)
    assert groups
    for group in groups.values():
        assert sorted(np.concatenate(list(group.values()))) == list(range(len(task.test.labels)))


def test_groups_by_loops(tmp_path: Path) -> None:
    """What each group says of its predictions, found again in the tokens."""

    def said(name: str, group: str) -> list[tuple[list[int], int, str]]:
        builder = probe(name)
        split = builder.build(place(tmp_path)).test
        values = dict.fromkeys(range(len(split.labels)), "")
        for value, members in builder.groups(split)[group].items():
            values |= dict.fromkeys(members.tolist(), value)
        every = [(tokens, at) for tokens, answers in rows(split) for at in answers]
        return [(tokens, at, values[number]) for number, (tokens, at) in enumerate(every)]

    def within(number: int, value: str) -> bool:
        ends = [int(end) for end in value.split("-")]
        return ends[0] <= number <= ends[-1]

    for tokens, at, value in said("mqar", "distance"):
        assert within(at - tokens.index(tokens[at]), value)
    for tokens, at, value in said("noisy_recall", "distance"):
        assert within(at - max(place for place in range(at) if tokens[place] == tokens[at]), value)
    for tokens, at, value in said("selective_copy", "distance"):
        shown = [place for place, token in enumerate(tokens) if token < 12]
        assert within(at - shown[at - 34], value)
    for tokens, at, value in said("fuzzy_recall", "token of the value"):
        start = max(place for place in range(at + 1) if tokens[place] <= 4)
        assert value == str(at - start + 1)


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("mqar", "task.pairs=12", "task.length=46: expected at least 48 for task.pairs=12"),
        ("mqar", "task.pairs=20 task.length=80", "task.vocabulary=38: expected at least 40 for task.pairs=20"),
        ("mqar", "task.length=47", "task.length=47: expected an even number"),
        ("mqar", "task.vocabulary=37", "task.vocabulary=37: expected an even number"),
        ("selective_copy", "task.tokens=20", "task.length=41: expected at least 42 for task.tokens=20"),
        ("selective_copy", "task.vocabulary=3", "task.vocabulary=3: expected at least 4"),
        ("memorise", "task.length=21", "task.length=21: expected an even number"),
        ("memorise", "task.vocabulary=4", "task.vocabulary=4: expected at least 5"),
        ("compress", "task.length=1", "task.length=1: expected at least 2"),
        (
            "fuzzy_recall",
            "task.vocabulary=4",
            "it leaves 1 tokens for keys and 2 for values, expected at least 2 and 3",
        ),
        ("fuzzy_recall", "task.length=14", "task.length=14: expected at least 15"),
        ("noisy_recall", "task.length=33", "task.length=33: expected an even number"),
        ("noisy_recall", "task.noise_vocabulary=16", "leaves 0 tokens for keys and 1"),
        ("word_problem", "task.group=a6", "task.group=a6: expected a3 to a5, s3 to s5, or z2 to z120"),
        ("word_problem", "task.group=z121", "task.group=z121: expected a3"),
        ("word_problem", "task.group=q8", "task.group=q8: expected a3"),
    ],
)
def test_impossible_options_are_refused(name: str, override: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        probe(name, *override.split())
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- what a model reads, and what is scored


def marked(**changes: object) -> PositionLabels:
    """Three examples of five tokens with 2, 0 and 3 answers."""
    known = {
        "tokens": np.arange(1, 16, dtype=np.uint8),
        "offsets": np.array([0, 5, 10, 15]),
        "index": np.arange(3),
        "labels": np.array([7, 3, 1, 4, 2], dtype=np.uint16),
        "ends": np.array([0, 2, 2, 5]),
        "places": np.array([1, 4, 0, 2, 3]),
    }
    return PositionLabels(**known | changes)


def test_scored_positions_by_hand() -> None:
    split = marked()
    chosen = np.array([2, 1, 0])
    assert (len(split), split.documents) == (3, 1)
    assert split.predictions(chosen).tolist() == [2, 3, 4, 0, 1]
    assert split.targets(chosen).tolist() == [1, 4, 2, 7, 3]
    assert split.scored(chosen, 5).tolist() == [0, 2, 3, 11, 14]
    assert split.predictions(np.array([1])).tolist() == []
    assert len(set(split.verdicts())) == 3
    assert marked(labels=np.array([7, 3, 1, 4, 5])).verdicts()[2] != split.verdicts()[2]


def task_and_model(name: str, tmp_path: Path, *overrides: str) -> tuple[Task, torch.nn.Module]:
    task = probe(name).build(place(tmp_path))
    torch.manual_seed(5)
    return task, model_of(f"task={name}", *TINY, *overrides, task=task).double()


@pytest.mark.parametrize("name", PROBES)
def test_the_head_sees_scored_positions_alone(name: str, tmp_path: Path) -> None:
    task, model = task_and_model(name, tmp_path, "attention=softmax")
    seen = []
    first = model.head if isinstance(model.head, torch.nn.Linear) else model.head.decoder[0]
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    score = evaluate(model, task.val, 7, precision="fp32")
    assert sum(shape[0] for shape in seen) == score.examples == len(task.val.labels)
    assert all(len(shape) == 2 for shape in seen)


@pytest.mark.parametrize("name", PROBES)
def test_the_score_is_that_of_scored_positions(name: str, tmp_path: Path) -> None:
    """All examples together, against the logits of every position."""
    task, model = task_and_model(name, tmp_path, "attention=softmax")
    correct, losses = 0, []
    for tokens, answers in rows(task.val):
        logits = model.eval()(torch.tensor([tokens]))[0]
        correct += sum(int(logits[at].argmax()) == answer for at, answer in answers.items())
        losses += [cross_entropy(logits[at], torch.tensor(answer)).item() for at, answer in answers.items()]
    for batch in (1, 7, 64):
        keep = Predictions(len(task.val.labels))
        score = evaluate(model, task.val, batch, precision="fp32", keep=keep)
        assert (score.correct, score.examples) == (correct, len(losses))
        assert score.loss == pytest.approx(np.mean(losses), rel=1e-12)
        assert (keep.classes == task.val.labels).sum() == correct


@pytest.mark.parametrize("name", ["mqar", "fuzzy_recall"])
def test_the_gradient_does_not_depend_on_the_cuts(name: str, tmp_path: Path) -> None:
    """Examples have different numbers of answers; the loss is the mean over those of the whole batch."""
    task, model = task_and_model(name, tmp_path, "attention=softmax")
    examples = np.arange(3, 32)
    assert len(set(task.train.counts(examples).tolist())) > 1
    losses, gradients = [], []
    for micro_batch in (29, 5, 1):
        model.zero_grad()
        loss = accumulate(model, task.train, examples, micro_batch, seed=1, step=0, precision="fp32")[0].item()
        losses.append(loss)
        gradients.append(model.head.weight.grad.clone())
    targets = torch.from_numpy(task.train.targets(examples))
    tokens = torch.from_numpy(task.train.pad(examples, task.max_len)).long()
    logits = model(tokens).flatten(0, 1)[torch.from_numpy(task.train.scored(examples, task.max_len))]
    assert losses == pytest.approx([cross_entropy(logits, targets).item()] * 3, rel=1e-12)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


def test_compress_decodes_from_the_last_position_alone(tmp_path: Path) -> None:
    _, model = task_and_model("compress", tmp_path, "attention=softmax")
    seen = []
    model.blocks[-1].register_forward_hook(lambda *given: seen.append(given[2]))
    logits = model.eval()(torch.tensor([[1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 7]]))
    assert logits.shape == (1, 11, 8)
    last = model.final_norm(seen[0][:, -1])
    assert torch.equal(model.head(last, None), logits)
    torch.testing.assert_close(model.head(last, torch.tensor([3, 8])), logits[0, [3, 8]], rtol=1e-12, atol=1e-12)


ATTENTIONS = options("attention")


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_takes_part_or_says_why_not(attention: str) -> None:
    """As configured for a probe: causal, or else one line; two-sided always."""
    tokens = torch.ones(2, 64, dtype=torch.long)
    chosen = (f"attention={attention}", "task=mqar", *TINY)
    known = facts(objective="positions", vocab_size=17, max_len=64, classes=5)
    two_sided = model_of(*chosen, task=known).eval()
    assert two_sided(tokens, torch.tensor([3, 67])).shape == (2, 5)
    causal = facts(objective="positions", vocab_size=17, max_len=64, classes=5, causal=True)
    try:
        model = model_of(*chosen, task=causal).eval()
    except UserError as error:
        assert re.fullmatch(r"\w+ has no causal form, which this task needs: choose another attention", str(error))
        return
    other = torch.where(torch.arange(64) < 41, tokens, 2)
    torch.testing.assert_close(model(tokens)[:, :41], model(other)[:, :41])


def test_most_attentions_are_causal_here() -> None:
    """So that the law above is not kept by refusals."""
    for attention in ("simple", "softmax", "linear", "local", "retention", "s4d"):
        known = facts(objective="positions", causal=True)
        assert model_of(f"attention={attention}", "task=mqar", *TINY, task=known).blocks[0].mixer.causal


def test_a_run_leaves_a_record_that_is_verified(cli: Commands) -> None:
    """Counts, groups and calibration are those of its predictions."""
    sizes = [key for key in PROBES["fuzzy_recall"] if "size" not in key]
    code, _, err = cli(train.main, "experiment=smoke", "task=fuzzy_recall", "attention=softmax", "out=mine", *sizes)
    assert code == 0, err
    assert cli(report.main, "mine")[0] == 0
    code, out, err = cli(report.main, "--verify", "mine")
    assert (code, out) == (0, "mine: 1 runs, 0 mismatches\n"), err


def test_a_mixer_that_looks_ahead_is_refused_in_one_line(cli: Commands) -> None:
    code, _, err = cli(train.main, "experiment=smoke", "task=mqar", "attention=fnet", "out=mine")
    assert code == 2
    assert (
        err.strip()
        .splitlines()[-1]
        .endswith("FNet has no causal form, which this task needs: choose another attention")
    )


@pytest.mark.parametrize("vocabulary", [65_534, 100_000])
def test_more_kinds_of_tokens_than_can_be_stored_are_refused(vocabulary: int, cli: Commands) -> None:
    """They would wrap around, and the model would read others than were drawn."""
    sizes = [f"task.{name}_size=5" for name in ("train", "val", "test")]
    code, _, err = cli(
        prepare.main, "task=mqar", f"task.vocabulary={vocabulary}", "task.pairs=2", "task.length=18", *sizes
    )
    assert code == (2 if vocabulary > 65_535 else 0), err
    assert ("at most 65,536" in err) == (vocabulary > 65_535)
