"""What each knob ends up as, and which file won: the order in which the stack listens to its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hf_efficient.finding import NOWHERE, Place
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

DEFAULT_OPTIMIZER = "adamw_torch_fused"
"""TrainingArguments' own, since transformers 5 (its default is computed, so reading the source does not show it)."""
DEEPSPEED_CLIPS_AT = 1.0
"""Where DeepSpeed 0.19.8 clips if the file has no gradient_clipping: runtime/constants.py."""


class Knob(NamedTuple):
    """A value of the run, who said it, and where. UNKNOWN: a file sets it to what reading cannot know."""

    value: Any
    by: str
    place: Place = NOWHERE

    def row(self) -> dict[str, Any]:
        """Return the knob as data that JSON can hold; what is unknown is null and says so."""
        unknown = self.value is UNKNOWN
        value = None if unknown else self.value if isinstance(self.value, str | int | float | bool) else str(self.value)
        by = f"{self.by}, which reading cannot know" if unknown else self.by
        return {"value": value, "by": by, "file": str(self.place)}


def effective(setup: Setup) -> dict[str, Knob]:
    """Return every knob that the files let one know, in a fixed order."""
    found: dict[str, Knob] = {}
    for name, read in KNOBS.items():
        knob = read(setup, found)
        if knob is not None:
            found[name] = knob
    return found


def precision(setup: Setup) -> Knob | None:
    """Return bf16, fp16, fp8 or fp32: the script's flag, then environment or launcher, then DeepSpeed's file."""
    said = _flag(setup) or environment_precision(setup)
    if said is not None:
        return said
    zero = setup.zero or NOTHING
    for name in ("fp16", "bf16"):
        if zero.on(name):
            return Knob(name, f"{name}.enabled of the DeepSpeed file", zero.where(name))
    owner = setup.trainer if setup.trainer is not None else setup.accelerator
    if owner is None:
        return None
    unknown = not all(owner.knows(name) for name in ("bf16", "fp16", "mixed_precision"))
    return Knob(UNKNOWN if unknown else "fp32", "the script" if unknown else "default", owner.place)


def _flag(setup: Setup) -> Knob | None:
    """Return what the script itself asks for."""
    trainer, accelerator = setup.trainer or NOTHING, setup.accelerator or NOTHING
    for name in ("bf16", "fp16"):
        if trainer.on(name):
            return Knob(name, f"{name}=True", trainer.where(name))
    if setup.trainer is None and accelerator.text("mixed_precision"):
        value = accelerator.text("mixed_precision")
        return Knob(
            "fp32" if value == "no" else value, "Accelerator(mixed_precision)", accelerator.where("mixed_precision")
        )
    if setup.sft is not None and setup.sft.get("bf16") is None and not trainer.on("fp16"):
        return Knob("bf16", "SFTConfig's default", trainer.place)
    if any(trainer.said(name) and not trainer.knows(name) for name in ("bf16", "fp16")):
        return Knob(UNKNOWN, "the script", trainer.where("bf16"))
    return None


def environment_precision(setup: Setup) -> Knob | None:
    """Return the precision that the launcher hands over: the environment, then `mixed_precision` of the launch file."""
    env, launch = setup.env or NOTHING, setup.launch or NOTHING
    value = env.get("ACCELERATE_MIXED_PRECISION")
    # accelerate launch writes the variable itself, "no" among them, over what the shell exports
    if isinstance(value, str) and not launch.said("mixed_precision"):
        by = "ACCELERATE_MIXED_PRECISION"
        return Knob("fp32" if value == "no" else value, by, env.where("ACCELERATE_MIXED_PRECISION"))
    value = launch.text("mixed_precision")
    if value and value != "no":
        return Knob(value, "mixed_precision of accelerate launch", launch.where("mixed_precision"))
    return None


def _per_device(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    if setup.trainer is not None:
        return _said(setup.trainer, "per_device_train_batch_size", "TrainingArguments")
    if setup.dataloader is not None and setup.dataloader.said("batch_size"):
        return _said(setup.dataloader, "batch_size", "DataLoader")
    return None


def _accumulation(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    key = "gradient_accumulation_steps"
    if setup.trainer is not None:
        return _said(setup.trainer, key, "TrainingArguments")
    zero, accelerator, launch = setup.zero, setup.accelerator, setup.launch or NOTHING
    if zero is not None and zero.said(key) and zero.get(key) != "auto":
        return Knob(zero.number(key), f"{key} of DeepSpeed's configuration", zero.where(key))
    if zero is not None and setup.deepspeed is not None and not zero.said(key) and not zero.open:
        return Knob(1, f"no {key} in the DeepSpeed file", zero.place)
    if accelerator is not None and (accelerator.said(key) or accelerator.open):
        return Knob(accelerator.number(key), "Accelerator", accelerator.where(key))
    if launch.said(key):
        return Knob(launch.number(key), "accelerate launch", launch.where(key))
    return Knob(1, "default", accelerator.place) if accelerator is not None else None


def _processes(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    if not setup.processes:
        return None
    launch = setup.launch or NOTHING
    said = launch.number("num_processes") == setup.processes
    place = launch.where("num_processes") if said else NOWHERE
    return Knob(setup.processes, setup.launcher or "the setup", place)


def data_parallel(setup: Setup) -> Any:
    """Return how many GPUs nn.DataParallel would use: several visible ones and one plain process; else 1 or UNKNOWN."""
    if setup.trainer is None or (setup.processes or 1) > 1 or setup.launcher not in ("python", None):
        return 1
    gpus = visible_gpus(setup)
    return gpus if setup.launcher == "python" or gpus == 1 else UNKNOWN


def visible_gpus(setup: Setup) -> Any:
    """Return the GPUs that a process sees: CUDA_VISIBLE_DEVICES cuts the machine's; UNKNOWN where none is known."""
    visible = (setup.env or NOTHING).get("CUDA_VISIBLE_DEVICES")
    if isinstance(visible, int | str) and not isinstance(visible, bool):
        return len([part for part in str(visible).split(",") if part.strip()])
    if visible is UNKNOWN:
        return UNKNOWN
    return (setup.machine or NOTHING).number("gpus")


def _effective_batch(setup: Setup, found: Mapping[str, Knob]) -> Knob | None:
    per_device, steps = found.get("per_device_train_batch_size"), found.get("gradient_accumulation_steps")
    if per_device is None or not isinstance(per_device.value, int):
        return None
    accumulation = steps.value if steps is not None else 1
    ranks = setup.processes or data_parallel(setup)
    if setup.processes == 1:
        ranks = data_parallel(setup)
    if ranks is UNKNOWN or not isinstance(accumulation, int):
        return None
    product = per_device.value * accumulation * ranks
    return Knob(
        product, f"{per_device.value} per device x {accumulation} accumulated x {ranks} devices", per_device.place
    )


def _clipping(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    zero, key = setup.zero, "gradient_clipping"
    if zero is not None and isinstance(zero.get(key), int | float):
        return Knob(zero.get(key), f"{key} of DeepSpeed's configuration", zero.where(key))
    if setup.deepspeed is not None and zero is not None and not zero.said(key) and not zero.open:
        return Knob(DEEPSPEED_CLIPS_AT, f"DeepSpeed's own default: the file has no {key}", zero.place)
    return _said(setup.trainer, "max_grad_norm", "TrainingArguments") if setup.trainer is not None else None


def _optimizer(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    zero, optimizer, trainer = setup.zero or NOTHING, setup.optimizer or NOTHING, setup.trainer
    if zero.said("optimizer"):
        return Knob(zero.get("optimizer"), "the optimizer block of the DeepSpeed file", zero.where("optimizer"))
    if optimizer.text("class"):
        return Knob(optimizer.text("class"), "the script's own optimizer", optimizer.place)
    if trainer is None:
        return None
    if trainer.said("optim"):
        return Knob(trainer.get("optim"), "TrainingArguments(optim)", trainer.where("optim"))
    return Knob(
        UNKNOWN if trainer.open else DEFAULT_OPTIMIZER, "the script" if trainer.open else "default", trainer.place
    )


def _engine(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    if setup.zero is not None:
        stage = setup.zero.get("stage")
        return Knob(f"DeepSpeed ZeRO-{stage}" if isinstance(stage, int) else "DeepSpeed", "DeepSpeed", setup.zero.place)
    if setup.fsdp is not None:
        return Knob(f"FSDP{setup.fsdp.get('version') or ''}", "FSDP", setup.fsdp.place)
    if (setup.processes or 0) > 1:
        return Knob("DDP", f"{setup.processes} processes")
    ranks = data_parallel(setup)
    if isinstance(ranks, int) and ranks > 1:
        return Knob("DataParallel", f"one process that sees {ranks} GPUs")
    return Knob("one process", setup.launcher or "the setup") if setup.processes == 1 else None


def _checkpointing(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    """Return the new name's value, and the old name's only where the new one is not set, as transformers does."""
    if setup.trainer is None:
        return None
    new, old = (
        _said(setup.trainer, f"{kind}_checkpointing", "TrainingArguments") for kind in ("activation", "gradient")
    )
    return new if new is not None else old


def _field(key: str) -> Callable[[Setup, Mapping[str, Knob]], Knob | None]:
    return lambda setup, _: _said(setup.trainer, key, "TrainingArguments") if setup.trainer is not None else None


def _of(subject: str, key: str, by: str) -> Callable[[Setup, Mapping[str, Knob]], Knob | None]:
    def read(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
        settings = getattr(setup, subject)
        return _said(settings, key, by) if settings is not None and settings.said(key) else None

    return read


def _said(settings: Settings, key: str, by: str) -> Knob | None:
    value = settings.get(key)
    if value is None:
        return None
    said = settings.said(key) or settings.open
    return Knob(value, by if said else "default", settings.where(key) if said else NOWHERE)


KNOBS: Mapping[str, Callable[[Setup, Mapping[str, Knob]], Knob | None]] = {
    "engine": _engine,
    "processes": _processes,
    "precision": lambda setup, _: precision(setup),
    "load_dtype": _of("model", "load_dtype", "from_pretrained"),
    "load_in_4bit": _of("model", "load_in_4bit", "BitsAndBytesConfig"),
    "load_in_8bit": _of("model", "load_in_8bit", "BitsAndBytesConfig"),
    "attn_implementation": _of("model", "attn_implementation", "from_pretrained"),
    "per_device_train_batch_size": _per_device,
    "gradient_accumulation_steps": _accumulation,
    "effective_batch": _effective_batch,
    "max_grad_norm": _clipping,
    "optimizer": _optimizer,
    "learning_rate": _field("learning_rate"),
    "activation_checkpointing": _checkpointing,
    "torch_compile": _field("torch_compile"),
    "tf32": _field("tf32"),
    "dataloader_num_workers": _field("dataloader_num_workers"),
    "offload_optimizer": _of("zero", "offload_optimizer", "DeepSpeed"),
    "offload_param": _of("zero", "offload_param", "DeepSpeed"),
}
