"""What an optimizer step takes, held against the real optimizers on tensors with data."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import hf_efficient as hf
from hf_efficient.memory.costs import tensors_in
from hf_efficient.memory.optimizers import NAMES, NOT_MODELLED, Update, update
from hf_efficient.memory.real_optimizers import REAL
from hf_efficient.memory.record import rounded
from hf_efficient.memory.weights import Weight
from hf_efficient.plan import Plan

PROJECTED = {"args": "rank=16", "target_modules": r".*layers\.\d+\..*"}
DTYPES = [torch.float32, torch.bfloat16]
BOTH = [
    pytest.param(torch.float32, id="float32"),
    pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.launch),
]
"""The second one in `make test`: it takes seconds in all."""
pytestmark = [
    pytest.mark.launch,  # seconds in all: not in `make test-fast`
    pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU"),
    pytest.mark.filterwarnings("ignore:This implementation of AdamW is deprecated:FutureWarning"),
]


def keywords(name: str) -> dict[str, Any]:
    """Return what an optimizer cannot do without."""
    return PROJECTED if name in REAL and REAL[name].projects else {}


def model_of(dtype: torch.dtype) -> nn.Module:
    """Return a Llama whose tensors lie on both sides of 4,096 and of 100,000 elements."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=1600, hidden_size=64, intermediate_size=1568, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    return LlamaForCausalLM(config).to(dtype)


def weights_of(model: nn.Module) -> list[Weight]:
    """Return the trained weights of a model."""
    kinds = {id(p): type(module) for module in model.modules() for p in module.parameters(recurse=False)}
    return [
        Weight(tuple(p.shape), p.dtype, kinds[id(p)] is nn.Embedding, name, kinds[id(p)] is nn.Linear)
        for name, p in model.named_parameters()
        if p.requires_grad
    ]


def real_state(name: str, model: nn.Module, *, steps: bool, **yours: Any) -> int:
    """Take one step of the optimizer that Trainer would build; return the bytes of its state in whole blocks."""
    plan = Plan().override("optimizer", {"name": name, **keywords(name)}, by="you")
    optimizer: Any = hf.make_optimizer(plan, model, **yours)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    if name.startswith("schedule_free"):
        optimizer.train()
    optimizer.step()
    seen: set[int] = set()
    return sum(rounded(size) for state in optimizer.state.values() for size in storages(state, seen, steps))


def predicted(name: str, weights: list[Weight], *, max_grad_norm: float | None = None, **yours: Any) -> Update:
    """Return the update of `weights`."""
    return update(name, weights, mode=FakeTensorMode(), max_grad_norm=max_grad_norm, **{**keywords(name), **yours})


def highest(made: Update, phase: str = "optimizer") -> int:
    """Return the most bytes that are there at once in a phase."""
    live = most = 0
    for event in made.events:
        live += event.size
        most = max(most, live) if event.phase == phase else most
    return most


def storages(value: Any, seen: set[int], steps: bool = False) -> Iterator[int]:
    """Yield the bytes of every storage in a state, torchao's inner ones and projections included."""
    if isinstance(value, torch.Tensor) and hasattr(value, "codes"):
        for inner in (value.codes, value.scale, value.qmap):
            yield from storages(inner, seen)
    elif isinstance(value, torch.Tensor):
        if value.untyped_storage().data_ptr() not in seen:
            seen.add(value.untyped_storage().data_ptr())
            yield value.untyped_storage().nbytes()
    elif isinstance(value, dict):
        for key, each in value.items():
            if key != "step" or steps:
                yield from storages(each, seen)
    elif isinstance(value, list):
        for each in value:
            yield from storages(each, seen)
    elif hasattr(value, "ortho_matrix"):
        yield from storages(value.ortho_matrix, seen)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", NAMES)
def test_state_is_that_of_the_real_optimizer(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every optimizer has the bytes of state that Trainer's own has after a step, embeddings included.

    On a CPU nothing is paged, so that state on the card and outside add up to the real one; paged AdEMAMix, which fails
    there, is held against the one that does not page. torchao's step runs uncompiled: its state is the same.
    """
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = model_of(dtype)
    steps = name in REAL and REAL[name].steps_on_card
    made = predicted(name, weights_of(model))
    real = {"paged_ademamix_32bit": "ademamix", "paged_ademamix_8bit": "ademamix_8bit"}.get(name, name)
    assert made.state + made.host == real_state(real, model, steps=steps)


@pytest.mark.parametrize(("name", "args"), [("sgd", "momentum=0.9"), ("rmsprop", "momentum=0.9,centered=True")])
def test_optim_args_that_add_state_count(name: str, args: str) -> None:
    """Momentum and a centred second moment are states of their own."""
    model = model_of(torch.float32)
    plain, more = (predicted(name, weights_of(model), args=text) for text in (None, args))
    copies = {"sgd": 1, "rmsprop": 2}[name]
    assert more.state - plain.state == copies * sum(rounded(4 * w.numel) for w in weights_of(model))


def test_an_untied_list_of_tensors_pages_from_100_000_elements_on() -> None:
    """Paged moments leave the card, their scales and tables do not; a tensor one element smaller stays."""
    large, small = Weight((100_000,), torch.float32), Weight((99_999,), torch.float32)
    assert predicted("paged_adamw_8bit", [large]).host == 2 * rounded(100_000)
    assert predicted("paged_adamw_8bit", [large]).state == 2 * rounded(4 * -(-100_000 // 256)) + 2 * 1024
    assert predicted("paged_adamw_8bit", [small]).host == 0
    assert predicted("paged_lion_32bit", [large]).host == 4 * 100_000 + rounded(4 * 100_000) - 4 * 100_000


@pytest.mark.parametrize("name", NAMES)
def test_what_passes_is_gone_after_the_update(name: str) -> None:
    """Clipping and the step drop whatever they make, whichever of them there is."""
    made = predicted(name, weights_of(model_of(torch.bfloat16)), max_grad_norm=1.0, weight_decay=0.1)
    assert sum(event.size for event in made.events) == 0
    assert {event.phase for event in made.events} - {"optimizer"} == {"clipping"}
    assert not any(e.phase == "clipping" for e in predicted(name, weights_of(model_of(torch.bfloat16))).events)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", REAL)
def test_what_passes_is_what_the_real_step_makes(name: str, dtype: torch.dtype) -> None:
    """The step's highest temporaries are those that torch's profiler sees in the same step on tensors with data."""
    weights = [Weight((512, 1024), dtype, path="l.0.a.weight"), Weight((1024, 256), dtype, path="l.0.b.weight"),
               Weight((1024,), dtype, path="l.0.norm.weight")]  # fmt: skip
    yours: dict[str, Any] = {"target_modules": "all-linear", "args": "rank=64"} if REAL[name].projects else {}
    made = predicted(name, weights, weight_decay=0.1, **yours)
    assert highest(made) == pytest.approx(_profiled(name, weights), rel=0.005, abs=4096)


def _profiled(name: str, weights: list[Weight]) -> int:
    """Return the most bytes that a second step makes on tensors with data, as on a GPU (foreach, fused)."""
    parameters = [nn.Parameter(torch.randn(weight.shape, dtype=weight.dtype)) for weight in weights]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    kind = REAL[name]
    matrices = [p for p in parameters if p.ndim == 2]
    both = ({"params": matrices, "weight_decay": 0.1}, {"params": parameters[-1:], "weight_decay": 0.0})
    if kind.projects:
        both = ({"params": matrices, "projected": True}, {"params": parameters[-1:], "projected": False})
    optimizer = kind.build(list(both), {"rank": "64"} if kind.projects else {})
    optimizer.step()
    for parameter in parameters if kind.projects else ():
        optimizer.state[parameter]["step"] = 0
    # what is from before would count as negative wherever the collector happens to free it
    values = [getattr(value, "ortho_matrix", value) for state in optimizer.state.values() for value in state.values()]
    before = [*tensors_in(values)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer.step()
    del before
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())), default=0)


def test_foreach_makes_a_copy_of_a_group_and_fused_none() -> None:
    """adamw_torch needs the larger of Trainer's two groups once more; fused and bitsandbytes need nothing."""
    weights = weights_of(model_of(torch.float32))
    decaying = sum(rounded(4 * weight.numel) for weight in weights if weight.decays)
    made = predicted("adamw_torch", weights)
    assert highest(made) == pytest.approx(decaying, abs=1024)
    matrices = [event.shape for event in made.events if event.size > 0 and len(event.shape) == 2]
    assert sorted(matrices) == sorted(weight.shape for weight in weights if weight.decays)
    for name in ("adamw_torch_fused", "adamw_bnb_8bit", "schedule_free_radam"):
        assert highest(predicted(name, weights)) == 0


@pytest.mark.parametrize("name", ["adafactor", "galore_adamw", "apollo_adamw", "adamw_torch_8bit"])
def test_what_goes_tensor_by_tensor_needs_no_more_for_more_layers(name: str) -> None:
    """Optimizers that take one tensor at a time need the largest tensor's temporaries, however many there are."""
    weights = weights_of(model_of(torch.bfloat16))
    more = [w._replace(path=w.path.replace("layers.0", "layers.7")) for w in weights if "layers.0" in w.path]
    once, twice = predicted(name, weights), predicted(name, weights + more)
    assert highest(once) == highest(twice) > 0
    assert (
        twice.state - once.state == once.state - predicted(name, [w for w in weights if "layers.0" not in w.path]).state
    )


def test_clipping_needs_a_norm_per_gradient() -> None:
    """A block for the norm of each gradient, and a number per 65,536 elements of the largest, times their number."""
    weights = [Weight((65_536, 64), torch.float32, path=f"w{i}.weight") for i in range(8)]
    most = highest(predicted("adamw_torch_fused", weights, max_grad_norm=1.0), "clipping")
    assert 8 * 512 <= most <= 8 * 512 + 8 * 64 * 4 + 2048


def test_every_name_of_transformers_is_known_or_said_not_to_be() -> None:
    """No optimizer of the installed transformers is without an answer."""
    from transformers.training_args import OptimizerNames

    assert {name.value for name in OptimizerNames} == {*NAMES, *NOT_MODELLED}


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("adam_torch", {}, "did you mean adamw_torch"),
        ("lomo", {}, "inside the backward pass.*Choose one of"),
        ("sgd", {"args": "momentum"}, "'momentum' without a value: write name=value"),
        ("galore_adamw", {"target_modules": ["no_such"]}, "names none of the model's linear layers.*write"),
    ],
)
def test_what_cannot_be_answered_says_what_to_do(name: str, more: dict[str, Any], sentence: str) -> None:
    """A name that is not there, one that is not modelled, and arguments without sense are refused with a remedy."""
    with pytest.raises(ValueError, match=sentence):
        predicted(name, [Weight((64, 64), torch.float32, path="a.weight")], **more)
