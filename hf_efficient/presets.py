"""Named tuples of tricks: what to take when you do not want to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_efficient.needs import FAST_CPU_BF16
from hf_efficient.tricks import catalogue

if TYPE_CHECKING:
    from hf_efficient.machine import Machine
    from hf_efficient.trick import Need, Trick

_make: dict[str, Callable[..., Trick]] = catalogue()


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A name, what it is for, its tricks, and those it takes only where the machine has what they need."""

    name: str
    doc: str
    tricks: tuple[Trick, ...]
    where: tuple[tuple[Trick, Need], ...] = ()
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainingArguments that belong to what the preset is for and to no trick."""

    def on(self, machine: Machine) -> tuple[Trick, ...]:
        """Return the tricks for `machine`."""
        return (*self.tricks, *(trick for trick, need in self.where if not need.unmet_on(machine)))

    def notes(self, machine: Machine, tricks: tuple[Trick, ...]) -> tuple[str, ...]:
        """Say which tricks of `where` `machine` leaves out, and which of those in the plan it takes, and why."""
        lacks = [(trick, need.unmet_on(machine)) for trick, need in self.where]
        out = [
            f"{self.name} leaves {trick.name} out: it needs {lack}"
            for trick, lack in lacks
            if lack and trick not in tricks
        ]
        taken = [trick.name for trick, lack in lacks if not lack and trick in tricks]
        return (
            *out,
            *(f"{self.name} takes {name}: {machine.cpu or 'this CPU'} has instructions for it." for name in taken),
        )


SAFE = (_make["adamw_fused"](), _make["gradient_clipping"](1.0), _make["data_loading"]())
LEAN = (
    _make["activation_checkpointing"](),
    _make["adamw_8bit"](),
    _make["gradient_clipping"](1.0),
    _make["data_loading"](),
)
SHARDED = (_make["bf16"](), _make["activation_checkpointing"](), *SAFE)

_ALL = (
    Preset(
        name="safe",
        doc="Change nothing but speed: the same training as without it, in the checkpoint's own precision.",
        tricks=SAFE,
    ),
    Preset(
        name="fast",
        doc="The most tokens per second on Ampere and newer, where the model fits without saving memory.",
        tricks=(*SAFE, _make["bf16"](), _make["tf32"](), _make["compile"]()),
    ),
    Preset(
        name="lean",
        doc="The least memory on one Ampere or newer GPU without adapters or sharding.",
        tricks=(_make["bf16"](), _make["tf32"](), *LEAN),
    ),
    Preset(
        name="turing",
        doc="The least memory on cards without bf16: T4, V100, RTX 20.",
        tricks=(_make["fp16"](), *LEAN),
    ),
    Preset(
        name="cpu",
        doc="Train without an accelerator: safe, with bf16 where the CPU has instructions for it.",
        tricks=SAFE,
        where=((_make["bf16"](), FAST_CPU_BF16),),
        trainer={"use_cpu": True},  # TrainingArguments refuses bf16 without a GPU unless it is told
    ),
    Preset(
        name="lora_finetune",
        doc="Fine-tune a pretrained model by adapters on one Ampere or newer GPU; frozen weights keep their own dtype.",
        tricks=(_make["bf16"](), _make["lora"](), _make["activation_checkpointing"](), *SAFE),
    ),
    Preset(
        name="qlora_finetune",
        doc="As lora_finetune, with the frozen weights in 4 bits, where they do not fit in 16.",
        tricks=(
            _make["bf16"](),
            _make["qlora"](),
            _make["activation_checkpointing"](),
            _make["adamw_8bit"](paged=True),
            _make["gradient_clipping"](1.0),
            _make["data_loading"](),
        ),
    ),
    Preset(
        name="sft",
        doc="Fine-tune a whole model on documents or conversations of unequal lengths, packed into full rows.",
        tricks=(_make["bf16"](), _make["packing"](), _make["activation_checkpointing"](), *SAFE),
    ),
    Preset(
        name="zero1",
        doc="Several GPUs that each hold weights and gradients: only the optimizer state sharded by DeepSpeed.",
        tricks=(*SHARDED, _make["zero"](1)),
    ),
    Preset(
        name="zero2",
        doc="Several GPUs that each hold the weights: optimizer state and gradients sharded by DeepSpeed.",
        tricks=(*SHARDED, _make["zero"](2)),
    ),
    Preset(
        name="zero2_offload",
        doc="As zero2, with the optimizer state and its update in host memory: for one GPU too, if the weights fit.",
        tricks=(*SHARDED, _make["zero"](2, offload="optimizer")),
    ),
    Preset(
        name="zero3",
        doc="Several GPUs that hold the model only together: weights sharded by DeepSpeed as well.",
        tricks=(*SHARDED, _make["zero"](3)),
    ),
    Preset(
        name="zero3_offload",
        doc="As zero3, with the optimizer state and its update in host memory, where the GPUs' is too little.",
        tricks=(*SHARDED, _make["zero"](3, offload="optimizer")),
    ),
    Preset(
        name="zero3_offload_params",
        doc="As zero3_offload, with the weights in host memory too: the largest models, and the slowest.",
        tricks=(*SHARDED, _make["zero"](3, offload="all")),
    ),
    Preset(
        name="fsdp2",
        doc="As zero3, with PyTorch alone: weights, gradients and optimizer state sharded by FSDP2.",
        tricks=(*SHARDED, _make["fsdp"]()),
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}
"""Every preset under its name."""
