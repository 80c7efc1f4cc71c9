"""A plugin for pytest: the table of faults, with what every test that knows of one saw."""

from collections.abc import Iterator

import pytest

# Faults whose tests stand elsewhere: injected how, and what is expected.
ELSEWHERE = {
    "test_killed_after_any_step": ("killed after steps", "SIGKILL at 4 steps", "the same end, byte by byte"),
    "test_killed_at_random_instants": ("killed at random", "10 SIGKILLs, 3 resumes", "the same end, byte by byte"),
    "test_killed_two_hundred_times": ("killed at random", "200 SIGKILLs", "the same end, byte by byte"),
    "test_killed_while_saving": ("killed while saving", "SIGKILL at 5 points", "no generation lost, the same end"),
    "test_a_signal_pauses": ("asked to stop while training", "SIGTERM, SIGUSR1, SIGINT", "75 or 130, the same end"),
    "test_time_limits_pause": ("time is up", "train.minutes, sweep_minutes", "75, the same end"),
    "test_a_full_disk_stops": ("disk full while saving", "ENOSPC at a write", "2, the same end"),
    "test_other_conditions_are_refused": ("resumed otherwise", "other settings, threads", "2, or marked as inexact"),
    "test_a_damaged_checkpoint": ("bit flipped in a checkpoint", "1 bit", "named, the one before it serves"),
    "test_no_damage_is_loaded_silently": ("checkpoint damaged", "20 cuts, 20 bits", "0 silent loads"),
    "test_a_damaged_index": ("checkpoint.json damaged", "7 texts", "refused, named"),
    "test_a_forgotten_feature_buffer": ("mutant: randomness not restored", "changed code", "seen by the tests"),
    "test_a_save_that_is_not_atomic": ("mutant: save not atomic", "changed code", "seen by the tests"),
    "test_parallel_jobs_build_once": ("4 jobs prepare at once", "4 processes", "1 builds, 3 use it"),
    "test_a_killed_builder_is_taken_over": ("holder of a lock killed", "SIGKILL", "the next builds at once"),
    "test_what_a_killed_builder_left": ("leavings of a killed preparation", "a folder", "swept away"),
    "test_a_failing_run_does_not_stop": ("1 of 3 runs fails", "exception in training", "2/3, exit 1, rerun only it"),
    "test_two_processes_do_not_share": ("run in progress elsewhere", "its lock is held", "2, named"),
    "test_divergence_is_a_result": ("learning rate of 1e30", "setting", "0/2, 2 diverged, exit 1"),
}
HEAD = ["fault", "injected how", "expected", "seen"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the other files, leave only what is listed above."""
    others = [item for item in items if "faults" not in item.nodeid and not _listed(item.nodeid)]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


def _listed(nodeid: str) -> str | None:
    name = nodeid.rpartition("::")[2]
    return next((key for key in ELSEWHERE if name.startswith(key)), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = list(_rows(terminalreporter))
    bad = sum(not row.pop() for row in rows)
    terminalreporter.write_line("")
    for row in [HEAD, ["---"] * 4, *rows]:
        terminalreporter.write_line("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |")
    terminalreporter.write_line(f"\n{len(rows)} faults, {bad} not as expected")


def _rows(reporter: pytest.TerminalReporter) -> Iterator[list]:
    """The cells of a line, and whether it is as expected."""
    grouped: dict[str, list[bool]] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reporter.getreports(outcome):
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            known = _listed(report.nodeid)
            observed = [value for key, value in report.user_properties if key == "fault"]
            if known:
                grouped.setdefault(known, []).append(report.passed)
            elif outcome == "skipped":
                yield [name.removeprefix("test_").replace("_", " "), "", "", f"skipped: {report.longrepr[2]}", True]
            elif outcome == "passed":
                yield from ([*row, True] for row in observed)
            else:
                *fine, last = observed or [[name, "", "", "no answer"]]
                yield from ([*row, True] for row in fine)
                yield [*last, False]
    for key, passed in grouped.items():
        cases = f"{sum(passed)} of {len(passed)} cases as expected"
        yield [*ELSEWHERE[key], cases, all(passed)]
