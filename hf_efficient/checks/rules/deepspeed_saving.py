"""Saving a model that DeepSpeed or FSDP has sharded."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.checks.check import check
from hf_efficient.checks.doors import door, is_zero_3
from hf_efficient.checks.saved import is_written
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.lineage import inside, lineage
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

GATHER = "stage3_gather_16bit_weights_on_model_save"
PLANNED = ("zero_to_fp32", "load_state_dict_from_zero_checkpoint", "get_fp32_state_dict_from_zero_checkpoint")
"""Words that tell that the shards are put together afterwards."""
REMEDY = f'Set "{GATHER}": true in zero_optimization (zero3_save_16bit_model: true in the accelerate YAML)'

RIGHT = {
    "trainer": "trainer.save_model(...)",
    "accelerate": "accelerator.save_model(model, ...) or save_pretrained(..., "
    "state_dict=accelerator.get_state_dict(model))",
    "deepspeed": "engine.save_16bit_model(...)",
}
"""What gathers the weights first, by the door of the run."""


def _planned(script: Script | None) -> bool:
    return script is not None and any(word in script.source for word in PLANNED)


def _ungathered(zero: Settings) -> bool:
    """Does saving find the shards only? "auto" is filled with false."""
    value = zero.get("gather_16bit")
    return not zero.open and value is not UNKNOWN and value in (None, False, "auto", "false", "False")


@check({"transformers": ">=4.46", "deepspeed": ">=0.10"})
def zero3_saves_no_weight_file(setup: Setup, zero: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find a ZeRO-3 Trainer that saves the model without gathering its weights.

    Trainer.save_model asks accelerator.get_state_dict, which refuses without stage3_gather_16bit_weights_on_model_save;
    it then writes a DeepSpeed checkpoint and no weight file that from_pretrained reads. The checkpoint folder has
    zero_to_fp32.py, which makes one afterwards. Where the script only trains, the same holds for its checkpoints
    (info).
    """
    script = setup.script
    if not is_zero_3(zero) or not _ungathered(zero) or _planned(script):
        return
    calls = [c for c in script.calls if c.method in ("save_model", "push_to_hub")] if script is not None else []
    calls = [call for call in calls if "accelerator" not in call.receiver]
    told = warning if calls or trainer.on("push_to_hub") else info
    yield told(
        f"ZeRO-3 with {GATHER} {zero.get('gather_16bit') or 'off'}" + (f", and {calls[0].method}()" if calls else ""),
        why="Trainer writes a DeepSpeed checkpoint and no Hugging Face weight file.",
        fix=f"{REMEDY}, or plan on zero_to_fp32.py, which lies in the checkpoint folder.",
        at=calls[0].place if calls else zero.where("gather_16bit"),
    )


@check({"accelerate": ">=1.0", "deepspeed": ">=0.10"})
def zero3_state_dict_refused(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find a hand-written ZeRO-3 loop that asks for the whole weights without gathering them.

    accelerator.get_state_dict, and accelerator.save_model through it, raise ValueError where
    stage3_gather_16bit_weights_on_model_save is false: after the whole training.
    """
    if setup.script is None or not is_zero_3(zero) or not _ungathered(zero) or door(setup) != "accelerate":
        return
    for call in setup.script.calls:
        whole = call.method == "get_state_dict" or (call.method == "save_model" and _is_accelerator(setup.script, call))
        if whole:
            yield error(
                f"{call.method}() under ZeRO-3 with {GATHER} {zero.get('gather_16bit') or 'off'}",
                why="accelerate raises ValueError instead of giving the weights, at the end of the training.",
                fix=f"{REMEDY}, or save with accelerator.save_state and use zero_to_fp32.py.",
                at=call.place,
            )


def _is_accelerator(script: Script, call: Call) -> bool:
    made = script.made(call.receiver)
    return "accel" in call.receiver.lower() or (made is not None and made.method == "Accelerator")


@check({"transformers": ">=4.46", "deepspeed": ">=0.10"})
def zero3_saves_empty_shards(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find a model saved by itself under ZeRO-3.

    After training every process holds its shards, and the parameters of the module itself are empty tensors of size 0.
    save_pretrained without state_dict and torch.save(model.state_dict()) write these. Trainer.save_model and
    accelerator.get_state_dict gather the weights first. Silent inside deepspeed.zero.GatheredParameters, and before
    training.
    """
    script = setup.script
    if script is None or not is_zero_3(zero) or not door(setup):
        return
    begun = min((c.node.lineno for c in script.calls if c.method in ("train", "backward") and _trains(c)), default=None)
    how = RIGHT[door(setup)]
    for call in script.calls:
        if begun is None or call.node.lineno < begun or not _saves_itself(script, call):
            continue
        yield error(
            f"{call.text[:80]} under ZeRO-3",
            why="The model's own parameters are empty shards then, so the file holds no weights.",
            fix=f"{REMEDY}, and save with {how}; or use zero_to_fp32.py on a checkpoint.",
            at=call.place,
        )


def _trains(call: Call) -> bool:
    """Is it Trainer.train() or a backward(), and not model.train(), which only sets a mode?"""
    return call.method == "backward" or "model" not in call.receiver.rpartition(".")[2].lower()


def _saves_itself(script: Script, call: Call) -> bool:
    """Does the call write a model's own state_dict?"""
    if any("GatheredParameters" in context for context in call.contexts):
        return False
    if call.method == "save_pretrained":
        given = "state_dict" in call.keywords or len(call.node.args) > 2  # save_pretrained(folder, is_main, state_dict)
        return _of_model(script, call) and not given and not call.open
    return call.method == "state_dict" and _of_model(script, call) and is_written(script, call)


def _of_model(script: Script, call: Call) -> bool:
    """Is the method one of a model: by its name, as an engine's module, or unwrapped?"""
    node = getattr(call.node.func, "value", None)
    last = call.receiver.rpartition(".")[2].lower()
    if "model" in last or "unwrap_model" in call.text.partition(f".{call.method}")[0]:
        return "adapter" not in last
    made = lineage(script, node, inside(call)).calls
    return last == "module" or any(one.method == "unwrap_model" for one in made)


@check({"deepspeed": ">=0.10"})
def zero3_save_writes_nothing(setup: Setup, zero: Settings) -> Iterator[Finding]:
    """Find an engine's save_16bit_model under ZeRO-3 without gathering the weights.

    DeepSpeedEngine.save_16bit_model then writes a line to the log, returns False and saves nothing
    (deepspeed/runtime/engine.py).
    """
    if setup.script is None or not is_zero_3(zero) or not _ungathered(zero):
        return
    for call in setup.script.named("save_16bit_model", "save_fp16_model"):
        yield error(
            f"{call.text[:80]} under ZeRO-3 with {GATHER} {zero.get('gather_16bit') or 'off'}",
            why="DeepSpeed logs a line, returns False and writes no file.",
            fix=f"{REMEDY}, or save with save_checkpoint and use zero_to_fp32.py.",
            at=call.place,
        )


@check({"transformers": ">=5.0"})
def sharded_save_only_model_with_best(setup: Setup, trainer: Settings) -> Iterator[Finding]:
    """Find save_only_model with load_best_model_at_end under DeepSpeed or FSDP.

    Trainer raises ValueError: the best checkpoint cannot be loaded without the engine's own files.
    """
    engine = "DeepSpeed" if setup.zero is not None else "FSDP" if setup.fsdp is not None else ""
    if engine and trainer.on("save_only_model") and trainer.on("load_best_model_at_end"):
        yield error(
            f"save_only_model and load_best_model_at_end under {engine}",
            why=f"Trainer raises ValueError: {engine} cannot load the best model from a checkpoint of weights only.",
            fix="Set save_only_model=False, or load_best_model_at_end=False.",
            at=trainer.where("save_only_model"),
        )
