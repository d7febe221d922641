"""A setup: everything that the files of one run say, subject by subject, as the checks take it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import Settings

SUBJECTS = (
    "trainer", "sft", "accelerator", "launch", "deepspeed", "env", "model", "peft", "data", "dataloader",
    "optimizer", "scheduler", "eval", "machine",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is known of one run; a subject that no file speaks of is None."""

    trainer: Settings | None = None
    """Fields of TrainingArguments or of a class made from it, SFTConfig among them; defaults are the stack's."""
    sft: Settings | None = None
    """The same fields where the class is SFTConfig, with SFTConfig's own; else None."""
    accelerator: Settings | None = None
    """Keywords of Accelerator(...)."""
    launch: Settings | None = None
    """Keys of the accelerate YAML, with what the command line of `accelerate launch` says over them."""
    deepspeed: Settings | None = None
    """The DeepSpeed JSON, wherever it was named."""
    env: Settings | None = None
    """Environment variables."""
    model: Settings | None = None
    """class, name, model_type, checkpoint_dtype, load_dtype, load_in_4bit, load_in_8bit, vocab_size, hidden_size,
    params, training, pretrained_model, and any other keyword of from_pretrained; `config` is the whole config.json."""
    peft: Settings | None = None
    """Fields of LoraConfig and `autocast_adapter_dtype` of get_peft_model."""
    data: Settings | None = None
    """kind (map, iterable), rows, padding (longest, max_length), pad_to_multiple_of, sharded_by_worker, num_shards,
    batched, batch_size, keys, streaming, packing."""
    dataloader: Settings | None = None
    """Keywords of a hand-written torch DataLoader."""
    optimizer: Settings | None = None
    """class and keywords of an optimizer that the script makes."""
    scheduler: Settings | None = None
    """class, num_warmup_steps, num_training_steps, prepared."""
    eval: Settings | None = None
    """rows, seq_len, compute_metrics, preprocess_logits_for_metrics, logits_dtype."""
    machine: Settings | None = None
    """gpu, capability, memory_gib, gpus, packages (name to version), accelerator."""
    zero: Settings | None = None
    """DeepSpeed's engine in one spelling: stage, offload_optimizer and offload_param (devices), gather_16bit,
    gradient_accumulation_steps, gradient_clipping, fp16, bf16, optimizer, scheduler; None: no file names DeepSpeed."""
    fsdp: Settings | None = None
    """FSDP's configuration without the prefix `fsdp_`: version, reshard_after_forward, offload_params, ...; or None."""
    checkpoint: Settings | None = None
    """What a checkpoint folder holds: files, state (trainer_state.json), prefixes of the weights' keys, optimizer."""
    processes: int | None = None
    """Processes of the run, on all nodes together; None: unknown."""
    launcher: str | None = None
    """python, accelerate, torchrun, deepspeed; None: unknown."""
    script: Script | None = None
    """The training script, as its syntax tree says it."""
    files: tuple[str, ...] = ()
    """The files that this run was read from."""
    references: tuple[str, ...] = ()
    """Paths that the script names: DeepSpeed's JSON, a file of arguments, the model's folder or id."""
    effective: dict[str, Any] = field(default_factory=dict)
    """What each knob ends up as: knob to Knob (hf_efficient/checks/effective.py)."""

    def subjects(self) -> Iterator[tuple[str, Any]]:
        """Yield every subject that some file speaks of."""
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:
                yield one.name, value

    def having(self, **subjects: Any) -> Setup:
        """Return the setup with these subjects in place of its own."""
        return replace(self, **subjects)
