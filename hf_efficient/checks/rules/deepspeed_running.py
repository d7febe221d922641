"""The order of things in a run under DeepSpeed: arguments, model, evaluation, training, generation."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.doors import door, is_zero_3
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup


@check({"transformers": ">=4.46"})
def deepspeed_evaluates_before_training(setup: Setup, zero: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find evaluate() or predict() before train() on one Trainer under DeepSpeed.

    Before training the Trainer sets DeepSpeed up for inference (evaluation_loop, deepspeed_init with inference=True):
    at stages 0 to 2 that raises ValueError. At stage 3 it fills the scheduler block with a total_num_steps of 0, which
    stays for the training that follows, and removes the optimizer block. `eval_on_start=True` evaluates inside train().
    """
    if setup.script is None or zero.open:
        return
    first = _first_evaluation(setup.script)
    stage = zero.number("stage")
    blocks = [name for name in ("scheduler", "optimizer") if zero.said(name)]
    if first is None or stage is UNKNOWN or (stage == 3 and not blocks):
        return
    if stage == 3:
        what = f"{first.method}() before train() with a {' and a '.join(blocks)} block in the DeepSpeed JSON"
        why = "The first call fills and freezes the file: "
        why += (
            "total_num_steps of the scheduler becomes 0" if "scheduler" in blocks else "the optimizer block is removed"
        )
        why += " for the training that follows."
        fix = "Use eval_on_start=True, or evaluate after train(), or remove the block and let lr_scheduler_type act."
    else:
        what = f"{first.method}() before train() at ZeRO stage {stage}"
        why = "The Trainer raises ValueError: inference by DeepSpeed makes sense with ZeRO stage 3 only."
        fix = "Use eval_on_start=True, which evaluates inside train(), or evaluate after train(), or use stage 3."
    yield error(what, why=why, fix=fix, at=first.place)


def _first_evaluation(script: Script) -> Call | None:
    """Return the first evaluate() or predict() that comes before train() of the same object, in one function."""
    for call in script.calls:
        made = script.made(call.receiver)
        if call.method not in ("evaluate", "predict") or made is None or not made.method.endswith("Trainer"):
            continue
        own = [c for c in script.calls if c.receiver == call.receiver and c.function == call.function]
        trains = [c.node.lineno for c in own if c.method == "train"]
        if trains and call.node.lineno < min(trains) and not call.guards:
            return call
    return None


@check({"transformers": ">=4.46"})
def zero3_model_before_arguments(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find a model that is loaded before the configuration of ZeRO-3 exists.

    from_pretrained shards while it loads where a TrainingArguments with deepspeed, or an Accelerator, is alive (a
    global that HfDeepSpeedConfig sets). Loaded before, every process holds the whole model in CPU memory first.
    """
    script = setup.script
    if script is None or not is_zero_3(zero):
        return
    makers = (
        "Accelerator",
        "TrainingArguments",
        "Config",
        "HfArgumentParser",
        "TrlParser",
        "parse_args_into_dataclasses",
    )
    made = [
        c for c in script.calls if c.method.endswith(makers) and c.method not in ("LoraConfig", "BitsAndBytesConfig")
    ]
    for call in script.named("from_pretrained"):
        kind = call.receiver.rpartition(".")[2]
        if not ("ModelFor" in kind or "For" in kind or kind == "AutoModel") or call.function:
            continue
        top = [c for c in made if not c.function]
        inside = len(top) != len(made)
        if top and not inside and call.node.lineno < min(c.node.lineno for c in top):
            yield warning(
                f"{kind}.from_pretrained stands before {top[0].method}(...) under ZeRO-3",
                why="The model is not sharded while it is loaded: every process holds all of it in CPU memory first.",
                fix=f"Make {top[0].method}(...) first, then load the model.",
                at=call.place,
            )


@check({"transformers": ">=4.46"})
def zero3_generate_not_synced(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find generate(synced_gpus=False) under ZeRO-3.

    Every forward gathers parameters from all processes; a process that finishes its sequences early stops taking part
    and the others wait for ever. transformers sets synced_gpus itself where it is not said.
    """
    for call in setup.script.named("generate") if setup.script is not None and is_zero_3(zero) else []:
        if call.keywords.get("synced_gpus") is False:
            yield error(
                "generate(synced_gpus=False) under ZeRO-3",
                why="A process that is done stops gathering parameters, and the others hang.",
                fix="Leave synced_gpus out, or write synced_gpus=True.",
                at=call.place,
            )


@check({"transformers": ">=4.46"})
def deepspeed_checkpointing_block_unused(
    setup: Setup, deepspeed: Settings, trainer: Settings = NOTHING
) -> Iterator[Finding]:
    """Find an activation_checkpointing block in the DeepSpeed JSON of a transformers model.

    The block configures deepspeed.checkpointing.checkpoint, which transformers models do not call: they use torch's. So
    it saves no memory; the Trainer's own argument does.
    """
    asked = [key for key, value in deepspeed.part("activation_checkpointing").values.items() if value is True]
    if not asked or door(setup) not in ("trainer", "accelerate"):
        return
    on = trainer.on("activation_checkpointing") or trainer.on("gradient_checkpointing")
    told = info if on or not trainer or trainer.open else warning
    yield told(
        f"activation_checkpointing ({', '.join(asked)}) in the DeepSpeed JSON",
        why="transformers models do not call DeepSpeed's checkpointing, so the block does nothing.",
        fix="Use activation_checkpointing=True (gradient_checkpointing before 5.x) in TrainingArguments, or "
        "model.gradient_checkpointing_enable() in a loop, and remove the block.",
        at=deepspeed.where("activation_checkpointing"),
    )


@check({"transformers": ">=4.46", "deepspeed": ">=0.10"})
def zero3_with_compile(trainer: Settings, zero: Settings) -> Iterator[Finding]:
    """Tell that torch.compile and ZeRO-3 work against each other.

    Stage 3 gathers and frees the parameters of each module by hooks around its forward; each hook breaks the graph, so
    that compilation takes long and gains little. Stages 0 to 2 keep the parameters whole.
    """
    if trainer.on("torch_compile") and is_zero_3(zero):
        yield info(
            "torch_compile=True under ZeRO-3",
            why="The hooks that gather parameters break the graph at every module: long compilation, little gain.",
            fix="Compile at stage 1 or 2, or leave torch_compile out; measure before keeping both.",
            at=trainer.where("torch_compile"),
        )
