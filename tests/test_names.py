"""A data set has one name for its folder, its column and loggers; letters stay, long names end with a digest."""

from pathlib import Path

import pytest
from support import composed

from lra.config.cell import cell_of
from lra.core.names import data_name, file_name, shortened


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("reviews.v1.csv", "reviews.v1"),
        ("deep/reviews.v2.jsonl.gz", "reviews.v2"),
        ("my.data", "my.data"),
        ("fruit/train.csv", "fruit"),
        ("電影.csv", "電影"),
        ("हिन्दी.tsv", "हिन्दी"),
        ("cafe\u0301.csv", "caf\u00e9"),
        ("hf:stanfordnlp/sst2", "sst2"),
        ("hf:nyu-mll/glue:cola", "glue:cola"),
    ],
)
def test_the_name_of_data_is_that_of_their_folder(data: str, name: str) -> None:
    assert data_name(data, None) == name


def test_the_folder_of_a_run_has_the_name_of_its_data() -> None:
    cfg = composed("experiment=smoke", "task=files", "task.data='hf:nyu-mll/glue:cola'")
    assert cell_of(cfg, cfg.hydra, []).folder.parts[0] == "files-glue%3Acola"


@pytest.mark.parametrize("letter", ["x", "é", "界", "🎬"])
def test_long_names_fit_and_stay_apart(letter: str, tmp_path: Path) -> None:
    first, second = (file_name(f"{letter * 250}.{number}") for number in (1, 2))
    assert first != second
    (tmp_path / first).mkdir()
    (tmp_path / second).mkdir()
    assert first.startswith(letter * 50)
    assert file_name(letter * 60) == letter * 60
    assert len(shortened(letter * 65, 64)) == 64
