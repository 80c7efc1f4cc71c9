"""ACL matching: does one paper cite the other? Other data than those of `matching`; scores are not comparable."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra.core.errors import UserError
from lra.data import readers
from lra.data.cache import SPLITS
from lra.data.from_source import Source, missing_source, of_splits, together
from lra.tasks import Place
from lra.tasks.matching import FILE_SPLITS, Pair, Pairs, fields_of, label_of

LICENCE = "texts Creative Commons (CC BY 4.0 for the CL-SciSumm part); graph: ACL Anthology Network"
ORIGIN = (
    "texts: ananana/scientific_authorship_data@3ddaf2ea, WING-NUS/scisumm-corpus@1dd68e44; "
    "citations: jot321/PaperRankRecommendation@233e3729 and parsed reference lists; titles: comrank/ComRank@41ad2571"
)


class AclMatching(Pairs):
    """Pairs of papers of the ACL Anthology, one half with and one half without a citation.

    Raw data: acl_pairs/docs.jsonl.xz with the fields id and text, and acl_pairs/pairs.{train,eval,test}.tsv.xz with the
    columns label, citing id, other id. A document is its text in UTF-8. Splits share papers, but no pairs.
    """

    name = "acl_matching"
    rows = (49_179, 6_119, 6_120)

    DOCUMENTS = "docs.jsonl.xz"
    FILES = tuple(f"pairs.{part}.tsv.xz" for part in FILE_SPLITS)

    def find(self, place: Place) -> Source:
        paths = together(place, tuple(f"acl_pairs/{name}" for name in (self.DOCUMENTS, *self.FILES)))
        if not paths:
            return missing_source(
                place,
                "pairs of ACL papers",
                size="10 MB",
                wants=f"the folder acl_pairs with {self.DOCUMENTS} and {', '.join(self.FILES)}",
                reason="they are not on the Hugging Face hub",
            )
        documents, *parts = paths
        pairs = dict(zip(SPLITS, parts, strict=True))
        return of_splits(
            place,
            documents.name,
            pairs,
            lambda: _read(documents, pairs),
            beside=[documents],
        )

    def origin(self, source: Source) -> dict[str, Any]:
        """Return licence, origin and numbers of papers; raise UserError if two splits share a pair in any order."""
        splits: dict[frozenset[str], str] = {}
        papers: dict[str, set[str]] = {split: set() for split in SPLITS}
        for split, path in zip(SPLITS, source.files[1:], strict=True):
            for where, _, *names in _id_pairs(path):
                other = splits.setdefault(frozenset(names), split)
                if other != split:
                    raise UserError(
                        f"{where}: the pair {' '.join(names)!r:.80} is in {other}, too; splits share no pairs"
                    )
                papers[split].update(names)
        return {
            "licence": LICENCE,
            "origin": ORIGIN,
            "papers": {split: len(names) for split, names in papers.items()},
            "papers in train and test": len(papers["train"] & papers["test"]),
            "pairs in two splits": 0,
        }


def _read(documents: Path, files: dict[str, Path]) -> Iterator[tuple[str, Iterator[Pair]]]:
    """Yield each split and its pairs."""
    papers = _papers(documents)

    def pairs(path: Path) -> Iterator[Pair]:
        for where, label, *names in _id_pairs(path):
            for name in names:
                if name not in papers:
                    raise UserError(f"{where}: paper {name!r:.80} is not in {documents.name}")
            yield label, papers[names[0]], papers[names[1]]

    return ((split, pairs(path)) for split, path in files.items())


def _id_pairs(path: Path) -> Iterator[tuple[str, int, str, str]]:
    for where, line in readers.lines(path):
        label, *names = fields_of(where, line, 3)
        citing, other = (name.decode("utf-8", errors="backslashreplace") for name in names)
        yield where, label_of(where, label), citing, other


def _papers(path: Path) -> dict[str, bytes]:
    papers: dict[str, bytes] = {}
    for where, row in readers.json_rows(path, id=str, text=str):
        if row["id"] in papers:
            raise UserError(f"{where}: paper {row['id']!r:.80} occurs in an earlier line")
        if not row["text"]:
            raise UserError(f"{where}: the text of {row['id']!r:.80} is empty, expected a document")
        try:
            papers[row["id"]] = row["text"].encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{where}: text is not Unicode: {error}") from None
    return papers
