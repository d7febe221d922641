"""Whether a run may go on from a checkpoint: what of a run must be as it was, noted in `run.json` and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_efficient.emit.deepspeed import offload_devices
from hf_efficient.emit.launcher import LAUNCH

JUMPS = "the learning rate would jump"
KEPT = "its optimizer would go on with the old one"
SETTINGS = {
    "learning_rate": KEPT,
    "weight_decay": KEPT,
    "lr_scheduler_type": JUMPS,
    "warmup_steps": JUMPS,
    "seed": "it would go on at other data",
}
"""Field of TrainingArguments that may not change, and what would happen.

`max_steps` and `num_train_epochs` may: a schedule that ends with the run, such as linear, then jumps to where a run of
the new length would be.
"""


def settings_facts(options: Any) -> dict[str, Any]:
    """Return the fields of TrainingArguments that must stay as they were, as JSON has them."""
    values = {name: getattr(options, name) for name in SETTINGS}
    return {name: getattr(value, "value", value) for name, value in values.items()}


def engine_facts(deepspeed: Any, *, fsdp: bool) -> dict[str, Any]:
    """Return the engine of a run, from its DeepSpeedPlugin if it has one; data parallelism is none."""
    if deepspeed is None:
        return {"engine": "FSDP" if fsdp else "none"}
    zero = deepspeed.deepspeed_config.get("zero_optimization") or {}
    offload = [key.removeprefix("offload_") for key, device in offload_devices(zero).items() if device != "none"]
    return {"engine": "DEEPSPEED", "stage": int(zero.get("stage") or 0), "offload": offload}


def refuse_another_run(folder: Path, then: dict[str, Any], *, now: dict[str, Any]) -> None:
    """Raise ValueError when the checkpoint was written by a run with other processes, batch, engine or settings.

    Of `then`, the checkpoint's facts, only those that are there are compared. The stack would fail deep inside, or go
    on in silence with other data, other random numbers or a new optimizer.
    """
    anew = f" or begin anew from its weights with --model {folder}" if _loads(folder) else " or begin anew without it"
    processes, samples = (then.get(key) or now[key] for key in ("processes", "effective_batch"))
    if processes != now["processes"]:
        raise ValueError(
            f"{folder} is of {processes} process{'es' * (processes > 1)} and this run has {now['processes']}: its "
            f"optimizer state, data order and random numbers are divided among {processes}. Start it with "
            f"--num_processes {processes},{anew}."
        )
    if samples != now["effective_batch"]:
        raise ValueError(
            f"{folder} is of a run with {samples} samples per update and this one has {now['effective_batch']}: it "
            f"would go on at other data. Take a batch and an accumulation that make {samples},{anew}."
        )
    if any(then[key] != now.get(key) for key in ("engine", "stage", "offload") if key in then):
        raise ValueError(
            f"{folder} is of a run {_engine(then)} and this one is {_engine(now)}: its optimizer state is in another "
            f"form. Start it {_engine(then)},{anew}."
        )
    for name, reason in SETTINGS.items():
        if name in then and then[name] != now[name]:
            raise ValueError(
                f"{folder} is of a run with --{name} {then[name]} and this one has {now[name]}: {reason}. "
                f"Give --{name} {then[name]},{anew}."
            )


def refuse_finished(folder: Path, options: Any, *, updates: int, epochs: float) -> None:
    """Raise ValueError when no update is left after those of the checkpoint; Trainer may make one more, or none."""
    by_steps = options.max_steps > 0
    if updates < options.max_steps if by_steps else epochs < options.num_train_epochs:
        return
    name, unit = ("max_steps", "updates") if by_steps else ("num_train_epochs", "epochs")
    raise ValueError(
        f"{folder} has made the {getattr(options, name):g} {unit} of --{name}, and none is left: "
        f"raise --{name}, or take the weights of the run that ended."
    )


def _engine(facts: dict[str, Any]) -> str:
    if facts["engine"] == "none":
        return "without an engine"
    stage = f" stage {facts['stage']}" if "stage" in facts else ""
    offload = f" with {' and '.join(facts['offload'])} offload" if facts.get("offload") else ""
    return f"under {LAUNCH[facts['engine']][0]}{stage}{offload}"


def _loads(folder: Path) -> bool:
    """Say whether from_pretrained finds whole weights in a checkpoint."""
    return (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
