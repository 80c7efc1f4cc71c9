"""How long do commands take to start, beside the code of another commit? `scripts/startup.py --against COMMIT`

Both codes run in turn, `--rounds` times, and the ratios of neighbours are compared: median [least, most].
"""

import argparse
import subprocess
import sys
import time
from statistics import median

from reruns import code_of

from lra.core.paths import CHECKOUT

COMMANDS = ("train --help", "train --cfg job", "report --help", "--help")


def seconds(words: str, folder: str) -> float:
    """Of `python -m lra` with these words and the code in a folder."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "lra", *words.split()], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", required=True, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=11, metavar="N", help="default: %(default)s")
    given = parser.parse_args()
    with code_of(given.against) as there:
        for words in COMMANDS:
            for folder in (there, str(CHECKOUT)):  # compiled and in memory
                seconds(words, folder)
            pairs = [(seconds(words, there), seconds(words, str(CHECKOUT))) for _ in range(given.rounds)]
            ratios = [now / before for before, now in pairs]
            before, now = (median(side) for side in zip(*pairs, strict=True))
            said = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of before"
            print(f"lra {words}: {said}; {before:.2f} s, now {now:.2f} s", flush=True)


if __name__ == "__main__":
    main()
