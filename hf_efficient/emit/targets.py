"""What `emit` can write, each target as text, and which preset can fill a target that a plan cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_efficient.effective_batch import at_processes
from hf_efficient.emit.deepspeed import deepspeed_json
from hf_efficient.emit.engine_rules import fit_every_door
from hf_efficient.emit.fields import ArgsClass, training_arguments_json
from hf_efficient.emit.launch import launch_yaml
from hf_efficient.emit.python import Door, python_snippet
from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan
from hf_efficient.plan import Plan
from hf_efficient.presets import PRESETS
from hf_efficient.wording import listed, unknown


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a target is to be written: for which class or door, and on how many processes (None: not known yet)."""

    args_class: ArgsClass = "trainer"
    door: Door = "trainer"
    processes: int | None = None
    file: str = "launch.yaml"


def emit(plan: Plan, target: str, options: Options = Options()) -> str:
    """Return the text of `target` for `plan`: a file's content.

    Raises ValueError for a target that there is not, one that the plan cannot fill, and an effective batch whose
    accumulation is not known before the number of processes is.
    """
    if target not in EMITTERS:
        raise unknown("target", target, EMITTERS)
    plan = fit_every_door(plan)
    if options.processes is not None:
        plan = at_processes(plan, options.processes)
        plan = at_processes(plan, options.processes, "loop") if target == "python" else plan
    elif plan["loop"].get("effective_batch") and target in NAMES_ACCUMULATION:
        raise ValueError(
            f"{plan.author('loop', 'effective_batch')} leaves the accumulation open until the processes are known, "
            f"and {target} has to name it: add --processes N."
        )
    if not can_emit(plan, target):
        able = listed([name for name in PRESETS if can_emit(make_plan(name), target)], "or")
        raise ValueError(
            f"This plan shards nothing with DeepSpeed, so there is no {target} file to write: take {able}."
        )
    return EMITTERS[target](plan, options)


def not_in_file(plan: Plan, target: str, machine: Machine, options: Options = Options()) -> list[str]:
    """Return a sentence for each thing that a script needs and that the file of `target` cannot or does not hold."""
    if target != "training-args":
        return []
    targets = ("peft", "env") if options.args_class == "sft" else ("model", "peft", "collator", "env")
    cpu = not machine.accelerator and plan["trainer"].get("bf16") and not plan["trainer"].get("use_cpu")
    found = {name: ", ".join(f"{key}={value!r}" for key, value in plan[name].items()) for name in targets if plan[name]}
    sentences = [f"{name}: {settings}; {ELSEWHERE[name]}." for name, settings in found.items()]
    return (
        [*sentences, "use_cpu=true, which bf16 needs on a machine without a GPU, such as this."] if cpu else sentences
    )


ELSEWHERE = {
    "model": "pass it to from_pretrained (model_keywords(plan) in Python)",
    "peft": "make a LoraConfig of it (add_adapter(plan, model) in Python)",
    "collator": "it is for the data (pack and make_collator in Python)",
    "env": "set it before the run",
}
"""Target -> where its settings go when a file of arguments cannot hold them."""


def can_emit(plan: Plan, target: str) -> bool:
    """Say whether `plan` has something to write for `target`: any plan has, but for the DeepSpeed JSON."""
    return target != "deepspeed" or plan.engine == "DEEPSPEED"


EMITTERS: dict[str, Callable[[Plan, Options], str]] = {
    "training-args": lambda plan, options: training_arguments_json(plan, options.args_class),
    "accelerate": lambda plan, options: launch_yaml(plan, options.processes or 1, file=options.file),
    "deepspeed": lambda plan, options: deepspeed_json(plan),
    "python": lambda plan, options: python_snippet(plan, options.door),
}
"""Every target under its name on the command line."""

NAMES_ACCUMULATION = ("training-args", "python")
"""The targets that write the accumulation steps out; the others leave them to the script."""
