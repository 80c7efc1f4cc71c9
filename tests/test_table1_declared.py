"""experiment=table1 is Table 3 of SimpleTRON v4 with the deviations that its first lines declare."""

from typing import Any

import pytest
from support import composed

from lra.runs.build import assemble
from lra.runs.settings import settings_of

TABLE3 = {  # length, steps, peak base rate, warm-up, blocks, heads, width, mlp; steps between validations; parameters
    "text": (4000, 20_000, 0.05, 8000, 4, 4, 256, 1024, 1000, {"transformer": 4_514_818, "simple": 4_251_650}),
    "acl_matching": (4000, 15_000, 0.05, 8000, 4, 4, 128, 512, 500, {"transformer": 1_601_538, "simple": 1_535_490}),
    "listops": (2000, 15_000, 0.005, 1000, 6, 8, 512, 2048, 250, {"transformer": 21_019_658, "simple": 19_443_722}),
}


def settings(protocol: str, task: str, system: str) -> Any:
    return settings_of(composed("experiment=table1", f"protocol={protocol}", f"task={task}", f"system={system}"))


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@pytest.mark.parametrize("task", TABLE3)
def test_published_settings_and_declared_deviations(task: str, protocol: str) -> None:
    *_, parameters = TABLE3[task]
    for system, count in parameters.items():
        run = settings(protocol, task, system)
        model, train = run.model, run.train
        sizes = (model.depth, model.heads, model.dim, model.mlp_dim, train.eval_every)
        rates = (run.task["max_length"], train.steps, train.lr, train.warmup)
        assert (*rates, *sizes) == TABLE3[task][:-1]
        assert (train.batch_size, train.schedule, train.weight_decay) == (32, "rsqrt", 0.1)
        assert (train.betas, train.eps, train.clip_norm) == ([0.9, 0.999], 1e-8, None)
        assert (model.qkv_dim, model.dropout, model.pooling) == (model.dim, 0.1, "cls")
        assert (run.precision, train.selection) == ("bf16", "best_val")
        assert [getattr(train, key) for key in ("progress", "goal", "cooldown")] == [None] * 3
        assert train.patience == (4 if (task, protocol) == ("text", "strict") else None)
        assert model.key_mask is (protocol == "strict")
        assert run.task.get("validation") == (
            {"strict": "holdout", "paper": "test"}[protocol] if task == "text" else None
        )
        assert assemble(run).parameters == count
