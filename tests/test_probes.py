"""Probe tasks: answers by plain loops, distributions of the draws, baselines, and the positions that are scored."""

import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from support import accumulate, builder_of, data_config, model_of
from torch.nn.functional import cross_entropy

from lra.core.errors import UserError
from lra.datasets.probes import Draws, Probe
from lra.datasets.splits import PositionLabels
from lra.tasks import Task
from lra.tasks.word_problem import products
from lra.training.evaluate import Predictions, evaluate

SIZES = {"train_size": 211, "val_size": 53, "test_size": 67}
PROBES = {
    "mqar": {"length": 46, "pairs": [3, 7], "vocabulary": 38},
    "selective_copy": {"length": 41, "tokens": 7, "vocabulary": 13},
    "memorise": {"length": 22, "vocabulary": 31},
    "compress": {"length": 11, "vocabulary": 7},
    "fuzzy_recall": {"length": 59, "vocabulary": 10, "key_size": 2, "value_size": 3},
    "noisy_recall": {"length": 34, "vocabulary": 17, "noise_vocabulary": 5, "noise": 0.3},
    "word_problem": {"group": "s4", "length": 13},
}
DIGESTS = {
    "mqar": "10cc65202d6e",
    "selective_copy": "601fc80a5d30",
    "memorise": "e5f0f9470831",
    "compress": "7b570ce3fc58",
    "fuzzy_recall": "f90fa655dfb0",
    "noisy_recall": "a26600bde3b3",
    "word_problem": "68e8401c0e5f",
}
TINY = ("model.dim=6", "model.heads=3", "model.depth=2", "model.mlp_dim=10", "attention=softmax")


def probe(name: str, **changes: object) -> Probe:
    """A builder of a few small examples."""
    return builder_of(name, **SIZES | PROBES[name] | changes)


def task_of(name: str, cache: Path, **changes: object) -> Task:
    return probe(name, **changes).build(data_config(cache))


@pytest.fixture(params=PROBES)
def built(request: pytest.FixtureRequest, cache: Path) -> tuple[Probe, Task]:
    return probe(request.param), task_of(request.param, cache)


Row = tuple[list[int], dict[int, int]]


def rows(*splits: PositionLabels) -> list[Row]:
    """The tokens of each example, and its answers by position."""
    examples = []
    for split in splits:
        for example in range(len(split)):
            span = slice(split.ends[example], split.ends[example + 1])
            answers = dict(zip(split.positions[span].tolist(), split.labels[span].tolist(), strict=True))
            examples.append((split.document(example).tolist(), answers))
    return examples


# ---------------------------------------------------------------- answers by loops


def test_mqar_asks_for_every_pair_once(cache: Path) -> None:
    task = task_of("mqar", cache)
    for split in (task.train, task.val, task.test):
        for number, (tokens, answers) in enumerate(rows(split)):
            pairs = (3, 7)[number % 2]
            shown = dict(zip(tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
            assert len(shown) == len(set(shown.values())) == pairs
            assert max(shown) <= 19 < min(shown.values())
            assert all(at >= 2 * pairs and at % 2 == 0 for at in answers)
            assert {tokens[at]: answer for at, answer in answers.items()} == shown


def test_selective_copy_by_a_loop(cache: Path) -> None:
    task = task_of("selective_copy", cache)
    for tokens, answers in rows(task.train, task.test):
        assert answers == dict(enumerate([token for token in tokens if token < 12], start=34))
        assert len(answers) == 7 and tokens[-8] == 13
        assert tokens[-9] < 12  # no blank after the last token
        assert tokens[-7:] == [12] * 7


def test_memorise_has_one_table_for_all_splits(cache: Path) -> None:
    task = task_of("memorise", cache)
    table: dict[int, int] = {}
    for tokens, answers in rows(task.train, task.val, task.test):
        assert list(answers) == list(range(1, 22, 2))
        for at, answer in answers.items():
            assert tokens[at] == 31
            assert table.setdefault(tokens[at - 1], answer) == answer
    assert sorted(table) == list(range(1, 16))
    assert len(set(table.values())) == 15
    assert set(table.values()) <= set(range(16, 31))


def test_compress_by_a_loop(cache: Path) -> None:
    task = task_of("compress", cache)
    for tokens, answers in rows(task.train, task.test):
        assert tokens[-1] == 7 and max(tokens[:-1]) < 7
        assert answers == dict(enumerate(tokens[:-1]))


def recall(tokens: list[int], keys: int, values: int) -> dict[int, int]:
    """Answers of a sequence, its last token included, by a dictionary of the keys read so far."""
    kinds = "".join("k" if token <= keys else "v" if token <= keys + values else "n" for token in tokens)
    answers, known = {}, {}
    for match in re.finditer("(k+)(v+)", kinds):
        key, value = (tuple(tokens[slice(*match.span(group))]) for group in (1, 2))
        if key in known:
            assert known[key] == value
            answers |= dict(enumerate(value, start=match.start(2) - 1))
        known[key] = value
    return answers


@pytest.mark.parametrize(
    ("name", "keys", "values", "sizes"), [("fuzzy_recall", 4, 5, ({1, 2}, {2})), ("noisy_recall", 6, 6, ({1}, {1}))]
)
def test_recall_by_a_dictionary(name: str, keys: int, values: int, sizes: tuple[set, set], cache: Path) -> None:
    task = task_of(name, cache)
    for split, expected in zip((task.train, task.test), sizes, strict=True):
        found = set()
        for tokens, answers in rows(split):
            assert answers == recall([*tokens, answers[len(tokens) - 1]], keys, values)  # the last pair is asked for
            found |= {len(word) for word in re.findall("k+", "".join("-k"[token <= keys] for token in tokens))}
        assert found == expected


@pytest.mark.parametrize(("scored", "wanted"), [("all", range(13)), ("last", [12])])
def test_word_problem_by_composition(scored: str, wanted: list[int], cache: Path) -> None:
    task, elements = task_of("word_problem", cache, scored=scored), list(permutations(range(4)))
    for tokens, answers in rows(task.train, task.test):
        products, state = {}, (0, 1, 2, 3)
        for at, token in enumerate(tokens):
            state = tuple(elements[token - 1][i] for i in state)  # first the earlier product, then the element
            products[at] = elements.index(state)
        assert answers == {at: products[at] for at in wanted}


def test_products_by_hand() -> None:
    # S3 in lexicographic order: 012, 021, 102, 120, 201, 210.
    # First 021, then 102: 0 -> 0 -> 1, 1 -> 2 -> 2, 2 -> 1 -> 0, which is 120.
    assert (products("s3")[1, 2], products("s3")[2, 1], products("z7")[5, 4]) == (3, 4, 2)
    orders = {"a3": 3, "a4": 12, "a5": 60, "s3": 6, "s4": 24, "s5": 120, "z60": 60}
    assert {group: len(products(group)) for group in orders} == orders


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
    shares = draws.uniform(100_000)
    assert 0 < shares.min() < shares.max() < 1
    assert abs(shares.mean() - 0.5) < 4 * (1 / 12 / 100_000) ** 0.5


def test_subsets_have_no_repeats_and_every_order() -> None:
    subsets = Draws(3, 0).subsets(4, 24_000, 3)
    orders, counts = np.unique(subsets, axis=0, return_counts=True)
    assert sorted(map(tuple, orders.tolist())) == sorted(permutations(range(4), 3))
    assert abs(counts - 1_000).max() < 5 * 1_000**0.5


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_queries_follow_the_power_law(power: float, cache: Path) -> None:
    """The positions of the first of two queries, against numpy's choice without replacement."""
    task = task_of("mqar", cache, train_size=4_000, pairs=2, length=18, power=power)
    weights = np.arange(1, 8) ** (power - 1.0)
    rng = np.random.default_rng(2)
    reference = [rng.choice(7, 2, replace=False, p=weights / weights.sum()) for _ in range(4_000)]
    expected = np.bincount(np.array(reference)[:, 0], minlength=7) / 4_000
    places = [min(at for at in answers if tokens[at] == tokens[0]) for tokens, answers in rows(task.train)]
    shares = np.bincount((np.array(places) - 4) // 2, minlength=7) / 4_000
    assert abs(shares - expected).max() < 4 * (2 * 0.25 / 4_000) ** 0.5


def test_blanks_are_spread_evenly(cache: Path) -> None:
    """Twenty-six blanks over seven tokens: the number before each is binomial."""
    task = task_of("selective_copy", cache, train_size=3_000)
    tokens = task.train.tokens.reshape(3_000, 41)[:, :33]
    where = np.argsort(tokens == 12, axis=1, kind="stable")[:, :7]
    before = np.diff(where, axis=1, prepend=-1) - 1
    assert (before.sum(axis=1) == 26).all()
    deviation = (26 * 6 / 49) ** 0.5
    assert abs(before.mean(axis=0) - 26 / 7).max() < 4 * deviation / 3_000**0.5
    assert abs(before.std(axis=0) / deviation - 1).max() < 0.1


def test_the_bytes_of_a_seed_are_known(built: tuple[Probe, Task], tmp_path: Path) -> None:
    """The same on every machine and with any number of workers; a change is a new version of the task."""
    builder, task = built
    assert task.digest[:12] == DIGESTS[builder.name]
    assert builder.build(data_config(tmp_path, workers=2)).digest == task.digest


def test_splits_and_seeds_differ(built: tuple[Probe, Task], cache: Path) -> None:
    builder, task = built
    splits = (task.train, task.val, task.test, task_of(builder.name, cache, seed=2).train)
    documents = [{tuple(tokens) for tokens, _ in rows(split)} for split in splits]
    assert len(set().union(*documents)) == sum(map(len, documents)) == 211 + 53 + 67 + 211


# ---------------------------------------------------------------- names, baselines, groups, mistakes


def test_names_contain_unpublished_options() -> None:
    published = {"length": 64, "pairs": 4, "vocabulary": 8_192}
    sizes = {"train_size": 100_000, "val_size": 3_000, "test_size": 3_000}
    assert probe("mqar", **published | sizes).spec.name == "mqar (length 64, pairs 4)"
    assert probe("mqar").spec.name == "mqar (length 46, pairs 3-7, vocabulary 38, 211/53/67 examples)"
    assert probe("compress", causal=False).spec.name.endswith("211/53/67 examples, two-sided)")


def trick(name: str, examples: list[Row]) -> tuple[str, list[float]]:
    """The name of a trivial baseline beside the most frequent answer, and its chance of each answer."""
    chances = []
    for tokens, answers in examples:
        for at, answer in answers.items():
            if name == "mqar":
                shown = list(answers.values())
            elif name == "selective_copy":
                shown = [token for token in tokens if token < 12]
            elif name == "word_problem":
                shown = [tokens[at] - 1]
            else:
                first, stop = {"fuzzy_recall": (5, 10), "noisy_recall": (7, 13)}[name]
                shown = [token for token in tokens[: at + 1] if first <= token < stop]
            chances.append(shown.count(answer) / len(shown))
    titles = {"selective_copy": "a token of the context at random", "word_problem": "the element itself"}
    return titles.get(name, "a value of the context at random"), chances


def test_baselines_by_loops(built: tuple[Probe, Task]) -> None:
    builder, task = built
    counts = np.bincount(task.train.labels)
    expected = {"most frequent answer": np.mean(task.test.labels == counts.argmax())}
    if builder.name not in ("memorise", "compress"):
        title, chances = trick(builder.name, rows(task.test))
        expected[title] = np.mean(chances)
    if builder.name == "word_problem":
        assert ((builder.baseline_predictions(task) == task.test.labels) == chances).all()
    assert task.baselines == pytest.approx({name: 100 * share for name, share in expected.items()})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mqar", {"pairs": 12}, "task.length=46: expected at least 48 for task.pairs=12"),
        ("mqar", {"pairs": 20, "length": 80}, "task.vocabulary=38: expected at least 40 for task.pairs=20"),
        ("mqar", {"length": 47}, "task.length=47: "),
        ("mqar", {"vocabulary": 37}, "task.vocabulary=37: "),
        ("selective_copy", {"tokens": 20}, "task.length=41: expected at least 42 for task.tokens=20"),
        ("memorise", {"length": 21}, "task.length=21: "),
        ("compress", {"length": 1}, "task.length=1: "),
        ("fuzzy_recall", {"vocabulary": 4}, "task.vocabulary=4: "),
        ("noisy_recall", {"length": 33}, "task.length=33: "),
        ("noisy_recall", {"noise_vocabulary": 16}, "task.vocabulary=17: it leaves 0 tokens for keys and 1"),
        ("word_problem", {"group": "z121"}, "task.group=z121: "),
    ],
)
def test_impossible_options_are_refused(name: str, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        probe(name, **changes)
    assert "\n" not in error.value.args[0]


# ---------------------------------------------------------------- what a model reads, and what is scored


def test_scored_positions_by_hand() -> None:
    """Three examples of five tokens with 2, 0 and 3 answers."""
    known = {
        "tokens": np.arange(1, 16, dtype=np.uint8),
        "offsets": np.array([0, 5, 10, 15]),
        "index": np.arange(3),
        "labels": np.array([7, 3, 1, 4, 2], dtype=np.uint16),
        "ends": np.array([0, 2, 2, 5]),
        "positions": np.array([1, 4, 0, 2, 3]),
    }
    split, chosen = PositionLabels(**known), np.array([2, 1, 0])
    assert (len(split), split.documents) == (3, 1)
    assert split.predictions(chosen).tolist() == [2, 3, 4, 0, 1]
    assert split.targets(chosen).tolist() == [1, 4, 2, 7, 3]
    assert split.scored(chosen, 5).tolist() == [0, 2, 3, 11, 14]
    assert split.predictions(np.array([1])).tolist() == []


def task_and_model(name: str, cache: Path) -> tuple[Task, torch.nn.Module]:
    task = task_of(name, cache)
    torch.manual_seed(5)
    return task, model_of(f"task={name}", *TINY, task=task).double()


@pytest.mark.parametrize("name", ["mqar", "compress", "fuzzy_recall", "word_problem"])
def test_the_score_is_that_of_scored_positions(name: str, cache: Path) -> None:
    """All examples together, against the logits of every position; the head computes scored positions alone."""
    task, model = task_and_model(name, cache)
    correct, losses = 0, []
    for tokens, answers in rows(task.val):
        logits = model.eval()(torch.tensor([tokens]))[0]
        correct += sum(int(logits[at].argmax()) == answer for at, answer in answers.items())
        losses += [cross_entropy(logits[at], torch.tensor(answer)).item() for at, answer in answers.items()]
    seen = []
    head = model.head if isinstance(model.head, torch.nn.Linear) else model.head.decoder[0]
    head.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    for batch in (1, 7, 64):
        seen.clear()
        keep = Predictions(len(task.val.labels))
        score = evaluate(model, task.val, batch, precision="fp32", keep=keep)
        assert (score.correct, score.examples) == (correct, len(losses))
        assert score.loss == pytest.approx(np.mean(losses), rel=1e-12)
        assert (keep.classes == task.val.labels).sum() == correct
        assert sum(seen) == len(losses)


@pytest.mark.parametrize("name", ["mqar", "fuzzy_recall"])
def test_the_gradient_does_not_depend_on_the_cuts(name: str, cache: Path) -> None:
    """Examples have different numbers of answers; the loss is the mean over those of the whole batch."""
    task, model = task_and_model(name, cache)
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
