"""What goes with DeepSpeed ZeRO and FSDP2: tricks that break or become another training there are refused, and what
changes otherwise is a note.

Each rule was seen on two processes with accelerate 1.15, deepspeed 0.19.8, torch 2.13, bitsandbytes 0.50, torchao 0.18
and schedulefree 1.4; what the rules let pass trained as on one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hf_efficient.emit.deepspeed import offload_devices
from hf_efficient.plan import Conflict, Plan

Door = Literal["trainer", "loop"]

ADAMW = ("adamw_torch", "adamw_torch_fused")
TORCHAO = ("adamw_torch_4bit", "adamw_torch_8bit")
STOCK = ADAMW[-1]
"""Trainer's own optimizer, where nobody names one."""


def fit_engine(plan: Plan, optimizer: str, *, door: Door) -> Plan:
    """Return `plan` with a note for each trick that its engine changes.

    `optimizer` is the name that Trainer has for it. Raises Conflict for a trick that the engine stops at, drops in
    silence or turns into another training.
    """
    why = next(_refusals(plan, optimizer, door), "")
    if why:
        raise Conflict(f"{_engine(plan)} {why}.")
    new = [f"{_engine(plan)} {text}." for text in _changes(plan, optimizer)]
    return plan.note(*(text for text in new if text not in plan.notes))


def fit_every_door(plan: Plan) -> Plan:
    """Return `plan` as `fit_engine` does for what Trainer and a hand-written loop have in common."""
    return fit_engine(plan, str(plan["optimizer"].get("name") or plan["trainer"].get("optim", STOCK)), door="trainer")


def _engine(plan: Plan) -> str:
    """Return who brings the engine, as the beginning of a sentence."""
    author = plan.author("launch", "distributed_type")
    if author != "launcher":
        return author
    return f"The launcher's {next((trick.name for trick in plan.tricks if trick.family == 'sharding'), 'engine')}"


def _refusals(plan: Plan, optimizer: str, door: Door) -> Iterator[str]:
    if plan.engine == "DEEPSPEED":
        yield from _refused_by_zero(plan, optimizer)
    elif plan.engine == "FSDP":
        yield from _refused_by_fsdp(plan, optimizer, door)


def _refused_by_zero(plan: Plan, optimizer: str) -> Iterator[str]:
    if offload_devices(_zero(plan))["offload_optimizer"] != "none" and optimizer not in ADAMW:
        yield (
            "updates on the CPU with an optimizer of DeepSpeed's own, which would take the place of "
            f"{optimizer}: leave the offload or the optimizer out"
        )
    if optimizer == "adafactor":
        yield (
            "hands the optimizer one flat row of all weights, of which adafactor would keep every second moment and "
            "clip each GPU's share as one matrix: take adamw_8bit, whose state is smaller then"
        )
    if optimizer.startswith(("galore_", "apollo_")):
        yield f"hands the optimizer one flat row of all weights, which {optimizer} cannot project: take adamw_8bit"
    if optimizer.startswith("schedule_free"):
        yield (
            f"updates weights of its own beside the model's, which the average that {optimizer} evaluates and saves "
            "would never reach: take fsdp in its place, or adamw_fused for the optimizer"
        )
    if optimizer == "adagrad":
        yield "makes adagrad anew with one group and stops at the first update: take rmsprop or adamw_fused"


def _refused_by_fsdp(plan: Plan, optimizer: str, door: Door) -> Iterator[str]:
    if optimizer in ("adafactor", "adamw_torch_4bit") or optimizer.startswith("apollo_"):
        yield (
            f"shards every weight as a DTensor, which {optimizer} cannot update: take adamw_torchao_8bit, or "
            "adamw_fused for the optimizer"
        )
    if optimizer.startswith("galore_"):
        yield (
            f"saves the optimizer's state in tensors, and the projectors of {optimizer} end in an error at the first "
            "checkpoint: take adamw_torchao_8bit"
        )
    if _bitsandbytes(optimizer):
        yield (
            f"shards every weight as a DTensor, which {optimizer} cannot update: take zero in its place, or "
            "adamw_torchao_8bit for the optimizer"
        )
    if _fp8(plan) and plan["accelerator"]["fsdp_plugin"].get("cpu_ram_efficient_loading", True):
        yield (
            "loads the weights in one process, which accelerate refuses beside fp8: write "
            "fsdp_cpu_ram_efficient_loading: false below fsdp_config of the launch YAML and leave fsdp out of the "
            "plan, or take bf16"
        )
    if door == "loop" and _compiled(plan) and not _regional(plan):
        yield "cannot evaluate a model that is compiled as a whole before it trains: write compile(regional=True)"


def _changes(plan: Plan, optimizer: str) -> Iterator[str]:
    if plan.engine == "DEEPSPEED":
        yield from _changed_by_zero(plan, optimizer)
    elif plan.engine == "FSDP":
        if _four_bit(plan):
            yield "leaves weights in 4 bits whole on every GPU, and shards the rest"
        if optimizer == "adamw_torch_8bit" or optimizer.startswith("schedule_free"):
            yield f"saves checkpoints that cannot be resumed with {optimizer}: torch stops at its state while it loads"
        if _compiled(plan) and not _regional(plan):
            yield "parts the compiled graph at every layer: compile(regional=True) compiles one layer for all"


def _changed_by_zero(plan: Plan, optimizer: str) -> Iterator[str]:
    if _bitsandbytes(optimizer) and optimizer.endswith("8bit"):
        yield (
            f"hands {optimizer} one flat row of all weights, so that the state of embeddings is in 8 bits too: "
            "compare the loss with adamw_fused where rare tokens matter"
        )
    if optimizer in TORCHAO:
        yield (
            f"hands {optimizer} one flat row of all weights, whose state stays in 32 bits without a word where a GPU's "
            "share is no multiple of 256 numbers, as it may be on 3 GPUs: adamw_8bit takes any length"
        )
    if _zero(plan).get("stage") == 3:
        if _four_bit(plan):
            yield "shards weights in 4 bits after each process has loaded them whole"
        if _compiled(plan):
            yield "parts the compiled graph around every module that gathers its weights, so that less is fused"


def _zero(plan: Plan) -> dict[str, object]:
    return dict(plan["deepspeed"].get("zero_optimization", {}))


def _bitsandbytes(optimizer: str) -> bool:
    named = "bnb" in optimizer or optimizer.endswith(("8bit", "32bit")) or optimizer == "ademamix"
    return named and not optimizer.startswith(("galore_", "adamw_torch"))


def _fp8(plan: Plan) -> bool:
    return "fp8" in (plan["accelerator"].get("mixed_precision"), plan["env"].get("ACCELERATE_MIXED_PRECISION"))


def _four_bit(plan: Plan) -> bool:
    return bool((plan["model"].get("quantization_config") or {}).get("load_in_4bit"))


def _compiled(plan: Plan) -> bool:
    return bool(plan["trainer"].get("torch_compile") or plan["accelerator"].get("dynamo_plugin"))


def _regional(plan: Plan) -> bool:
    return bool((plan["accelerator"].get("dynamo_plugin") or {}).get("use_regional_compilation"))
