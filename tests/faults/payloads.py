"""What files hold that were made to do harm, and checkpoints that hold it."""

import hashlib
import json
import os
import struct
from pathlib import Path

from lra.records import checkpoint

MARK = "executed"  # the file that a payload leaves where it runs


class Bomb:
    """What pickle would run."""

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {MARK}",)


def with_header(header: dict, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def put_checkpoint(folder: Path, data: bytes) -> None:
    path = folder / "checkpoint-5.safetensors"
    path.write_bytes(data)
    entry = {"file": path.name, "step": 5, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / checkpoint.INDEX).write_text(json.dumps({"schema": checkpoint.SCHEMA, "generations": [entry]}))
