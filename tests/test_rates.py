"""The rates that a preset takes from a sweep over them."""

from pathlib import Path
from typing import Any

from reports import put
from support import Commands

from lra.tools import rates


def run(
    root: Path,
    seed: int,
    rate: float,
    accuracy: float | None,
    loss: float = 1.0,
    attention: str = "simple",
    last: float = 60.0,
    **ran: Any,
) -> None:
    score = {"accuracy": accuracy, "correct": 0, "examples": 2000, "loss": loss, "perplexity": 1.0, "step": 50}
    put(
        root / "listops_short" / f"{rate}",
        seed,
        None if accuracy is None else 1.0,  # of the test, which does not choose
        attention=attention,
        **({} if accuracy is None else {"validation": {"best": score, "last": {**score, "accuracy": last}}}),
        config={"train": {"lr": rate, "goal": 99.0, "steps": 900}},
        **ran,
    )


def test_the_best_validation_accuracy_then_the_loss(cli: Commands, tmp_path: Path) -> None:
    """Of two seeds the mean: 0.003 is best of one seed, 0.01 of both; of softmax the rates tie."""
    for seed, rate, accuracy in ((1, 0.003, 50), (2, 0.003, 30), (1, 0.01, 45), (2, 0.01, 45), (1, 0.1, None)):
        run(tmp_path, seed, rate, accuracy, ended="steps")
    run(tmp_path, 1, 0.001, 40.0, loss=0.7, attention="softmax", ended="steps")
    run(tmp_path, 1, 0.002, 40.0, loss=0.5, attention="softmax", ended="steps")
    _, out, _ = cli(rates.main, str(tmp_path))
    assert out.splitlines() == [
        "listops_short/0.1/listops/paper/simple/simple/seed1: failed",
        "by_task:",
        "  listops_short:",
        "    by_attention:",
        "      softmax: {train: {lr: 0.002}}  # 0.001: 40.00; 0.002: 40.00",
        "      simple: {train: {lr: 0.01}}  # 0.003: 40.00 (30.00 to 50.00); 0.01: 45.00 (45.00 to 45.00)",
    ]


def test_variants_that_share_a_rate_are_named(cli: Commands, tmp_path: Path) -> None:
    for variant, accuracy in (("simple", 30.0), ("simple_res", 50.0)):
        run(tmp_path, 1, 0.01, accuracy, variant=variant, ended="steps")
    _, out, _ = cli(rates.main, str(tmp_path))
    assert out.splitlines()[-1] == (
        "      simple: {train: {lr: 0.01}}  # simple, simple_res: 0.01: 40.00 (30.00 to 50.00)"
    )


def test_of_a_race_the_rate_that_solves_most_then_the_quickest(cli: Commands, tmp_path: Path) -> None:
    """0.003 has the best mean, but 0.01 and 0.02 solve it more often, and 0.02 in fewer steps: one ends there with the
    goal, once the rate has fallen, though not for it."""
    for rate, accuracies, steps, ended in (
        (0.003, (98.0, 98.0), 700, "steps"),
        (0.01, (99.5, 60.0), 500, "solved"),
        (0.02, (99.5, 60.0), 300, "no progress"),
    ):
        for seed, accuracy in enumerate(accuracies, start=1):
            solved = accuracy > 99
            how = {"ended": ended if solved else "steps", "steps": steps if solved else 900}
            run(tmp_path, seed, rate, accuracy, last=accuracy, **how)
    _, out, _ = cli(rates.main, str(tmp_path))
    assert out.splitlines()[-1] == (
        "      simple: {train: {lr: 0.02}}  # 0.003: 98.00 (98.00 to 98.00); "
        "0.01: 79.75 (60.00 to 99.50), 1 of 2 solved in 500 steps; "
        "0.02: 79.75 (60.00 to 99.50), 1 of 2 solved in 300 steps"
    )


def test_a_run_that_diverged_is_the_worst(cli: Commands, tmp_path: Path) -> None:
    """0.003 solves two of three; 0.01 one, sooner, and loses the others; 0.1 has nothing to say."""
    for rate, accuracies in ((0.003, (99.5, 99.5, 70.0)), (0.01, (99.5,))):
        for seed, accuracy in enumerate(accuracies, start=1):
            solved = accuracy > 99
            how = {
                "ended": "solved" if solved else "steps",
                "steps": (600 if rate == 0.003 else 300) if solved else 900,
            }
            run(tmp_path, seed, rate, accuracy, last=accuracy, **how)
    for seed, rate in ((2, 0.01), (3, 0.01), (1, 0.1)):
        put(
            tmp_path / "listops_short" / f"{rate}", seed, None, status="diverged", steps=50,
            config={"train": {"lr": rate, "goal": 99.0, "steps": 900}},
        )  # fmt: skip
    _, out, _ = cli(rates.main, str(tmp_path))
    assert out.splitlines()[-1] == (
        "      simple: {train: {lr: 0.003}}  # 0.003: 89.67 (70.00 to 99.50), 2 of 3 solved in 600 steps; "
        "0.01: 99.50, 1 of 3 solved in 300 steps, 2 of 3 diverged; 0.1: no accuracy, 1 of 1 diverged"
    )


def test_a_record_that_cannot_be_read_is_named_in_one_line(cli: Commands, tmp_path: Path) -> None:
    run(tmp_path, 1, 0.003, 98.0)
    [path] = tmp_path.rglob("record.json")
    path.write_text("half of")
    code, _, err = cli(rates.main, str(tmp_path))
    assert code == 2
    assert err.startswith(f"lra.tools.rates: error: {path}: not a readable record: ")


def test_a_folder_without_records(cli: Commands, tmp_path: Path) -> None:
    code, _, err = cli(rates.main, str(tmp_path))
    assert (code, "no records below it" in err) == (2, True)


def test_a_folder_within_a_sweep_is_refused(cli: Commands, tmp_path: Path) -> None:
    """Below the folder of a task nothing says of which the rates are."""
    put(tmp_path, 1, 37.0)
    code, _, err = cli(rates.main, str(tmp_path / "listops"))
    assert (code, err.count("\n")) == (2, 1)
    assert "expected the folder of a whole sweep, found that of a task in it" in err
