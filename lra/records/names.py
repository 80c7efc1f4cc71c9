"""The name of every file that lies in a results folder and in the folders of its runs, each written here alone."""

# In the folder of a run.
RECORD = "record.json"
CONFIG = "config.json"  # the run's identity
METRICS = "metrics.jsonl"
PREDICTIONS = "predictions.npy"
COSTS = "costs.npy"
SAMPLE = "sample.txt"
WEIGHTS = "weights.safetensors"
ERRORS = "error.log"  # why it failed
LOCK = ".run.lock"  # who is at work on it
CHECKPOINTS = "checkpoint.json"  # lists the generations below, newest first
GENERATIONS = "checkpoint-*.safetensors"

# In a results folder.
SWEEP = "sweep.json"
SWEEP_LOCK = ".sweep.lock"
RECEIPTS = "receipts.zip"
DIGESTS = "SHA256SUMS"  # inside the receipts: the digest of every other member, as sha256sum writes them
PAGE = "index.html"
README = "README.md"
DETAILS = "details.md"  # every table of a report; README.md has the answer
CARDS = "cards.md"  # where it was asked for
RACE = "race.svg"  # the steps in which each seed reached the goal of its task
VERDICTS = "verdicts.svg"  # the intervals of the differences to the reference
FIGURES = "figures"


def seed_folder(seed: int) -> str:
    """The name of a run's folder inside that of its cell."""
    return f"seed{seed}"
