"""ACL matching: predict whether one paper cites the other.

The data differ from the data of `matching`, so scores of the two tasks are not comparable.
"""

from collections.abc import Iterator
from pathlib import Path

from lra.core.errors import UserError
from lra.datasets import hub, readers
from lra.datasets.builder import Source
from lra.tasks.matching import FILE_SPLITS, Pair, Pairs, fields_of, label_of

DOCUMENTS = "docs.jsonl.xz"


class AclMatching(Pairs):
    """Builder of a task with pairs of papers of the ACL Anthology; in half of the pairs the first cites the other.

    Raw data: acl_pairs/docs.jsonl.xz with the fields id and text, and acl_pairs/pairs.{train,eval,test}.tsv.xz with the
    columns label, citing id, other id. A document is the text of a paper in UTF-8. Splits have papers in common, but no
    pairs.
    """

    name = "acl_matching"
    licence = "texts Creative Commons (CC BY 4.0 for the CL-SciSumm part); graph: ACL Anthology Network"

    def find(self) -> Source:
        pairs = {split: f"acl_pairs/pairs.{part}.tsv.xz" for split, part in FILE_SPLITS.items()}
        files = self.together({DOCUMENTS: f"acl_pairs/{DOCUMENTS}", **pairs})
        if not files:
            wants = f"the folder acl_pairs with {DOCUMENTS} and pairs.{{train,eval,test}}.tsv.xz"
            reason = "they are not on the hub"
            raise hub.missing_data_error(self.config, "pairs of ACL papers", wants=wants, reason=reason)
        documents = files.pop(DOCUMENTS)

        def read() -> dict[str, Iterator[Pair]]:
            rows = readers.json_rows(documents, id=str, text=str)
            papers = {row["id"]: readers.checked_text(where, row["text"]).encode() for where, row in rows}
            return {split: _pairs_of(path, papers) for split, path in files.items()}

        return Source(name=documents.name, files=[documents, *files.values()], read=read)


def _pairs_of(path: Path, papers: dict[str, bytes]) -> Iterator[Pair]:
    for where, line in readers.lines(path):
        # backslashreplace: an error below can then show any byte.
        label, *names = (field.decode(errors="backslashreplace") for field in fields_of(where, line, 3))
        for name in names:
            if name not in papers:
                raise UserError(f"{where}: paper {name!r:.80} is not in {DOCUMENTS}")
        yield label_of(where, label), papers[names[0]], papers[names[1]]
