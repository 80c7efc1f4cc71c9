"""Names of tasks follow from their options; the hub must have the published data."""

from functools import partial
from pathlib import Path

import pytest
from support import built_under_one_name, data_config

from lra.core.errors import UserError
from lra.datasets import hub
from lra.tasks import TaskBuilder, ag_news, text
from lra.tasks.acl_matching import AclMatching
from lra.tasks.ag_news import AgNews
from lra.tasks.books import Books
from lra.tasks.image import Image
from lra.tasks.listops import ListOpsFiles
from lra.tasks.matching import Matching
from lra.tasks.text import Text

imdb = partial(Text, max_length=37, validation="test", limit=None)
news = partial(AgNews, vocab=None, vocabulary=263, head=5, tail=3, limit=None)


@pytest.mark.parametrize(
    ("name", "builder"),
    [
        ("text (length 37)", imdb()),
        ("text (limit 11)", imdb(max_length=4000, limit=11)),
        ("ag_news (BPE 263, length 5+3)", news(tokenizer="bpe")),
        ("matching", Matching(max_length=4000, limit=None)),
        ("matching (length 43, limit 7)", Matching(max_length=43, limit=7)),
        ("acl_matching", AclMatching(max_length=4000, limit=None)),
        (
            "books (context 3, vocabulary 263)",
            Books(context=3, vocabulary=263, groups=["young-adventure", "children"], limit=None),
        ),
        ("image (limit 5)", Image(limit=5)),
        ("listops (length 7)", ListOpsFiles(folder=".", max_length=7)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_name_of_a_task_lists_the_options_that_differ(name: str, builder: TaskBuilder, tmp_path: Path) -> None:
    assert builder.at(data_config(tmp_path / "cache", tmp_path)).spec.name == name


def test_the_hub_has_the_published_data_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"label": row % 2, "text": f"kite moon tree lamp {row}"} for row in range(26)]
    monkeypatch.setattr(hub, "from_hub", lambda what, load, failed: [rows, rows])
    for module, task, build in (
        (ag_news, "fancyzhx/ag_news", news(tokenizer="bpe")),
        (text, "stanfordnlp/imdb", imdb()),
    ):
        monkeypatch.setattr(module, "ROWS", {"train": 26, "test": 26})
        assert "examples" not in built_under_one_name(build, data_config(tmp_path / task)).name
        monkeypatch.setattr(module, "ROWS", {"train": 26, "test": 29})
        with pytest.raises(UserError, match=f"{task}: 26 rows in test, expected 29"):
            build.build(data_config(tmp_path / "other"))
