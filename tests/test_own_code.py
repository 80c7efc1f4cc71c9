"""A run is refused, and not pooled, if the user's attention, task or files changed since it was made."""

import sys
from pathlib import Path

import pytest
from reports import put
from support import Commands

from lra.cli import new, report, train
from lra.core.code import fingerprints
from lra.core.errors import UserError
from lra.core.signals import PAUSED
from lra.records import record
from lra.records.names import RECORD
from lra.reports import Report

TINY = ("experiment=smoke", "train.steps=4", "train.eval_every=2", "train.warmup=1", "train.batch_size=5")
SIZES = ("task=listops_short", "task.train_size=20", "task.val_size=5", "task.test_size=5", "train.micro_batch=5")
MINE = (*TINY, *SIZES, "attention=mine", "out=o")


EDITED = "\nedited = True\n"


def edit(path: str, old: str = "", new: str = EDITED) -> None:
    """Replace `old`, or append `new`, and have the module imported again, as another process does."""
    text = Path(path).read_text()
    Path(path).write_text(text.replace(old, new, 1) if old else text + new)
    sys.modules.pop(Path(path).stem, None)


def scaffold(cli: Commands, kind: str, name: str) -> None:
    assert cli(new.main, kind, name)[0] == 0
    sys.modules.pop(name, None)


def refused(cli: Commands, *words: str, because: str) -> None:
    code, _, err = cli(train.main, *words)
    assert code == 2
    assert because in err.splitlines()[-1]


def test_sources_are_those_that_a_module_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "own.py": "import json\nimport torch.nn as nn\nimport helper\nfrom parts.inner import deep as other\n",
        "helper.py": "def late():\n    from lra.mixers import Mixer\n    import distant.away\n",
        "parts/__init__.py": "",
        "parts/inner/__init__.py": "from . import deep\nfrom ..side import something\n",
        "parts/inner/deep.py": "import own\n",
        "parts/side.py": "something = 1\n",
        "distant/away.py": "",
        "parts/unused.py": "",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    used = {name for name in files if "unused" not in name}
    assert fingerprints("own.Class").keys() == used
    assert fingerprints("lra.mixers.Mixer", "torch.nn.Linear", "json", "nowhere.Class") == {}


def test_only_code_changes_the_fingerprint_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        "plain": "def twice(x):\n    return 2 * x\n",
        "documented": '"""A module."""\n\n\ndef twice(x):\n    """Double x."""\n    return 2 * x  # exact\n',
        "changed": "def twice(x):\n    return 3 * x\n",
    }
    for name, text in sources.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    plain, documented, changed = (fingerprints(name)[f"{name}.py"] for name in sources)
    assert plain == documented != changed


def test_an_edited_attention_is_refused_with_its_file(cli: Commands) -> None:
    """It is refused after the end of a run, between two seeds, and during a pause."""
    scaffold(cli, "attention", "mine")
    paused = (*MINE, "train.steps=4000", "sweep_minutes=1e-4", "out=p")
    assert cli(train.main, *MINE, "seed=1")[0] == 0
    assert cli(train.main, *paused)[0] == PAUSED
    edit("mine.py")
    for words in ((*MINE, "seed=1"), paused):
        refused(cli, *words, because="the code in mine.py has changed")
    kept = f"rerun='{next(Path('o').rglob('seed1'))}'"
    refused(cli, kept, "packages=[mine]", because="the code in mine.py has changed since the run; restore it")
    assert cli(train.main, *MINE, "seed=3")[0] == 0
    code, _, err = cli(report.main, "o")
    assert (code, "trained by different code: mine.py was edited between them" in err) == (2, True)
    edit("mine.py", EDITED, "")
    assert cli(train.main, *MINE, "seed=1")[0] == 0, "it is the first code again"


def test_an_edited_task_and_a_replaced_file_make_new_data(cli: Commands) -> None:
    scaffold(cli, "task", "tsk")
    words = (*TINY, "task=tsk", "task.examples=20", "train.micro_batch=5", "attention=fnet", "max_hours=null")
    digests = []

    def trained() -> None:
        assert cli(train.main, *words, "out=o", "overwrite=true")[0] == 0
        [path] = Path("o").rglob(RECORD)
        digests.append(record.read(path)["provenance"]["data_sha256"])

    trained()
    edit("tsk.py", "row.sum() % 2", "row[0]")
    refused(cli, *words, "out=o", because="the code in tsk.py has changed")
    trained()
    Path("words.txt").write_text("even")
    edit("tsk.py", "int(row[0])", 'int(row[0]) ^ len(Path("words.txt").read_text()) % 2')
    edit("tsk.py", "return []", 'return [Path("words.txt")]')
    trained()
    Path("words.txt").write_text("odd")
    refused(cli, *words, "out=o", because="the data of tsk (length 23) have changed")
    trained()
    assert len({*digests}) == 3 and digests[1] == digests[2] != digests[3]


def test_reports_do_not_pool_different_code(tmp_path: Path) -> None:
    for seed, digest in ((1, "a"), (2, "b")):
        put(tmp_path, seed, 37.0, config={"code": {"package/mine.py": digest}})
    with pytest.raises(UserError, match=r"seed1 and .*seed2 would share a cell .* package/mine\.py was edited"):
        Report(tmp_path)
