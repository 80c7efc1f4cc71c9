"""Base class of generated tasks, and ordered generation in several processes."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from lra.core.errors import UserError
from lra.data import Place
from lra.data.cache import SPLITS, Identity
from lra.data.fingerprints import Stamp
from lra.data.from_source import GENERATED, FromSource, Source

GUARD = 'in a script, calls of lra stand below `if __name__ == "__main__":`'


@dataclass(kw_only=True)
class Generated(FromSource):
    """A generated task; the fields of the dataclass are its options.

    Args:
        train_size: examples of train.
        val_size: examples of val.
        test_size: examples of test.
        seed: of the data.
    """

    BESIDE = frozenset({"train_size", "val_size", "test_size", "seed", "causal"})

    train_size: PositiveInt
    val_size: PositiveInt
    test_size: PositiveInt
    seed: NonNegativeInt

    @abstractmethod
    def generated(self, place: Place) -> Any:
        """Return all examples, in the form that `fill` expects."""

    @property
    def sizes(self) -> dict[str, int]:
        return {split: getattr(self, f"{split}_size") for split in SPLITS}

    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        version = self.facts_of({}).version
        return {"task": self.name, "version": version, "sizes": self.sizes, **self.options, "seed": self.seed}

    def find(self, place: Place) -> Source:
        """Return the generator as a source."""
        return Source(name=GENERATED, read=partial(self.generated, place))


def in_order(make: Callable[..., Any], calls: Iterable[tuple], workers: int) -> Iterator[Any]:
    """Yield `make(*arguments)` of each call in order, for any number of processes.

    The first call is made in this process, which is all that small data need. At most two results per worker wait.

    Raises:
        UserError: a worker process ended early.
    """
    calls = iter(calls)
    for arguments in calls if workers == 1 else islice(calls, 1):
        yield make(*arguments)
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        window: deque = deque()
        for arguments in calls:
            window.append(pool.submit(make, *arguments))
            if len(window) > 2 * workers:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    except BrokenProcessPool:
        raise UserError(f"a process that makes examples ended before its work (workers={workers}): {GUARD}") from None
    finally:
        pool.shutdown(cancel_futures=True)
