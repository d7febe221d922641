"""Precisions that the card has no units for, and switches that do nothing, or fail, on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.rules.precision_places import (
    capability_below,
    card,
    known_capability,
    precision_of,
    without_gpu,
)
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.models import dtype
from hf_efficient.reading.script import Call
from hf_efficient.reading.settings import NOTHING
from hf_efficient.reading.setup import Setup

PROBES = ("is_bf16_supported", "is_torch_bf16_gpu_available", "is_bf16_available", "is_torch_bf16_available_on_device")
"""Functions of torch, transformers and accelerate that answer True on a card that emulates bf16."""


def bf16_users(setup: Setup) -> list[tuple[str, Place]]:
    """Return what computes in bf16, and where each is said."""
    found: list[tuple[str, Place]] = []
    precision, model = precision_of(setup), setup.model or NOTHING
    if precision is not None and precision.value == "bf16":
        found.append((precision.by, precision.place))
    if setup.trainer is not None and setup.trainer.on("bf16_full_eval"):
        found.append(("bf16_full_eval=True", setup.trainer.where("bf16_full_eval")))
    if dtype(model.get("bnb_4bit_compute_dtype")) == "bfloat16":
        found.append(("bnb_4bit_compute_dtype=bfloat16", model.where("bnb_4bit_compute_dtype")))
    key = "cast_dtype" if model.said("cast_dtype") else "load_dtype"
    if dtype(model.get(key)) == "bfloat16" and (precision is None or precision.value != "fp16"):
        found.append(("a model in bfloat16", model.where(key)))
    for call in setup.script.named("autocast") if setup.script is not None else []:
        asked = [dtype(value) for value in (*call.args, call.keywords.get("dtype")) if value is not None]
        if "bfloat16" in asked and call.keywords.get("enabled", True) is True and "cpu" not in call.args:
            found.append(("autocast(dtype=torch.bfloat16)", call.place))
    return found


@check({"torch": ">=2.0"}, seen="read source")
def bf16_emulated(setup: Setup) -> Iterator[Finding]:
    """Find bf16 on a card without bf16 units.

    Below compute capability 8.0 (V100, T4, RTX 20) bf16 runs in software: it is taken without a word, since
    torch.cuda.is_bf16_supported() also counts emulation, and transformers and accelerate ask that. No tensor core
    works then, so it is slower than fp32, and saves memory only. fp16 has tensor cores from capability 7.0 on.
    SFTConfig turns bf16 on by itself unless fp16=True. Not meant: runs on the CPU, where bf16 is another matter.
    """
    users = bf16_users(setup)
    if not users or without_gpu(setup) or not capability_below(setup.machine, 8):
        return
    named = ", ".join(dict.fromkeys(who for who, _ in users))
    yield warning(
        f"bf16 on {card(setup.machine)}: {named}",
        why="There are no bf16 units below compute capability 8.0, so bfloat16 is emulated, slower than fp32"
        " and without tensor"
        " cores; nothing refuses it, because torch counts emulation as support.",
        fix="Use fp16=True with fp32 weights (bf16=False, dtype=torch.float32,"
        " bnb_4bit_compute_dtype=torch.float16), or fp32, on"
        " this card; bf16 on one of capability 8.0 or more.",
        at=users[0][1],
    )


@check({"torch": ">=2.5"}, seen="read source")
def bf16_probe_counts_emulation(setup: Setup) -> Iterator[Finding]:
    """Find a script that asks for bf16 support with a function that also says yes to emulation.

    torch.cuda.is_bf16_supported() has including_emulation=True by default (torch/cuda/__init__.py): it makes a bf16
    tensor, which works on every card. transformers' is_torch_bf16_gpu_available and accelerate's is_bf16_available call
    it so. A script that chooses between bf16 and fp16 by it chooses emulated bf16 on a T4 or V100. Not meant: cards of
    capability 8.0 or more, and scripts that ask for the capability as well.
    """
    script, capability = setup.script, known_capability(setup.machine)
    if script is None or without_gpu(setup) or (capability is not None and capability >= (8, 0)):
        return
    if script.named("get_device_capability", "get_device_properties"):
        return
    tell = warning if capability is not None else info
    for call in script.named(*PROBES):
        if _counts_emulation(call):
            yield tell(
                f"{call.method}() chooses the precision, which is also True where bf16 is emulated",
                why="including_emulation is True by default, so the call says yes on cards below compute"
                " capability 8.0 (T4, V100),"
                " where bf16 runs in software, slower than fp16 and fp32.",
                fix="Ask torch.cuda.is_bf16_supported(including_emulation=False), or"
                " torch.cuda.get_device_capability() >= (8, 0).",
                at=call.place,
            )


def _counts_emulation(call: Call) -> bool:
    if call.method != "is_bf16_supported":
        return True
    said = call.keywords.get("including_emulation", call.args[0] if call.args else True)
    return said is True and not call.open and not call.name.startswith(("torch.xpu", "torch.npu", "torch.mlu"))


@check({"accelerate": ">=1.0"}, seen="read source")
def fp8_without_units(setup: Setup) -> Iterator[Finding]:
    """Find fp8 on a card that has none.

    fp8 needs compute capability 8.9 or more (Ada, Hopper). accelerate prints a warning and trains in fp16 instead
    (accelerate/state.py, AcceleratorState), which scales gradients and overflows where bf16 would not.
    """
    precision = precision_of(setup)
    if precision is not None and precision.value == "fp8" and capability_below(setup.machine, 8, 9):
        better = "fp16" if capability_below(setup.machine, 8) else "bf16"
        yield warning(
            f"mixed_precision fp8 on {card(setup.machine)}",
            why="fp8 needs compute capability 8.9; accelerate falls back to fp16 with one line in the log.",
            fix=f'Set mixed_precision to "{better}", or train on a card of capability 8.9 or more.',
            at=precision.place,
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def tf32_without_units(setup: Setup) -> Iterator[Finding]:
    """Find tf32=True on a card that has no TF32.

    TF32 needs compute capability 8.0. TrainingArguments(tf32=True) raises ValueError elsewhere: on older cards, on
    AMD's and on machines without a GPU (transformers/training_args.py, __post_init__). tf32=False is taken
    everywhere.
    """
    trainer, machine = setup.trainer or NOTHING, setup.machine or NOTHING
    old = capability_below(machine, 8)
    none = machine.said("gpus") and machine.get("gpus") == 0
    if trainer.on("tf32") and (old or none or machine.text("accelerator") == "rocm"):
        yield error(
            f"tf32=True on {card(machine) if machine.text('gpu') or old else 'a machine without a GPU'}",
            why="TrainingArguments refuses it with ValueError: TF32 needs an NVIDIA card of compute capability"
            " 8.0 or more.",
            fix="Leave tf32 out (or tf32=False); on an older card fp16=True is what uses its tensor cores.",
            at=trainer.where("tf32"),
        )


@check({"transformers": ">=5.0", "accelerate": ">=1.0"}, seen="ran on CPU")
def half_precision_without_gpu(setup: Setup) -> Iterator[Finding]:
    """Find fp16 or bf16 where the run has no GPU.

    fp16 on the CPU is a silent fp32 run: accelerate enables neither autocast nor a scaler there (accelerator.py, "fp16"
    and device.type != "cpu"). bf16=True on a machine without a GPU raises ValueError unless use_cpu=True says that this
    is meant (transformers/training_args.py, _validate_args).
    """
    trainer, precision = setup.trainer or NOTHING, precision_of(setup)
    if not without_gpu(setup) or precision is None or setup.zero is not None:
        return
    if precision.value == "fp16":
        yield warning(
            f"fp16 mixed precision ({precision.by}) on the CPU",
            why="accelerate turns neither autocast nor a GradScaler on there: the run is fp32, without a word.",
            fix="Use bf16=True with use_cpu=True, or fp32 (leave fp16 out).",
            at=precision.place,
        )
    elif trainer.on("bf16") and trainer.off("use_cpu"):
        yield error(
            "bf16=True on a machine without a GPU, without use_cpu=True",
            why="TrainingArguments raises ValueError: your setup doesn't support bf16/gpu.",
            fix="Add use_cpu=True to train on the CPU, or start on a machine with a GPU.",
            at=trainer.where("bf16"),
        )
