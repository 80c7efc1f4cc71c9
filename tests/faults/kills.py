"""Commands that are killed, or asked to stop, at random moments: the same command then ends as if nothing had been."""

import os
import signal
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic, sleep

from faults.kinds import KINDS, Kind, children, left, undisturbed
from faults.runs import Ended, command
from faults.trial import Case, Outcome, Verdict, equal

import lra.__main__ as commands
from lra.core.signals import INTERRUPTED, PAUSED

SIGNALS = (*[signal.SIGKILL] * 4, signal.SIGTERM, signal.SIGINT)
TIMES = (1, 1, 2, 3)  # how often one after the other
TRIES = 6  # until the command is not faster than the signal


def killed(name: str, rng: Random, folder: Path) -> Outcome:
    """One to three times, each with one signal, before the command is left alone."""
    kind, expected = KINDS[name], undisturbed(name)
    told: list[str] = []
    for _ in range(1 if kind.dear else rng.choice(TIMES)):
        number, seconds = rng.choice(SIGNALS), expected.seconds
        for _ in range(TRIES):
            if not told:
                kind.lay(folder)
            share, start = rng.uniform(0, 0.95), monotonic()
            victim, ended = _struck(kind, number, share * seconds, rng)
            if ended.code != 0:
                break
            if told:
                return _after(name, told, ended, expected.left, folder)
            seconds = min(seconds, monotonic() - start)  # this machine has less to do than when it was measured
        told.append(f"{number.name}{victim} at {share:.2f}{' came too late' if ended.code == 0 else ''}")
        fault = _fault(number, ended)
        if fault:
            return Outcome("; ".join(told), fault, Verdict.WRONG)
    return _after(name, told, kind.command(), expected.left, folder)


def _struck(kind: Kind, number: signal.Signals, seconds: float, rng: Random) -> tuple[str, Ended]:
    """How a command ends that gets a signal after so many seconds; and which of its processes got it."""
    child = kind.start()
    sleep(seconds)
    others = children(child.process) if kind.family and number == signal.SIGKILL and rng.random() < 0.5 else []
    victim = rng.choice(others) if others else child.process
    try:
        os.kill(victim, number)
    except ProcessLookupError:  # it has just ended
        os.kill(child.process, number)
    return (" of a child" if others else ""), child.ends()


def _fault(number: signal.Signals, ended: Ended) -> str:
    """What is wrong with how a command ended that got a signal; empty where nothing is."""
    asked = {signal.SIGTERM: (PAUSED, -signal.SIGTERM), signal.SIGINT: (INTERRUPTED,)}
    if "Traceback" in ended.err:
        return f"{ended.code}, {ended.said}"
    if ended.code != 0 and number in asked and ended.code not in asked[number]:
        return f"ended with {ended.code}, {ended.said}"
    return ""


def _after(name: str, told: list[str], ended: Ended, expected: dict, folder: Path) -> Outcome:
    """Of the command that nothing disturbed any more; the report of a sweep must be that of its records."""
    injected = "; ".join(told)
    if ended.code == 0 and "--multirun" in KINDS[name].words:
        verified = command("runs", "--verify", main=commands.report, inside=KINDS[name].inside)
        if verified.code != 0:
            return Outcome(injected, f"the report is not verified: {verified.out.strip()}", Verdict.WRONG)
    return equal(injected, ended, left(folder), expected)


KILLS: dict[str, Case] = {name: partial(killed, name) for name in KINDS}
