""" "auto" in a DeepSpeed JSON that nobody fills."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.deepspeed_keys import AUTO_BOTH, AUTO_TRAINER, BATCH
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup

NO_LOADER = ("model", "optim", "sched", "net")
"""Parts of the names of what is certainly no DataLoader."""


@check({"accelerate": ">=1.0", "transformers": ">=4.46"}, seen="ran on CPU")
def deepspeed_auto_without_source(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find "auto" where no library fills it.

    transformers fills batch sizes, accumulation, clipping, precision, lr, betas, eps, weight_decay, the warmup and the
    three buckets (trainer_config_process and _finalize); accelerate fills the same but betas and eps, and stage,
    devices and gathering from its own settings. Any other "auto" that is left raises ValueError in Accelerator.prepare
    ("not found in kwargs"). `deepspeed.initialize` fills none; see deepspeed-auto-without-integration.
    """
    through = door(setup)
    if through == "deepspeed":
        return
    filled = AUTO_BOTH if through == "accelerate" else AUTO_TRAINER
    for path, value in deepspeed.walk():
        if value == "auto" and path not in filled:
            who = "accelerate fills" if through == "accelerate" else "transformers and accelerate fill"
            yield error(
                f'{path} is "auto", and nothing fills it',
                why=f"{who} no such key; Accelerator.prepare raises ValueError for an auto that is left.",
                fix=f"Write a value for {path}, or leave the key out so that DeepSpeed takes its default.",
                at=deepspeed.where(path),
            )


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_auto_without_integration(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find "auto" in a JSON that goes to `deepspeed.initialize` itself.

    "auto" is a word of transformers and accelerate. DeepSpeed fails on it in the batch sizes and in gradient_clipping
    (it computes with a string), and drops it without a word inside fp16, bf16 and zero_optimization, which then keep
    their defaults: bf16 stays off.
    """
    if door(setup) != "deepspeed":
        return
    for path, value in deepspeed.walk():
        if value == "auto" and path not in ("pipeline.stages", "data_types.keep_in_fp32_modules"):
            dropped = path.startswith(("fp16.", "bf16.", "zero_optimization."))
            yield error(
                f'{path} is "auto" in a JSON that deepspeed.initialize reads',
                why="DeepSpeed itself knows no auto: "
                + ("it drops the key and keeps its default in silence." if dropped else "it computes with the string."),
                fix=f"Write the value of {path}; auto is filled by transformers' Trainer and by accelerate only.",
                at=deepspeed.where(path),
            )


@check({"accelerate": ">=1.0"})
def deepspeed_auto_batch_without_loader(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find an "auto" micro-batch in a hand-written loop that prepares no DataLoader.

    Accelerator.prepare reads the micro-batch from the DataLoader that it is given (_prepare_deepspeed) and raises
    ValueError without one. Where the accelerate YAML holds the ZeRO keys itself, the micro-batch is always auto. Silent
    where something is prepared whose kind its name does not tell.
    """
    script, key = setup.script, BATCH[0]
    written = setup.deepspeed is not None and setup.deepspeed.get(key) != "auto"
    if script is None or written or zero.open or door(setup) != "accelerate" or script.named("DataLoader"):
        return
    prepared = [call for call in script.calls if call.method == "prepare"]
    names = [ast.unparse(arg).lower() for call in prepared for arg in call.node.args]
    if names and all(any(kind in name for kind in NO_LOADER) and "load" not in name for name in names):
        yield error(
            f'{key} is "auto" and no DataLoader is prepared',
            why="accelerate reads the micro-batch from the DataLoader given to prepare(), else it raises ValueError.",
            fix=f"Give the DataLoader to prepare() as well, or write {key} as an integer in a DeepSpeed JSON.",
            at=prepared[0].place,
        )


@check({"accelerate": ">=1.0"})
def deepspeed_auto_without_dummy(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find "auto" in the optimizer or scheduler block of a hand-written loop without DummyOptim or DummyScheduler.

    accelerate takes lr and weight_decay from `accelerate.utils.DummyOptim`, the warmup and the total number of steps
    from `accelerate.utils.DummyScheduler`; without them Accelerator.prepare raises ValueError.
    """
    script = setup.script
    if script is None or door(setup) != "accelerate":
        return
    for block, dummy in (("optimizer", "DummyOptim"), ("scheduler", "DummyScheduler")):
        left = [p for p, v in deepspeed.part(block).walk(f"{block}.") if v == "auto" and p in AUTO_BOTH]
        if left and not _mentions(script, dummy):
            yield error(
                f'{left[0]} is "auto" and the script makes no {dummy}',
                why=f"accelerate fills the {block} block from accelerate.utils.{dummy} only, or raises ValueError.",
                fix=f"Make the {block} with accelerate.utils.{dummy}, or remove the {block} block from the JSON and "
                f"keep the {block} of the script.",
                at=deepspeed.where(left[0]),
            )


def _mentions(script: Script, name: str) -> bool:
    """Does the script use the class, if only under another name (`optimizer_cls = DummyOptim if ... else AdamW`)?"""
    return any(name in (getattr(node, "id", ""), getattr(node, "attr", "")) for node, _ in script.nodes)
