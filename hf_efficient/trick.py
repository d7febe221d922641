"""What a training-efficiency trick is: a value that states facts and imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from hf_efficient.machine import Machine

Settings = Mapping[str, Any]


def target(doc: str) -> Any:
    """Declare a field of `Trick` that holds the settings for one target, described by `doc`."""
    return field(default_factory=dict, metadata={"target": doc})


@dataclass(frozen=True, kw_only=True)
class Trick:
    """One way to make training cheaper, and every knob that it turns.

    A trick is the return value of the one public function of its file in `tricks/`. `saves` and `costs` are
    half-sentences for a table. `numerics` is a promise about the training: `exact` (the same mathematics in the same
    precision: relative L2 of the gradients, for an optimizer of its update, at most 1e-5 in fp32), `close` (the same
    training in lower precision or other kernels, `within` so much), `different` (the rest).
    """

    name: str = ""
    """Its own spelling, such as `zero(3, offload='optimizer')`; `catalogue` writes it."""
    family: str
    """What it is one of; a plan holds one trick of a family."""
    saves: str
    costs: str
    numerics: Literal["exact", "close", "different"]
    within: Rounding | None = None
    """How close `close` is."""
    shows: tuple[str, ...] = ()
    """What of a run is other with it, by the names in `promises.facts.FACTS`; where nothing is, it did nothing."""
    needs: tuple[Need, ...] = ()
    heads: tuple[Literal["causal_lm", "texts", "linear_blocks"], ...] = ()
    """The kinds of model that it is made for, all of them; empty: any."""

    trainer: Settings = target("fields of transformers.TrainingArguments")
    sft: Settings = target("fields of trl.SFTConfig that TrainingArguments lacks, or that differ there")
    accelerator: Settings = target("keywords of accelerate.Accelerator")
    optimizer: Settings = target("import path and keywords of the optimizer of a hand-written loop")
    dataloader: Settings = target("keywords of torch.utils.data.DataLoader")
    collator: Settings = target("keywords of the data collator")
    torch: Settings = target("switches of the process, such as the precision of fp32 matmuls")
    env: Settings = target("environment variables")
    loop: Settings = target("what a hand-written loop does itself, such as clipping")
    deepspeed: Settings = target("keys of the DeepSpeed JSON, used in a plan whose engine is DeepSpeed")
    launch: Settings = target("keys of the `accelerate launch` YAML")
    model: Settings = target("keywords of from_pretrained")
    peft: Settings = target("fields of the adapter's configuration")

    prepare: MethodCall | FunctionCall | None = None
    """What a hand-written loop does to the model, where Accelerator has no keyword for it."""
    decides: tuple[str, ...] = ()
    """Settings, as `target.key`, that are its to say even where another trick says something else."""
    insists: Settings = field(default_factory=dict)
    """Fields of TrainingArguments that must stay as it sets them -> what would go wrong otherwise."""
    remarks: Settings = field(default_factory=dict)
    """Target -> a sentence to say where its settings for that target are used."""
    advise: Callable[[Machine], str] | None = field(default=None, compare=False)
    """Say what would be faster on a machine, or nothing; advice is printed and never imposed."""


TARGETS: Mapping[str, str] = {f.name: f.metadata["target"] for f in fields(Trick) if "target" in f.metadata}
"""Every target and what its settings are."""


class Rounding(NamedTuple):
    """A distance in units of a dtype's machine epsilon: relative L2 of gradients at most `multiple * eps(dtype)`."""

    dtype: Literal["bfloat16", "float16", "float32"]
    multiple: float


@dataclass(frozen=True)
class MethodCall:
    """One call of a method of the model, kept as data so that it can be run and also written out."""

    method: str
    keywords: Settings = field(default_factory=dict)

    def __call__(self, model: Any) -> Any:
        """Call the method of `model`."""
        return getattr(model, self.method)(**self.keywords)

    def source(self, model: str) -> str:
        """Return the call as Python source, on a variable named `model`."""
        keywords = ", ".join(f"{key}={value!r}" for key, value in self.keywords.items())
        return f"{model}.{self.method}({keywords})"


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function on the model, named by its import path: data, as a MethodCall is."""

    path: str
    keywords: Settings = field(default_factory=dict)

    def __call__(self, model: Any) -> Any:
        """Import the function and call it on `model`."""
        module, _, name = self.path.rpartition(".")
        return getattr(import_module(module), name)(model, **self.keywords)

    @property
    def imported(self) -> str:
        """Return the line that imports the function."""
        module, _, name = self.path.rpartition(".")
        return f"from {module} import {name}"

    def source(self, model: str) -> str:
        """Return the call as Python source, on a variable named `model`, after the line `imported`."""
        arguments = [model, *(f"{key}={value!r}" for key, value in self.keywords.items())]
        return f"{self.path.rpartition('.')[2]}({', '.join(arguments)})"


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that the machine must have, and what to do when it has not. Data, not code."""

    package: str = ""
    """A distribution that must be installed."""
    capability: tuple[int, int] = (0, 0)
    """The least CUDA compute capability; a CPU or another maker's accelerator fails it unless `or_cpu`, `or_rocm`."""
    accelerator: bool = False
    gpus: int = 0
    or_cpu: bool = False
    """Does a machine without an accelerator do as well?"""
    or_rocm: bool = False
    """Does an AMD GPU do as well?"""
    cpu_bf16: bool = False
    """The CPU must have bf16 instructions."""
    otherwise: str = ""
    """What to do instead, one sentence."""

    def unmet_on(self, machine: Machine) -> str:
        """Say what `machine` lacks and what to do about it, or return an empty string."""
        lack = self._lack(machine)
        return f"{lack}. {self.otherwise}".strip() if lack else ""

    def describe(self) -> str:
        """Say what is needed, for any machine."""
        parts = [
            f"the package {self.package}" if self.package else "",
            f"compute capability {'.'.join(map(str, self.capability))} or newer" if self.capability > (0, 0) else "",
            "an accelerator" if self.accelerator else "",
            f"{self.gpus} GPUs" if self.gpus else "",
            "a CPU with bf16 instructions" if self.cpu_bf16 else "",
        ]
        return " and ".join(part for part in parts if part) + (
            (", or an AMD GPU" if self.or_rocm else "") + (", or a CPU" if self.or_cpu else "")
        )

    def _lack(self, machine: Machine) -> str:
        if self.package and self.package not in machine.packages:
            return f"the package {self.package}, which is not installed"
        if not machine.accelerator and (self.accelerator or (self.capability > (0, 0) and not self.or_cpu)):
            return "an accelerator, and this machine has none"
        if self.or_rocm and machine.accelerator == "rocm":
            return ""
        if machine.accelerator not in ("", "cuda") and self.capability > (0, 0) and not self.or_cpu:
            return f"an NVIDIA GPU, and this machine has {machine.gpu or machine.accelerator}"
        if machine.accelerator == "cuda" and self.capability > machine.capability:
            return (
                f"a GPU of compute capability {'.'.join(map(str, self.capability))}, "
                f"and {machine.gpu} has {'.'.join(map(str, machine.capability))}"
            )
        if self.gpus > machine.gpus:
            return f"{self.gpus} GPUs, and this machine has {machine.gpus}"
        if self.cpu_bf16 and not machine.cpu_bf16:
            return "a CPU with bf16 instructions (avx512_bf16, amx_bf16 or Arm's bf16)"
        return ""
