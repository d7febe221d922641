"""Names that the installed releases no longer take, or take with a warning: fields, keywords, values of `optim`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from hf_efficient.checks.check import check, version
from hf_efficient.finding import Finding, Place, error, info, warning
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.renames import ACCELERATOR, FIELDS, LOADING, OPTIMIZERS, SFT, TRAINERS, TRL_MODEL, Rename


@check(seen="ran on CPU")
def renamed_argument(
    trainer: Settings, sft: Settings = NOTHING, script: Script | None = None, machine: Settings = NOTHING
) -> Iterator[Finding]:
    """Find arguments of TrainingArguments or SFTConfig under names that the release does not take any more.

    transformers 5 dropped some thirty fields of 4.57 at once, 5.2 dropped group_by_length, 5.15 warmup_ratio and
    logging_dir; TRL renamed max_seq_length. A dataclass refuses an unknown keyword, so the script stops where the
    arguments are made; what TRL's parser reads from a YAML file or a command line may also be old names of its
    ModelConfig, torch_dtype and use_flash_attention_2. Each field was compared over the releases' training_args.py and
    sft_config.py. Fields that a class of the script's own brings back are left alone, and so is a release that still
    takes the name.
    """
    table = FIELDS | SFT | TRL_MODEL if sft and not _patched(script) else FIELDS
    own = _own_fields(script)
    for name in trainer:
        rename = table.get(name)
        if rename is None or rename.works or name in own or not _gone(rename, machine):
            continue
        yield error(
            f"{name}={_shown(trainer.get(name))} is no argument any more",
            why=f"{rename.since} dropped {name}: making the arguments raises TypeError (a parser of a file or a "
            "command line: ValueError), before anything is trained.",
            fix=remedy(rename, trainer.get(name)),
            at=trainer.where(name),
        )


@check({"transformers": ">=5.23"}, seen="ran on CPU")
def deprecated_argument(trainer: Settings) -> Iterator[Finding]:
    """Find arguments under old names that are still taken, and say the new ones.

    gradient_checkpointing and its kwargs are aliases of activation_checkpointing: they are read only while the new name
    is unset, with a FutureWarning (training_args.py, __post_init__). Where both are given, the old one is ignored in
    silence.
    """
    for name in trainer:
        rename = FIELDS.get(name)
        if rename is None or not rename.works or trainer.off(name):
            continue
        both = trainer.said(rename.new) and trainer.get(rename.new) is not None
        ignored = f" It is ignored here, because {rename.new} is set too." if both else ""
        yield info(
            f"{name} is the old name of {rename.new}",
            why=f"It still works, with a FutureWarning, and will end with {rename.since}.{ignored}",
            fix=remedy(rename, trainer.get(name)),
            at=trainer.where(name),
        )


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def renamed_optimizer(trainer: Settings, machine: Settings = NOTHING) -> Iterator[Finding]:
    """Find values of `optim` that the release does not know any more.

    OptimizerNames of training_args.py lost adamw_hf (transformers' own AdamW) and adamw_apex_fused; the arguments raise
    ValueError for them.
    """
    rename = OPTIMIZERS.get(trainer.text("optim"))
    if rename is not None and _gone(rename, machine):
        yield error(
            f"optim={rename.old!r} is no optimizer any more",
            why=f"{rename.since} dropped it: making the arguments raises ValueError.",
            fix=f"Write optim={rename.new!r} ({rename.value}).",
            at=trainer.where("optim"),
        )


TAKERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "RewardTrainer", "GRPOTrainer", "KTOTrainer")


@check({"transformers": ">=5.0", "trl": ">=0.20"}, seen="ran on CPU")
def renamed_trainer_keyword(script: Script) -> Iterator[Finding]:
    """Find keywords of Trainer and of TRL's trainers that became others, or moved into the arguments.

    `tokenizer` is `processing_class`; what SFTTrainer took beside its arguments (max_seq_length, packing,
    dataset_text_field and more) are fields of SFTConfig. The constructors refuse the old keywords with TypeError. A
    trainer class of the script's own may take what it likes, and so do TRL's trainers where unsloth has patched them.
    """
    for call in script.named(*TAKERS) if not _patched(script) else ():
        if call.method in script.classes or call.name.split(".")[0] not in ("transformers", "trl"):
            continue
        for name in call.keywords:
            rename = TRAINERS.get(name)
            if rename is not None and (name == "tokenizer" or call.method == "SFTTrainer"):
                yield _refused(call, rename, _in_config(rename) if rename.value else "")


@check(seen="ran on CPU")
def renamed_loading_keyword(script: Script, machine: Settings = NOTHING) -> Iterator[Finding]:
    """Find keywords of from_pretrained that became others.

    load_in_4bit and load_in_8bit are fields of BitsAndBytesConfig, use_flash_attention_2 is a value of
    attn_implementation; the model's constructor refuses the old keywords with TypeError. torch_dtype is taken as dtype,
    and where both are given dtype wins. A tokenizer, a processor and a configuration take use_auth_token and do nothing
    with it, so that a token given there is not sent. Other packages' from_pretrained may take these names.
    """
    for call in script.named("from_pretrained"):
        if not _loads_a_model(call):
            yield from _token_not_sent(call)
            continue
        for name in call.keywords:
            rename = LOADING.get(name)
            if rename is None:
                continue
            if rename.works:
                yield from _old_dtype(call, rename, machine)
            elif _gone(rename, machine):
                yield _refused(call, rename, _loading(rename, call.keywords[name]))


@check({"accelerate": ">=1.0"}, seen="ran on CPU")
def renamed_accelerator_keyword(accelerator: Settings) -> Iterator[Finding]:
    """Find keywords of Accelerator(...) that moved into DataLoaderConfiguration or are gone, and one that does nothing.

    accelerate 1.0 took dispatch_batches, even_batches and use_seedable_sampler out of the signature (TypeError).
    `split_batches` is still in it, but nothing reads it (accelerate 1.15, accelerator.py): the batches stay whole.
    """
    for name in accelerator:
        rename = ACCELERATOR.get(name)
        if rename is not None:
            value = accelerator.get(name)
            shown = _shown(value)
            new = rename.new.replace("...", shown) if "(" in rename.new else f"{rename.new}={shown}"
            new = 'mixed_precision="fp16"' if name == "fp16" else new
            yield error(
                f"Accelerator({name}={shown}) is no keyword any more",
                why=f"{rename.since} dropped it: Accelerator raises TypeError.",
                fix=f"Write Accelerator({new}).",
                at=accelerator.where(name),
            )
    if accelerator.on("split_batches"):
        yield error(
            "Accelerator(split_batches=True) does nothing",
            why="accelerate takes the keyword and never reads it: each process gets a whole batch of batch_size rows.",
            fix="Write Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)).",
            at=accelerator.where("split_batches"),
        )


def remedy(rename: Rename, value: Any) -> str:
    """Return what to write instead of an old name with that value."""
    note = f" ({rename.value})" if rename.value else ""
    if not rename.new:
        return f"Leave {rename.old} out; it has no successor{note}."
    instead = rename.instead(value) if value is not UNKNOWN else (rename.new, UNKNOWN)
    if instead is None:
        return f"Leave {rename.old} out; what it turned on is {rename.new} now{note}."
    return f"Write {instead[0]}={_shown(instead[1])} in place of {rename.old}{note}."


def _gone(rename: Rename, machine: Settings) -> bool:
    """Has the release that is used dropped the name? A package that nothing says the version of is a new one."""
    package, _, release = rename.since.partition(" ")
    used = version(package, machine)
    return used is None or used >= Version(release)


def _shown(value: Any) -> str:
    return "..." if value is UNKNOWN else f"{value!r:.80}"


def _own_fields(script: Script | None) -> set[str]:
    """Return the names that classes of the script annotate: a subclass of the arguments may bring one back."""
    classes = script.classes.values() if script is not None else ()
    names = (getattr(getattr(stmt, "target", None), "id", "") for node in classes for stmt in node.body)
    return {name for name in names if name}


def _refused(call: Call, rename: Rename, fix: str) -> Finding:
    name = rename.old
    return error(
        f"{call.method}({name}=...) is no keyword any more",
        why=f"{rename.since} and later refuse it with TypeError (unexpected keyword argument).",
        fix=fix or remedy(rename, call.keywords[name]),
        at=_place(call, name),
    )


def _in_config(rename: Rename) -> str:
    if not rename.new:
        return f"Leave {rename.old} out; SFTConfig has no successor for it."
    return f"Set SFTConfig({rename.new}=...) in place of {rename.old} and hand it over as args=."


def _loading(rename: Rename, value: Any) -> str:
    replies: Mapping[str, str] = {
        "load_in_4bit": "Write quantization_config=BitsAndBytesConfig(load_in_4bit=True).",
        "load_in_8bit": "Write quantization_config=BitsAndBytesConfig(load_in_8bit=True).",
        "use_flash_attention_2": 'Write attn_implementation="flash_attention_2".',
    }
    return f"Leave {rename.old} out." if value is False else replies.get(rename.old, "")


def _old_dtype(call: Call, rename: Rename, machine: Settings) -> Iterator[Finding]:
    used = version("transformers", machine)
    if used is not None and used < Version(rename.known):
        return
    both = " dtype is given too and wins." if rename.new in call.keywords else ""
    yield info(
        f"{rename.old} is the old name of {rename.new}",
        why=f"from_pretrained still takes it.{both}",
        fix=f"Write {rename.new}=... in place of {rename.old}.",
        at=_place(call, rename.old),
    )


def _loads_a_model(call: Call) -> bool:
    owner = call.receiver.rpartition(".")[2]
    ours = call.name.startswith("transformers.")
    return ours and ("Model" in owner or "For" in owner) and not owner.endswith(("Config", "Processor", "Tokenizer"))


def _token_not_sent(call: Call) -> Iterator[Finding]:
    name = "use_auth_token"
    if name in call.keywords and call.name.startswith("transformers.") and call.keywords[name] not in (None, False):
        made = info if call.keywords[name] is True else warning  # True means the login, which is used anyway
        yield made(
            f"{call.receiver.rpartition('.')[2]}.from_pretrained({name}=...) is no keyword any more",
            why=f"transformers 5 ignores {name} here without a word: a token that it names is not sent.",
            fix=f"Write token=... in place of {name}.",
            at=_place(call, name),
        )


def _patched(script: Script | None) -> bool:
    """Does the script import unsloth, whose trainers and arguments take the old names again?"""
    return script is not None and any(name.partition(".")[0] == "unsloth" for name in script.imports.values())


def _place(call: Call, name: str) -> Place:
    return call.settings().where(name)
