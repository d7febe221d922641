"""FSDP: keys of another version, words that it does not know, and what it does not go with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error, info, warning
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import listed, nearest

SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
WORDS = {
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "sharding_strategy": SHARDING,
}
FIRST_ONLY = {
    "sharding_strategy": "reshard_after_forward: true (FULL_SHARD) or false (SHARD_GRAD_OP)",
    "use_orig_params": "nothing: FSDP2 always keeps the original parameters",
    "backward_prefetch": "nothing: FSDP2 prefetches by itself",
    "forward_prefetch": "nothing: FSDP2 prefetches by itself",
    "sync_module_states": "nothing: FSDP2 broadcasts what cpu_ram_efficient_loading left out",
    "limit_all_gathers": "nothing: FSDP2 always limits them",
}
"""Keys that FSDP2 does not read, and what to write there instead."""
TRAINER_KEYS = (
    "version", "min_num_params", "transformer_layer_cls_to_wrap", "xla", "xla_fsdp_v2", "xla_fsdp_settings",
    "xla_fsdp_grad_ckpt", "cpu_offload", "auto_wrap_policy", "cpu_ram_efficient_loading", "state_dict_type",
    "activation_checkpointing", "reshard_after_forward", *FIRST_ONLY,
)  # fmt: skip
"""What TrainingArguments read of fsdp_config (_process_fsdp_args)."""
TRUE, FALSE = (True, "true", "True", "1", "yes"), (False, "false", "False", "0", "no")


def _version(setup: Setup, fsdp: Settings) -> Any:
    """Return 1 or 2, or UNKNOWN: the launcher's default is 1, that of TrainingArguments(fsdp=True) is 2."""
    value = fsdp.get("version")
    if value is None:
        return 1 if _by_launcher(setup) else 2
    return int(value) if isinstance(value, int | str) and str(value) in ("1", "2") else UNKNOWN


def _by_launcher(setup: Setup) -> bool:
    return setup.launch is not None and setup.launch.text("distributed_type") == "FSDP"


@check({"accelerate": ">=1.7"})
def fsdp2_ignores_key(setup: Setup, fsdp: Settings) -> Iterator[Finding]:
    """Find keys of FSDP version 1 in a configuration of version 2.

    FullyShardedDataParallelPlugin drops backward_prefetch, use_orig_params and sync_module_states, and reads neither
    sharding_strategy nor forward_prefetch where fsdp_version is 2: at most a line in the log tells. A sharding strategy
    other than FULL_SHARD is thereby lost (warning); the others have become needless (info).
    """
    if _version(setup, fsdp) != 2:
        return
    for key, instead in FIRST_ONLY.items():
        value = fsdp.get(key)
        if not fsdp.said(key) or value is None or value is UNKNOWN:
            continue
        lost = key == "sharding_strategy" and str(value).upper() not in ("FULL_SHARD", "1")
        told = warning if lost and not fsdp.said("reshard_after_forward") else info
        yield told(
            f"fsdp_{key}: {value} with fsdp_version 2",
            why=f"FSDP2 does not read {key}; "
            + ("the model is fully sharded instead, in silence." if lost else "it is ignored."),
            fix=f"Write {instead}; remove fsdp_{key}.",
            at=fsdp.where(key),
        )


@check({"accelerate": ">=1.7"}, seen="ran on CPU")
def fsdp_reshard_of_other_version(setup: Setup, fsdp: Settings) -> Iterator[Finding]:
    """Find a reshard_after_forward in the spelling of the other FSDP version.

    Version 2 wants true or false (a word such as FULL_SHARD raises ValueError). Version 1 wants a strategy, and where
    the launcher starts it reads fsdp_sharding_strategy instead, FULL_SHARD by default, so that another word is lost.
    """
    value, version = fsdp.get("reshard_after_forward"), _version(setup, fsdp)
    word = str(value).upper() if isinstance(value, str) else ""
    at = fsdp.where("reshard_after_forward")
    if version == 2 and word in SHARDING:
        right = "false" if word == "SHARD_GRAD_OP" else "true"
        yield error(
            f"fsdp_reshard_after_forward is {value} with fsdp_version 2",
            why="FSDP2 takes true or false there and raises ValueError.",
            fix=f"Write fsdp_reshard_after_forward: {right}"
            + (" (HYBRID_SHARD needs a device mesh)." if "HYBRID" in word else "."),
            at=at,
        )
        return
    lost = word in SHARDING[1:] or value is False
    if version == 1 and lost and _by_launcher(setup) and not fsdp.said("sharding_strategy"):
        yield warning(
            f"fsdp_reshard_after_forward is {value} with fsdp_version 1 and no fsdp_sharding_strategy",
            why="accelerate launch sets fsdp_sharding_strategy to FULL_SHARD, and that wins: all is sharded.",
            fix=f"Write fsdp_sharding_strategy: {word or 'SHARD_GRAD_OP'}.",
            at=at,
        )


@check({"accelerate": ">=1.0"})
def fsdp_unknown_word(fsdp: Settings) -> Iterator[Finding]:
    """Find words that FSDP's plugin does not know.

    Wrapping, state dict type, prefetching and sharding are fixed lists; any other word raises ValueError or KeyError.
    """
    for key, words in WORDS.items():
        value = fsdp.get(key)
        if isinstance(value, str) and value.upper() not in words and not value.isdigit() and value:
            yield error(
                f"fsdp_{key} is {value!r}",
                why=f"accelerate takes {listed(words, 'or')} there and raises on anything else.",
                fix=f"Write fsdp_{key}: {nearest(value, words) or words[0]}.",
                at=fsdp.where(key),
            )


@check({"accelerate": ">=1.0"})
def fsdp_version_unknown(fsdp: Settings) -> Iterator[Finding]:
    """Find an fsdp_version that is neither 1 nor 2.

    accelerate knows these two, as whole numbers.
    """
    value = fsdp.get("version")
    if value is not None and value is not UNKNOWN and str(value) not in ("1", "2"):
        yield error(
            f"fsdp_version is {value!r}",
            why="There are FSDP 1 and 2; accelerate makes an int of it and knows no other.",
            fix="Write fsdp_version: 2.",
            at=fsdp.where("version"),
        )


@check({"accelerate": ">=1.0"})
def fsdp_local_state_dict(setup: Setup, fsdp: Settings) -> Iterator[Finding]:
    """Find LOCAL_STATE_DICT with FSDP2, which refuses it.

    FSDP2 saves full or sharded state dictionaries; accelerate raises ValueError for the local one.
    """
    kind = fsdp.text("state_dict_type").upper()
    if kind == "LOCAL_STATE_DICT" and _version(setup, fsdp) == 2:
        yield error(
            "fsdp_state_dict_type LOCAL_STATE_DICT with fsdp_version 2",
            why="FSDP2 raises ValueError: it has no such state dict.",
            fix="Write SHARDED_STATE_DICT (resuming) or FULL_STATE_DICT (one weight file).",
            at=fsdp.where("state_dict_type"),
        )


@check({"accelerate": ">=1.0"})
def fsdp_efficient_loading_without_sync(setup: Setup, fsdp: Settings) -> Iterator[Finding]:
    """Find cpu_ram_efficient_loading with sync_module_states off.

    Only rank 0 loads the weights then, and the others would keep what they were initialised with: accelerate launch
    raises ValueError. Left out, both are on.
    """
    sync, loading = fsdp.get("sync_module_states"), fsdp.get("cpu_ram_efficient_loading")
    by_default = loading is None and _by_launcher(setup)
    if sync in FALSE and sync is not None and (loading in TRUE or by_default):
        if not _by_launcher(setup) and _version(setup, fsdp) == 2:
            return
        yield error(
            "fsdp_sync_module_states is false with fsdp_cpu_ram_efficient_loading" + (" (its default)" * by_default),
            why="Only rank 0 loads the weights; without the broadcast accelerate raises ValueError.",
            fix="Write fsdp_sync_module_states: true, or fsdp_cpu_ram_efficient_loading: false.",
            at=fsdp.where("sync_module_states"),
        )


@check({"transformers": ">=5.0"})
def fsdp_config_key_not_read(trainer: Settings) -> Iterator[Finding]:
    """Find keys of TrainingArguments(fsdp_config=...) that transformers does not read.

    _process_fsdp_args takes a fixed list and ignores the rest without a word: offloading is called cpu_offload there,
    not offload_params as in the accelerate YAML, and the strategy reshard_after_forward.
    """
    renamed = {"offload_params": "cpu_offload", "sharding_strategy": "reshard_after_forward"}
    part = trainer.part("fsdp_config")
    for key in part if trainer.on("fsdp") else ():
        short = key.removeprefix("fsdp_")
        if short in TRAINER_KEYS and short != "sharding_strategy":
            continue
        close = renamed.get(short) or nearest(short, TRAINER_KEYS)
        yield warning(
            f"fsdp_config has {key!r}",
            why="TrainingArguments do not read that key: it is ignored in silence.",
            fix=f"Write {close}." if close else "Remove it.",
            at=trainer.where(f"fsdp_config.{key}"),
        )


@check({"transformers": ">=5.0"})
def fsdp_as_words(trainer: Settings) -> Iterator[Finding]:
    """Find `fsdp` as a string of options, and options that there are not.

    The string is deprecated: transformers turns it into fsdp=True and keys of fsdp_config
    (_apply_legacy_fsdp_to_config). hybrid_shard and no_shard exist in version 1 only, and raise with version 2,
    which is the default.
    """
    value = trainer.get("fsdp")
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    words = [str(word) for word in words]
    if not words or words[0].lower() in ("true", "false", "1", "0"):
        return
    first = str(trainer.get("fsdp_config.version", trainer.get("fsdp_config.fsdp_version", 2))) == "1"
    wrong = [w for w in words if w.upper() not in SHARDING and w not in ("offload", "auto_wrap")]
    old = [w for w in words if w.upper() in ("NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2") and not first]
    told = error if wrong or old else info
    names = {"shard_grad_op": '"reshard_after_forward": False', "offload": '"cpu_offload": True'}
    inner = ", ".join(names[word] for word in words if word in names)
    yield told(
        f"fsdp={value!r}",
        why=f"{(wrong or old)[0]} {'is no option' if wrong else 'is an option of FSDP1 only'}: TrainingArguments raise "
        "ValueError."
        if wrong or old
        else "The string is deprecated; transformers makes fsdp=True and keys of fsdp_config of it.",
        fix="Write fsdp=True" + (f", fsdp_config={{{inner}}}." if inner else "."),
        at=trainer.where("fsdp"),
    )


@check({"accelerate": ">=1.0"}, seen="ran on CPU")
def fsdp_on_cpu(setup: Setup, fsdp: Settings, trainer: Settings = NOTHING) -> Iterator[Finding]:
    """Find FSDP on the CPU: it silently becomes DDP.

    With use_cpu accelerate's state is MULTI_CPU, whatever FSDP asks for, so that nothing is sharded.
    """
    on_cpu = trainer.on("use_cpu") or (setup.launch is not None and setup.launch.on("use_cpu"))
    if on_cpu:
        yield warning(
            "FSDP with use_cpu",
            why="accelerate trains with DDP on the CPU then and shards nothing, without a word.",
            fix="Leave use_cpu out on a machine with GPUs, or leave FSDP out.",
            at=fsdp.place,
        )
