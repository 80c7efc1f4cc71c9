"""Names of the files of a results folder and of its runs."""

# In the folder of a run.
RECORD = "record.json"
CONFIG = "config.json"  # the configuration that identifies the run
METRICS = "metrics.jsonl"
PREDICTIONS = "predictions.npy"
COSTS = "costs.npy"  # training loss of a language model at every step
SAMPLE = "sample.txt"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"  # tokenizer of the task, saved next to the weights
ERRORS = "error.log"  # traceback of a failed run, or message of a refused one
LOCK = ".run.lock"  # lock file that a process holds while it trains the run
CHECKPOINT = "checkpoint.safetensors"

# In a results folder.
SWEEP = "sweep.json"
SWEEP_LOCK = ".sweep.lock"
RUNS = "runs.jsonl"  # kept runs: one line per run, with its record and metrics
KEPT_PREDICTIONS = "predictions.npz"  # predicted classes of kept runs
README = "README.md"
PAGE = "index.html"
SEEDS_FIGURE = "seeds.svg"  # test result of each seed
TABLE = "table.csv"
TABLE_TEX = "table.tex"
SEEDS = "seeds.csv"


def seed_folder(seed: int) -> str:
    """Return the name of a run's folder inside the folder of its cell."""
    return f"seed{seed}"
