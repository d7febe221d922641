"""What each knob ends up as, and which file won: the order in which the stack listens to its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hf_efficient.checks.knob import UNSEEN, Knob
from hf_efficient.checks.precision import precision
from hf_efficient.checks.ranks import data_parallel, ranks
from hf_efficient.finding import NOWHERE
from hf_efficient.reading.engine import unseen
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

DEFAULT_OPTIMIZER = "adamw_torch_fused"
"""TrainingArguments' own, since transformers 5 (its default is computed, so reading the source does not show it)."""
DEEPSPEED_CLIPS_AT = 1.0
"""Where DeepSpeed 0.19.8 clips if the file has no gradient_clipping: runtime/constants.py."""


def effective(setup: Setup) -> dict[str, Knob]:
    """Return every knob that the files let one know, in a fixed order."""
    found: dict[str, Knob] = {}
    for name, read in KNOBS.items():
        knob = read(setup, found)
        if knob is not None:
            found[name] = knob
    return found


def _per_device(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    if setup.trainer is not None:
        return _said(setup.trainer, "per_device_train_batch_size", "TrainingArguments")
    if setup.dataloader is not None and setup.dataloader.said("batch_size"):
        return _said(setup.dataloader, "batch_size", "DataLoader")
    return _in_deepspeed(setup, "train_micro_batch_size_per_gpu")


def _in_deepspeed(setup: Setup, path: str) -> Knob | None:
    """Return a number that DeepSpeed's file says."""
    value = setup.deepspeed.number(path) if setup.deepspeed is not None else UNKNOWN
    return None if value is UNKNOWN or setup.deepspeed is None else Knob(value, path, setup.deepspeed.where(path))


def _learning_rate(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    """Return the rate of the arguments, else of the script's own optimizer, else of DeepSpeed's optimizer block."""
    own = setup.optimizer
    if own is not None and own.text("class") and own.said("lr"):
        return _said(own, "lr", "the script's own optimizer")
    if setup.trainer is not None:
        return _said(setup.trainer, "learning_rate", "TrainingArguments")
    return _in_deepspeed(setup, "optimizer.params.lr")


def _accumulation(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    key = "gradient_accumulation_steps"
    if setup.trainer is not None:
        return _said(setup.trainer, key, "TrainingArguments")
    zero, accelerator, launch = setup.zero, setup.accelerator, setup.launch or NOTHING
    if zero is not None and zero.said(key) and zero.text(key) != "auto":
        return Knob(zero.number(key), f"{key} of DeepSpeed's configuration", zero.where(key))
    if zero is not None and setup.deepspeed is not None and not zero.said(key) and not zero.open:
        return Knob(1, f"no {key} in the DeepSpeed file", zero.place)
    if accelerator is not None and (accelerator.said(key) or accelerator.open):
        return Knob(accelerator.number(key), "Accelerator", accelerator.where(key))
    if launch.said(key):
        return Knob(launch.number(key), "accelerate launch", launch.where(key))
    if unseen(setup):
        return Knob(UNKNOWN, UNSEEN)
    return Knob(1, "default", accelerator.place) if accelerator is not None else None


def _processes(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    if not setup.processes:
        return None
    launch = setup.launch or NOTHING
    said = launch.number("num_processes") == setup.processes
    place = launch.where("num_processes") if said else NOWHERE
    return Knob(setup.processes, setup.launcher or "the setup", place)


def _effective_batch(setup: Setup, found: Mapping[str, Knob]) -> Knob | None:
    per_device, steps = found.get("per_device_train_batch_size"), found.get("gradient_accumulation_steps")
    if per_device is None or not isinstance(per_device.value, int):
        return None
    accumulation = steps.value if steps is not None else 1
    devices = ranks(setup)
    count = f"{devices} device{'s' if devices > 1 else ''}" if isinstance(devices, int) else "processes"
    times = accumulation if isinstance(accumulation, int) else "steps"
    whole = isinstance(devices, int) and isinstance(accumulation, int)
    product = per_device.value * accumulation * devices if whole else UNKNOWN
    return Knob(product, f"{per_device.value} per device x {times} accumulated x {count}", per_device.place)


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
    if unseen(setup):
        return Knob(UNKNOWN, UNSEEN)
    if setup.zero is not None:
        stage = setup.zero.get("stage")
        return Knob(f"DeepSpeed ZeRO-{stage}" if isinstance(stage, int) else "DeepSpeed", "DeepSpeed", setup.zero.place)
    if setup.fsdp is not None:
        return Knob(f"FSDP{setup.fsdp.get('version') or ''}", "FSDP", setup.fsdp.place)
    if (setup.processes or 0) > 1:
        return Knob("DDP", f"{setup.processes} processes")
    gpus = data_parallel(setup)
    if isinstance(gpus, int) and gpus > 1:
        return Knob("DataParallel", f"one process that sees {gpus} GPUs")
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


def _load_dtype(setup: Setup, _: Mapping[str, Knob]) -> Knob | None:
    model = setup.model
    if model is None or not model.said("load_dtype"):
        return None
    by = "from_pretrained" if "load_dtype" in model.places else "the checkpoint's own dtype"
    return Knob(model.get("load_dtype"), by, model.where("load_dtype"))


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
    "load_dtype": _load_dtype,
    "load_in_4bit": _of("model", "load_in_4bit", "the model's quantization"),
    "load_in_8bit": _of("model", "load_in_8bit", "the model's quantization"),
    "attn_implementation": _of("model", "attn_implementation", "from_pretrained"),
    "per_device_train_batch_size": _per_device,
    "gradient_accumulation_steps": _accumulation,
    "effective_batch": _effective_batch,
    "max_grad_norm": _clipping,
    "optimizer": _optimizer,
    "learning_rate": _learning_rate,
    "activation_checkpointing": _checkpointing,
    "torch_compile": _field("torch_compile"),
    "tf32": _field("tf32"),
    "dataloader_num_workers": _field("dataloader_num_workers"),
    "offload_optimizer": _of("zero", "offload_optimizer", "DeepSpeed"),
    "offload_param": _of("zero", "offload_param", "DeepSpeed"),
    "fsdp_reshard_after_forward": _of("fsdp", "reshard_after_forward", "FSDP"),
    "fsdp_sharding_strategy": _of("fsdp", "sharding_strategy", "FSDP"),
    "fsdp_activation_checkpointing": _of("fsdp", "activation_checkpointing", "FSDP"),
    "fsdp_offload_params": _of("fsdp", "offload_params", "FSDP"),
}
