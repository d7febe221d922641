"""Keys of a DeepSpeed JSON that DeepSpeed does not know, no longer knows, or knows under another name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher

from hf_efficient.checks.check import check
from hf_efficient.checks.deepspeed_keys import BLOCKS, DEPRECATED_ZERO, FP16, REMOVED, REMOVED_ZERO, TOP, ZERO
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import nearest

ELSEWHERE: Mapping[str, str] = {
    "max_grad_norm": "gradient_clipping",
    "clip_grad_norm": "gradient_clipping",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "batch_size": "train_batch_size",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "allreduce_always_fp32": "communication_data_type",
    "fp32_allreduce": "communication_data_type",
    "gradient_checkpointing": "activation_checkpointing",
    "lr_scheduler": "scheduler",
    "lr": "optimizer.params.lr",
    "learning_rate": "optimizer.params.lr",
    "weight_decay": "optimizer.params.weight_decay",
    "betas": "optimizer.params.betas",
    "zero_stage": "zero_optimization.stage",
    "zero": "zero_optimization",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
}
"""Names from other files for what the JSON calls otherwise."""


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_unknown_top_level_key(deepspeed: Settings) -> Iterator[Finding]:
    """Find a key at the top of the DeepSpeed JSON that DeepSpeed does not read.

    DeepSpeed asks the dictionary for the keys it knows (deepspeed/runtime/config.py) and passes over the rest without a
    word: a misspelled block is as good as none, so ZeRO, clipping or bf16 silently stay off. Keys that begin with `_`,
    `#` or `//` are taken for comments.
    """
    for key in deepspeed:
        if key in TOP or key in REMOVED or key.startswith(("_", "#", "//")) or "comment" in key.lower():
            continue
        right = _right_name(key)
        close = nearest(key, TOP)
        told = error if right else warning
        yield told(
            f"{key!r} at the top of the DeepSpeed JSON is an unknown key",
            why="DeepSpeed ignores unknown top-level keys in silence, so what it says is not in force.",
            fix=f"Did you mean {right}?" if right else f"Remove it{f', or spell it {close}' if close else ''}.",
            at=deepspeed.where(key),
        )


def _right_name(key: str) -> str:
    """Return where the value belongs, or an empty string where nothing is near."""
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    if key in ZERO:
        return f"zero_optimization.{key}: it belongs inside that block"
    if key in FP16 and key != "enabled":
        return f"fp16.{key}: it belongs inside that block"
    close = nearest(key, TOP)
    alike = SequenceMatcher(None, key.lower(), close).ratio() if close else 0
    return close if alike > 0.75 else ""


@check({"deepspeed": ">=0.10"}, seen="ran on CPU")
def deepspeed_unknown_block_key(deepspeed: Settings) -> Iterator[Finding]:
    """Find an unknown key inside zero_optimization, its offload blocks, fp16 or bf16.

    These blocks are pydantic models that forbid extra keys (DeepSpeedConfigModel, extra="forbid"), so DeepSpeed stops
    with "Extra inputs are not permitted" once the engine is built. A value of "auto" is dropped before the check.
    """
    for block, known in BLOCKS.items():
        part = deepspeed.part(block)
        for key in part:
            if key in known or key in REMOVED_ZERO or part.get(key) == "auto":
                continue
            close, at_top = nearest(key, known), key in TOP
            where = f"move {key} to the top of the JSON" if at_top else f"spell it {close}" if close else "remove it"
            yield error(
                f"{block}.{key} is an unknown key",
                why=f"DeepSpeed refuses keys of {block} that it does not know (Extra inputs are not permitted).",
                fix=f"{where[0].upper()}{where[1:]}.",
                at=deepspeed.where(f"{block}.{key}"),
            )


@check({"deepspeed": ">=0.19.8"})
def deepspeed_removed_block(deepspeed: Settings) -> Iterator[Finding]:
    """Find blocks that DeepSpeed has removed and now refuses.

    0.19.8 raises DeepSpeedConfigError for each of them before anything else is read (_reject_removed_config_keys in
    deepspeed/runtime/config.py), also where the block says `"enabled": false`. Older releases still took them.
    """
    zero = deepspeed.part("zero_optimization")
    found = [(key, key, REMOVED[key]) for key in deepspeed if key in REMOVED]
    found += [(f"zero_optimization.{key}", key, REMOVED_ZERO[key]) for key in zero if key in REMOVED_ZERO]
    for path, key, remedy in found:
        yield error(
            f"{path} was removed from DeepSpeed",
            why=f"DeepSpeed 0.19.8 raises DeepSpeedConfigError for a JSON that still holds {key}, enabled or not.",
            fix=f"{remedy[0].upper()}{remedy[1:]}.",
            at=deepspeed.where(path),
        )


@check({"deepspeed": ">=0.10"})
def deepspeed_deprecated_key(setup: Setup, deepspeed: Settings) -> Iterator[Finding]:
    """Find keys of zero_optimization whose name is deprecated.

    DeepSpeed still translates them (the fields marked deprecated in deepspeed/runtime/zero/config.py), but transformers
    and accelerate look for the new names only: with `cpu_offload` they hand over a torch optimizer, and DeepSpeed
    raises ZeRORuntimeException; with the old spelling of gathering both names together are refused.
    """
    part = deepspeed.part("zero_optimization")
    for key, new in DEPRECATED_ZERO.items():
        if key not in part:
            continue
        fails = key.startswith("cpu_offload") and part.on(key) and door(setup) in ("trainer", "accelerate")
        fails = fails and key == "cpu_offload" and not deepspeed.said("optimizer")
        told = error if fails else warning
        yield told(
            f"zero_optimization.{key} is the old name",
            why="transformers and accelerate do not see it, so the torch optimizer is not exchanged for "
            "DeepSpeedCPUAdam and DeepSpeed raises ZeRORuntimeException."
            if fails
            else "DeepSpeed translates it with a deprecation warning; transformers and accelerate look for the new "
            "name only.",
            fix=f"Write {new} instead of {key}.",
            at=deepspeed.where(f"zero_optimization.{key}"),
        )


@check({"deepspeed": ">=0.10"})
def deepspeed_optimizer_max_grad_norm(deepspeed: Settings) -> Iterator[Finding]:
    """Find `max_grad_norm` among the parameters of the optimizer block.

    DeepSpeed's engine raises ValueError for it (_configure_basic_optimizer): clipping is said at the top of the file.
    """
    path = "optimizer.params.max_grad_norm"
    if deepspeed.said(path):
        yield error(
            "max_grad_norm stands in optimizer.params",
            why="DeepSpeed raises ValueError: it is no optimizer parameter.",
            fix='Remove it and write "gradient_clipping": "auto" at the top of the JSON.',
            at=deepspeed.where(path),
        )
