"""Making data in several processes, in one order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any


def in_order(make: Callable[..., Any], calls: Iterable[tuple], workers: int) -> Iterator[Any]:
    """`make(*arguments)` of each call, in their order, whatever the number of processes.

    The first is made here, since small data need no more; a process holds few results that are not asked for yet.
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
    finally:
        pool.shutdown(cancel_futures=True)
