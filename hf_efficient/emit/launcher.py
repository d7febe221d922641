"""What `accelerate launch` has said to this process, taken over with its name or held against the plan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from hf_efficient.emit.process import before_plans
from hf_efficient.plan import Conflict, Plan

PRECISION = "ACCELERATE_MIXED_PRECISION"
LAUNCH = {"DEEPSPEED": ("DeepSpeed", "--use_deepspeed"), "FSDP": ("FSDP", "--use_fsdp --fsdp_version 2")}
"""Engine -> its name and the flags of `accelerate launch` that choose it."""
SHARDING = {
    "DEEPSPEED": {
        "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
        "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    },
    "FSDP": {
        "fsdp_version": "FSDP_VERSION",
        "fsdp_reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD",
        "fsdp_offload_params": "FSDP_OFFLOAD_PARAMS",
    },
}
"""Engine -> keys of the launch YAML about what is sharded, and the variables in which the launcher hands them on."""
DS_FIELDS = "ACCELERATE_CONFIG_DS_FIELDS"
NUMBERS = {
    "gradient_accumulation_steps": {
        "trainer": "gradient_accumulation_steps",
        "accelerator": "gradient_accumulation_steps",
    },
    "gradient_clipping": {"trainer": "max_grad_norm", "loop": "max_grad_norm"},
    "train_micro_batch_size_per_gpu": {"trainer": "per_device_train_batch_size", "dataloader": "batch_size"},
}
"""Number of DeepSpeed's engine -> target and key of a plan that say the same."""


def launched_processes() -> int:
    """Return how many processes the launcher started for this run (`WORLD_SIZE`), 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def cpu_asked_by_launcher() -> bool:
    """Say whether `accelerate launch --cpu` started this process."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in {"1", "true", "yes", "y", "on", "t"}


def cpu_author() -> Literal["launcher", "machine"]:
    """Say who decided that a run without an accelerator has none."""
    return "launcher" if cpu_asked_by_launcher() else "machine"


def launchers_file() -> tuple[str, dict[str, Any]]:
    """Return name and content of the DeepSpeed file that the launcher names; two empty ones where there is none.

    Raises ValueError for a file that cannot be read or says nothing of ZeRO.
    """
    name = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if launchers_engine() != "DEEPSPEED" or name == "none":
        return "", {}
    return name, read_configuration(name, f"The launcher's DeepSpeed file {name}")


def read_configuration(file: str, name: str) -> dict[str, Any]:
    """Return the content of a DeepSpeed file; `name` begins the sentence about one that cannot be used.

    Raises ValueError for a file that cannot be read or says nothing of ZeRO.
    """
    try:
        config: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        int(config["zero_optimization"].get("stage", 0))
    except OSError as error:
        reason = f"cannot be read ({(error.strerror or str(error)).lower()}): it is looked for from the working folder"
    except json.JSONDecodeError as error:
        reason = f"is no JSON ({error}): mend it"
    except (ValueError, LookupError, TypeError, AttributeError):
        reason = 'says nothing of ZeRO: write "zero_optimization": {"stage": 2} into it'
    else:
        return config
    raise ValueError(f"{name} {reason}, or name another.")


def take_launchers_words(plan: Plan, target: Literal["trainer", "accelerator"]) -> Plan:
    """Return `plan` with the launcher's precision and numbers of its engine, where the plan and you are silent.

    The stack would take them over without a word. Call it when your values are in the plan. Raises Conflict where the
    plan or you want others: the script would win, and the launcher's file would be wrong about the run, or the run
    would stop late; and for fp8 that the plan does not name.
    """
    plan = take_numbers(plan)
    asked, off = _asked_precision()
    wanted, author = _wanted_precision(plan, target, asked)
    if (wanted or asked) in off:
        raise Conflict(
            f"The launcher's DeepSpeed file says {wanted or asked}.enabled: false, {author or 'its YAML'} asks for "
            f'{wanted or asked}: write "auto" in the file, or keep one of the two.'
        )
    if asked not in ("bf16", "fp16", "fp8"):
        return plan
    if asked == "fp8" and not wanted:
        raise Conflict(
            "The launcher asks for fp8 and the plan does not: with accelerate's own defaults the layers in 8 bits "
            "would not learn. Add fp8 to the plan, or take it from the launcher."
        )
    if wanted not in ("", asked):
        raise Conflict(f"The launcher asks for {asked}, {author} for {wanted}: keep one of the two.")
    if target == "accelerator":
        return plan.assume(target, {"mixed_precision": asked}, by="launcher")
    return plan.assume(target, {asked: True} if asked != "fp8" else {}, by="launcher")


def _asked_precision() -> tuple[str, list[str]]:
    """Return the precision that the launcher's DeepSpeed file or its YAML asks for, and those that the file rules out.

    A literal true in the file decides in the engine, whatever Accelerator is told.
    """
    _, config = launchers_file()
    says = {precision: (config.get(precision) or {}).get("enabled") for precision in ("bf16", "fp16")}
    asked = (before_plans(PRECISION) or "no").lower()
    literal = next((precision for precision, value in says.items() if value is True), asked)
    if asked not in ("no", literal):
        raise Conflict(f"The launch YAML asks for {asked}, its DeepSpeed file for {literal}: keep one of the two.")
    return literal, [precision for precision, value in says.items() if value is False]


def take_numbers(plan: Plan) -> Plan:
    """Return `plan` with the numbers that the launcher fixes for DeepSpeed's engine. Raises Conflict for others."""
    for where, key, value in _numbers(plan):
        instead = "" if where.endswith("YAML") else ", or write auto in the file"
        for target, name in NUMBERS[key].items():
            given = plan[target].get(name, value)
            if given != value:
                raise Conflict(
                    f"{where} says {key}: {value}, and {name} is {given} (set by "
                    f"{plan.author(target, name)}): keep one of the two{instead}."
                )
            plan = plan.assume(target, {name: value}, by=plan.author("deepspeed", key) or "launcher")
    return plan


def _numbers(plan: Plan) -> Iterator[tuple[str, str, int | float]]:
    """Yield who fixes a number of the engine, its key and its value; "auto" fixes nothing."""
    clipping = os.environ.get("ACCELERATE_GRADIENT_CLIPPING", "")
    if launchers_engine() == "DEEPSPEED" and clipping not in ("", "auto", "none"):
        yield "The launcher's YAML", "gradient_clipping", float(clipping)
    name, config = launchers_file()
    for key in NUMBERS:
        value = (config or plan["deepspeed"]).get(key)
        if isinstance(value, int | float):
            yield f"The launcher's DeepSpeed file {name}" if name else "Your DeepSpeed configuration", key, value


def _wanted_precision(plan: Plan, target: Literal["trainer", "accelerator"], asked: str) -> tuple[str, str]:
    """Return the precision that plan or you want, and who of the two; empty strings where both are silent."""
    if target == "accelerator":
        return str(plan[target].get("mixed_precision") or ""), plan.author(target, "mixed_precision")
    if PRECISION in plan["env"]:
        return plan["env"][PRECISION], plan.author("env", PRECISION)
    for precision in ("bf16", "fp16"):
        if plan[target].get(precision):
            return precision, plan.author(target, precision)
    return ("no", plan.author(target, asked)) if plan[target].get(asked) is False else ("", "")


def agree_with_launcher(plan: Plan, target: Literal["trainer", "accelerator"]) -> Plan:
    """Return `plan` with the accumulation that the launcher names, and clear the way for the plan's own engine.

    accelerate lets the launcher's accumulation win, and refuses a DeepSpeed configuration beside ZeRO keys of the
    launch YAML even where both say the same. Raises Conflict where launcher and plan differ, and ValueError for a plan
    that needs a launcher and has none.
    """
    _require_the_plans_engine(plan)
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "")
    if steps.isdigit():
        plan = _take_launchers_steps(plan, target, int(steps))
    if plan.engine == launchers_engine() == "FSDP":
        _require_the_same_sharding(plan)
    if plan.engine == "DEEPSPEED" and os.environ.get(DS_FIELDS):
        _require_the_same_sharding(plan)
        os.environ[DS_FIELDS] = ""
    return plan


def launched() -> bool:
    """Say whether a launcher that knows about several processes started this one."""
    return "LOCAL_RANK" in os.environ


def launchers_engine() -> str:
    """Return the engine that `accelerate launch` chose for this process: `DEEPSPEED`, `FSDP` or `NO`."""
    # TrainingArguments(deepspeed=...) deletes ACCELERATE_USE_DEEPSPEED; this one stays.
    if DS_FIELDS in os.environ:
        return "DEEPSPEED"
    chosen = (e for e in ("DEEPSPEED", "FSDP") if os.environ.get(f"ACCELERATE_USE_{e}", "").lower() == "true")
    return next(chosen, "NO")


def _require_the_plans_engine(plan: Plan) -> None:
    if plan.engine == "NO":
        return
    if not launched():
        name, start = LAUNCH[plan.engine]
        raise ValueError(
            f"{name} needs a launcher, and this process has none: start it with `accelerate launch {start}`."
        )
    if plan.engine == "DEEPSPEED" and cpu_asked_by_launcher():
        raise ValueError(
            "ACCELERATE_USE_CPU (accelerate launch --cpu) drops DeepSpeed without a word: unset it, or start the "
            "script with plain data parallelism, recipes/launch/ddp.yaml."
        )
    if launchers_engine() not in ("NO", plan.engine):
        author = plan.author("launch", "distributed_type")
        raise Conflict(f"The launcher chose {launchers_engine()}, {author} takes {plan.engine}: keep one of the two.")


def _take_launchers_steps(plan: Plan, target: Literal["trainer", "accelerator"], steps: int) -> Plan:
    given = plan[target].get("gradient_accumulation_steps", steps)
    if given != steps:
        author = plan.author(target, "gradient_accumulation_steps")
        raise Conflict(f"The launcher asks for {steps} accumulation steps, {author} for {given}: keep one of the two.")
    return plan.assume(target, {"gradient_accumulation_steps": steps}, by="launcher")


def _require_the_same_sharding(plan: Plan) -> None:
    ours = {"offload_optimizer_device": "none", "offload_param_device": "none"}
    ours |= plan["launch"].get("deepspeed_config", {}) | plan["launch"].get("fsdp_config", {})
    for key, variable in SHARDING[plan.engine].items():
        mine = str(ours[key]).lower()
        theirs = os.environ.get(variable, mine).lower()
        if theirs != mine:
            author = plan.author("launch", "distributed_type")
            raise Conflict(f"The launch YAML says {key}: {theirs}, {author} says {mine}: keep one of the two.")
