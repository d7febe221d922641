"""What FSDP does in its own way: activation checkpointing, and the plugin that no second one may replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_efficient.plan import Conflict, Plan
from hf_efficient.trick import FunctionCall, MethodCall

Target = Literal["trainer", "accelerator", "launch"]

PLACE: dict[Target, str] = {
    "trainer": "fsdp_config.",
    "accelerator": "fsdp_plugin.",
    "launch": "fsdp_config.fsdp_",
}
"""Target -> where FSDP's own settings stand in it."""
SWITCH, CHOICE = "activation_checkpointing", "activation_checkpointing_kwargs"


def own_checkpointing(plan: Plan, target: Target) -> Plan:
    """Return `plan` with its activation checkpointing as FSDP's own, where the plan's engine is FSDP.

    The model's own would gather the weights once more in the backward pass (transformers' issue 30404). The plan's
    silence is written out: the plugin would otherwise take what another plan's launch YAML says.

    Raises Conflict for a kind of checkpointing that FSDP does not have.
    """
    if plan.engine != "FSDP":
        return plan
    asked, by = plan["trainer"].get(SWITCH, False), plan.author("trainer", SWITCH) or "the plan's silence"
    offload = asked and _offload(plan["trainer"].get(CHOICE) or {}, by)
    own = {SWITCH: asked, f"{SWITCH}_offload": offload}
    if target == "trainer":
        plan = _unfold(plan.drop("trainer", [SWITCH, CHOICE]))
        # TrainingArguments hands offload on to nobody; the plugin asks the environment then.
        variable = {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": own.pop(f"{SWITCH}_offload")}
        plan = plan.assume("env", variable if asked else {}, by=by)
    return plan.assume(target, {PLACE[target] + key: value for key, value in own.items()}, by=by)


def preparations(plan: Plan) -> dict[str, MethodCall | FunctionCall]:
    """Return what a hand-written loop does to the model, under the names of the tricks."""
    return {
        trick.name: trick.prepare
        for trick in plan.tricks
        if trick.prepare is not None and not (plan.engine == "FSDP" and trick.family == "checkpointing")
    }


def refuse_second_plugin(plan: Plan, yours: Mapping[str, Any]) -> None:
    """Raise Conflict for an FSDP plugin of yours beside the plan's, which would lose the plan's checkpointing."""
    if plan.engine == "FSDP" and "fsdp_plugin" in yours:
        raise Conflict(
            f"{plan.author('launch', 'distributed_type')} makes the fsdp_plugin, and you pass another: "
            "leave one of the two out."
        )


def _offload(choice: Mapping[str, Any], by: str) -> bool:
    """Say whether the checkpoints go to host memory; raise Conflict for what FSDP cannot be told."""
    known: dict[str, tuple[bool, ...]] = {"use_reentrant": (False,), "offload": (False, True)}
    for key, value in choice.items():
        if value not in known.get(key, ()):
            raise Conflict(
                f"{by} asks for {key}={value!r}, and FSDP's own checkpointing treats every layer, in one way: "
                "leave it out, or take zero in place of fsdp."
            )
    return bool(choice.get("offload", False))


def _unfold(plan: Plan) -> Plan:
    """Return `plan` with an `fsdp_config` that you pass as single settings, so that more can stand beside them."""
    whole = [setting for setting in plan.settings if setting[:2] == ("trainer", "fsdp_config")]
    for setting in whole:
        if not isinstance(setting.value, Mapping):
            raise ValueError(
                "fsdp_config is a file here, and a plan cannot look into it: pass what it says, as a dict."
            )
        keys = {f"fsdp_config.{key.removeprefix('fsdp_')}": value for key, value in setting.value.items()}
        plan = plan.drop("trainer", ["fsdp_config"]).override("trainer", keys, by=setting.by)
    return plan
