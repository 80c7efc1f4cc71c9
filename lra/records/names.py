"""The name of every file that lies in a results folder and in the folders of its runs, each written here alone."""

# In the folder of a run.
RECORD = "record.json"
CONFIG = "config.json"  # the run's identity
METRICS = "metrics.jsonl"
PREDICTIONS = "predictions.npy"
COSTS = "costs.npy"
SAMPLE = "sample.txt"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"  # of the task, where weights are kept
ERRORS = "error.log"  # why it failed
LOCK = ".run.lock"  # who is at work on it
CHECKPOINTS = "checkpoint.json"  # lists the generations below, newest first
GENERATIONS = "checkpoint-*.safetensors"

# In a results folder.
SWEEP = "sweep.json"
SWEEP_LOCK = ".sweep.lock"
RUNS = "runs.jsonl"  # kept runs: record and metrics of each, one line a run
KEPT_PREDICTIONS = "predictions.npz"  # of kept runs
README = "README.md"
PAGE = "index.html"
SEEDS_FIGURE = "seeds.svg"  # test result of each seed
TABLE = "table.csv"
TABLE_TEX = "table.tex"
SEEDS = "seeds.csv"


def seed_folder(seed: int) -> str:
    """The name of a run's folder inside that of its cell."""
    return f"seed{seed}"
