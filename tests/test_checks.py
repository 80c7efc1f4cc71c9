"""lra-check lists the checks that a broken mixer fails, with the smallest case; a broken mixer is not trained."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Commands, model_of, shape, spec, train_state

from lra import checks
from lra.cli import check, train
from lra.core.errors import UserError
from lra.network.model import Model

THEIRS = '''"""Mixers, each with a fault."""

import torch
from torch import Tensor, nn

from lra.mixers import Attention, MixerInfo, Mixer


class Sound(Attention):
    """The mean of the values at real positions, or of those up to one's own."""

    info = MixerInfo(paper="none", formula="V / L", complexity="L D", linear_memory=True, reference="none")
    commutes = True
    can_be_causal = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        real = torch.ones_like(v[:, :, :, :1]) if key_mask is None else key_mask[:, None, :, None].to(v.dtype)
        if self.causal:
            return q + k + (v * real).cumsum(dim=2) / real.cumsum(dim=2).clamp(min=1)
        return q + k + (v * real).sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1)


class Free(Mixer):
    info, commutes = Sound.info, True

    def __init__(self, config):
        super().__init__(config)
        self.inner = nn.Linear(config.dim, config.dim)

    def forward(self, x, key_mask=None):
        return self.inner(x)


class WrongShape(Free):
    def forward(self, x, key_mask=None):
        return self.inner(x)[:, :, :-1]


class IgnoresKeys(Sound):
    def attend(self, q, k, v, key_mask):
        return super().attend(q, torch.zeros_like(k), v, key_mask)


class IgnoresMask(Sound):
    def attend(self, q, k, v, key_mask):
        return q + k + v.mean(dim=2, keepdim=True)


class MixesBatch(Free):
    def forward(self, x, key_mask=None):
        y = self.inner(x)
        return y - y.mean(dim=0)


class OwnNoise(Free):
    def forward(self, x, key_mask=None):
        y = self.inner(x)
        return y + 0.1 * torch.rand_like(y)


class LooksAhead(Sound):
    def attend(self, q, k, v, key_mask):
        return q + k + v.flip(2).cumsum(dim=2).flip(2)

    commutes = False


class NotFinite(Free):
    def forward(self, x, key_mask=None):
        return self.inner(x) + (x / x.norm(dim=-1, keepdim=True))


class Detached(Sound):
    def attend(self, q, k, v, key_mask):
        return super().attend(q, k.detach(), v, key_mask)


class WrongType(Free):
    def forward(self, x, key_mask=None):
        return self.inner(x).half()


class InPlace(Free):
    def forward(self, x, key_mask=None):
        x += 1
        return self.inner(x)


class KeepsState(Free):
    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("seen", torch.zeros(config.dim))

    def forward(self, x, key_mask=None):
        self.seen = self.seen + x.mean(dim=(0, 1))
        return self.inner(x) - self.seen.detach()


class Unregistered(Free):
    def __init__(self, config):
        super().__init__(config)
        self.gates = [nn.Linear(config.dim, config.dim) for _ in range(config.heads)]

    def forward(self, x, key_mask=None):
        return self.inner(x)


class NotInitialised(Free):
    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.full((config.dim,), float("nan")))

    def forward(self, x, key_mask=None):
        return self.inner(x) * self.scale


class OnTheCpu(Free):
    def forward(self, x, key_mask=None):
        return self.inner(x) * torch.arange(x.shape[1]).to(x.dtype)[:, None]

    commutes = False


class Crashes(Free):
    def forward(self, x, key_mask=None):
        return self.inner(x) + torch.zeros(4, 5)
'''

BROKEN = {
    "WrongShape": ["shape"],
    "NotInitialised": ["finite"],
    "Crashes": ["shape"],
    "OnTheCpu": ["device"],
    "IgnoresMask": ["padding", "causality"],
    "MixesBatch": ["rows"],
    "OwnNoise": ["noise"],
    "LooksAhead": ["padding", "causality"],
    "NotFinite": ["finite"],
    "Detached": ["graph"],
    "WrongType": ["shape"],
    "InPlace": ["input"],
    "KeepsState": ["state"],
    "Unregistered": ["weights"],
}
CLASSES: dict[str, Any] = {"__name__": "theirs"}
exec(THEIRS, CLASSES)
SIZES = ("model.dim=12", "model.qkv_dim=12", "model.heads=3", "model.depth=1", "model.mlp_dim=7", "model.dropout=0.3")
SMOKE = ("experiment=smoke", "protocol=strict", "variant=transformer")


def written(kind: str) -> None:
    """Write the module and an option for one of its classes into the working folder."""
    Path("theirs.py").write_text(THEIRS)
    option = Path(f"lra_options/attention/{kind.lower()}.yaml")
    option.parent.mkdir(parents=True)
    option.write_text(f"_target_: theirs.{kind}\n_partial_: true\n")


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_mixer_is_named(kind: str) -> None:
    """It fails these checks and no others, each with its smallest case; one cause is one message."""
    subject = checks.Subject(CLASSES[kind], shape(dropout=0.3), lengths=(1, 2, 5))
    broken = [result for result in checks.run_checks(subject) if result.verdict == "failed"]
    assert [result.check.name for result in broken] == BROKEN[kind]
    assert "position" in broken[0].case or "made" in broken[0].case


def test_a_difference_with_a_number_that_is_not_finite_is_infinite() -> None:
    subject, infinite = checks.Subject(CLASSES["IgnoresKeys"], shape(), lengths=(2,)), torch.tensor([torch.inf, 1])
    for other in (infinite, torch.zeros(2), torch.tensor([torch.nan, 1])):
        assert subject.difference(infinite, other) == subject.difference(other, infinite) == torch.inf


def test_unused_projections_are_named() -> None:
    """They fail no check, but their parameters count and are never trained."""
    results = list(checks.run_checks(checks.Subject(CLASSES["IgnoresKeys"], shape(), lengths=(2,))))
    assert ["ignores k" in result.hint for result in results if result.hint] == [True]
    assert not [result for result in results if result.verdict == "failed"]


def test_the_command_prints_the_verdicts(cli: Commands) -> None:
    written("WrongShape")
    code, out, err = cli(check.main, "attention=wrongshape", "lengths=[2]")
    assert (code, "FAIL  shape" in out, "checks not run until it is fixed" in out, err) == (1, True, True, "")


@pytest.mark.parametrize("kind", ["WrongShape", "IgnoresMask", "NotInitialised"])
def test_a_broken_mixer_does_not_train(kind: str, cli: Commands) -> None:
    written(kind)
    code, _, err = cli(train.main, *SMOKE, f"attention={kind.lower()}")
    assert (code, kind in err) == (2, True)
    assert not list(Path("runs").rglob("metrics.jsonl"))


def test_a_causal_form_that_looks_ahead_does_not_train() -> None:
    """A task that needs the causal form refuses the mixer; other tasks train it."""
    for causal in (False, True):
        mixer = CLASSES["LooksAhead"](shape(causal=causal))
        if causal:
            with pytest.raises(UserError, match=r"LooksAhead fails a check: in the causal form"):
                checks.check_before_run(mixer, masked=False, device="cpu")
        else:
            assert "the input is not changed" in checks.check_before_run(mixer, masked=False, device="cpu")


def test_a_sound_mixer_passes_all_checks_and_trains(cli: Commands) -> None:
    written("Sound")
    code, out, _ = cli(check.main, "attention=sound")
    assert code == 0, out
    assert out.endswith("all checks passed\n")
    assert cli(train.main, *SMOKE, "attention=sound")[0] == 0
    [record] = [json.loads(path.read_text()) for path in Path("runs").rglob("record.json")]
    quick = [check.claim for check in checks.CHECKS if check.quick and check.name != "causality"]
    assert record["checked"] == quick
    assert record["row"] == {"name": "Sound", "complexity": "O(L D)"}


def theirs_of(model: Model, forward: Callable | None = None) -> Model:
    """Return the model, whose first mixer gets a class outside of lra."""
    mixer = model.blocks[0].mixer
    namespace = {"__module__": "elsewhere"} | ({"forward": forward} if forward else {})
    mixer.__class__ = type("Theirs", (type(mixer),), namespace)
    return model


@pytest.mark.parametrize("name", ["softmax", "reformer", "luna", "performer"])
def test_mixers_of_lra_pass_and_are_not_checked_before_a_run(name: str) -> None:
    """The same mixer in a class of another module is checked, without drawing random numbers or changing a weight."""
    model = model_of(f"attention={name}", *SIZES, "variant=transformer", "model.key_mask=true", task=spec())
    before = torch.random.get_rng_state()
    assert checks.check_before_run(model.blocks[0].mixer, masked=True, device="cpu") == []
    weights = train_state(model)
    passed = checks.check_before_run(theirs_of(model).blocks[0].mixer, masked=True, device="cpu")
    assert passed == [check.claim for check in checks.CHECKS if check.quick and check.name != "causality"]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("line", ["1 / 0 if self.training else 0", "key_mask.nothing"])
def test_a_mixer_that_crashes_stops_a_sweep_before_its_first_run(line: str, cli: Commands) -> None:
    """The line that fails may run in training only, or with a mask only."""
    written("Sound")
    head, tail = THEIRS.split("        real = torch.ones_like", 1)
    Path("theirs.py").write_text(f"{head}        {line}\n        real = torch.ones_like{tail}")
    number = head.count("\n") + 1
    words = ("--multirun", "attention=simple,sound", "max_hours=null")
    code, out, err = cli(train.main, *SMOKE, *words)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert re.search(rf"Sound cannot compute: \w+Error: .* \(theirs\.py, line {number}\)", last), err
    assert not [*Path().rglob("metrics.jsonl"), *Path().rglob("sweep.json")]


def test_checks_of_several_positions_are_skipped_for_one(cli: Commands) -> None:
    code, out, _ = cli(check.main, "attention=simple", "lengths=[1]")
    said = {line.split()[1]: line.split()[0] for line in out.splitlines() if line[:4] in ("PASS", "FAIL", "----")}
    assert code == 0
    assert {said[name] for name in ("padding", "causality", "order")} == {"----"}
    assert said["rows"] == "PASS"
