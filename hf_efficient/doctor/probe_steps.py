"""What a run does to its model between loading and training, in its order: adapted, cast, frozen, checkpointed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hf_efficient.doctor.probe_answer import NotProbedError
from hf_efficient.reading.models import dtype
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.setup import Setup

CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
CHECKPOINTING = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
MAKERS = ("from_pretrained", "from_config", "get_peft_model", "prepare_model_for_kbit_training")
MOVES = (*CASTS, "to", "cuda", "train")
KEPT = (
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "modules_to_save", "task_type", "bias",
    "use_rslora", "use_dora", "target_parameters", "ensure_weight_tying", "inference_mode",
)  # fmt: skip
"""Fields of LoraConfig that decide what is trained and in which dtype."""
DEEP = ("layers_to_transform", "layers_pattern", "trainable_token_indices", "layer_replication")
"""Fields that speak of layers or tokens which a tiny model has not."""


class Step(NamedTuple):
    """One thing done to the model: `peft`, `cast`, `checkpointing`, `inputs` or `kbit`, with its value."""

    what: str
    value: Any = None


def steps(setup: Setup) -> list[Step]:
    """Return what is done to the model before it trains. Raises NotProbedError where reading cannot know it."""
    script = setup.script
    found = list(_of_script(script)) if script is not None else []
    if setup.peft is not None and not any(step.what == "peft" for step in found):
        found.append(Step("peft"))
    _require_same(setup, found)
    trainer, sft = setup.trainer or NOTHING, setup.sft is not None
    asked = checkpointing_of(trainer)
    if asked is not None and sft and setup.peft is not None:
        found.append(Step("inputs"))  # SFTTrainer does so for its adapters
    if asked is not None:
        found.append(Step("checkpointing", asked))
    return found


def _require_same(setup: Setup, found: list[Step]) -> None:
    """Raise NotProbedError where the files were read to do more to the model than these steps."""
    model, peft, seen = setup.model or NOTHING, setup.peft or NOTHING, {step.what for step in found}
    read = {
        "cast": model.said("cast_dtype"),
        "checkpointing": model.said("activation_checkpointing"),
        "kbit": peft.said("prepared_for_kbit") or model.said("prepared_for_kbit"),
        "frozen": model.said("frozen"),
    }
    missed = [what for what, said in read.items() if said and what not in seen]
    if missed:
        raise NotProbedError(f"what the script does to its model ({missed[0]}) is not followed in every detail")
    if setup.script is not None and setup.script.named("add_adapter"):
        raise NotProbedError("add_adapter is not followed")


def checkpointing_of(trainer: Settings) -> dict[str, Any] | None:
    """Return the keywords with which Trainer turns activation checkpointing on; None: it does not."""
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if trainer.on(name):
            keywords = trainer.get(f"{name}_kwargs")
            if keywords is UNKNOWN:
                raise NotProbedError(f"{name}_kwargs is not known")
            given = dict(keywords) if isinstance(keywords, Mapping) else {}
            if any(value is UNKNOWN for value in given.values()):
                raise NotProbedError(f"{name}_kwargs is not known")
            return given
    return None


def apply(model: Any, step: Step, setup: Setup) -> Any:
    """Do one step to a tiny model and return it."""
    import torch

    if step.what == "peft":
        return _adapted(model, setup)
    if step.what == "cast":
        return model.to(getattr(torch, step.value))
    if step.what == "inputs":
        model.enable_input_require_grads()
    elif step.what == "checkpointing":
        keywords = dict(step.value or {})
        every, _ = keywords.pop("every_n_layers", 1), keywords.pop("offload", False)
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=keywords or None, every_n_layers=every)
    elif step.what == "kbit":
        return _for_kbit(model, step.value, setup)
    return model


def lora_fields(setup: Setup) -> dict[str, Any]:
    """Return the fields of the run's LoraConfig. Raises NotProbedError for what a tiny model cannot show."""
    peft = setup.peft or NOTHING
    if str(peft.get("peft_type", "LORA")).rpartition(".")[2] != "LORA":
        raise NotProbedError("its adapter is no LoRA")
    if peft.text("class") not in ("", "LoraConfig"):
        raise NotProbedError(f"its adapter is of {peft.text('class')} and no LoRA")
    deep = [name for name in DEEP if peft.get(name) is not None and peft.said(name)]
    if deep:
        raise NotProbedError(f"{deep[0]} speaks of layers or tokens that a tiny model has not")
    fields = {name: peft.get(name) for name in KEPT if peft.said(name)}
    unknown = [name for name, value in fields.items() if value is UNKNOWN]
    if set(unknown) & {"target_modules", "modules_to_save", "target_parameters", "exclude_modules", "bias"}:
        raise NotProbedError(f"{unknown[0]} of the adapter is not known")
    if peft.open and "target_modules" not in fields:
        raise NotProbedError("the fields of the adapter are not known")
    fields = {name: value for name, value in fields.items() if value is not UNKNOWN}
    if isinstance(fields.get("task_type"), str):
        fields["task_type"] = fields["task_type"].rpartition(".")[2]
    return fields


def _adapted(model: Any, setup: Setup) -> Any:
    from peft import LoraConfig, get_peft_model

    if setup.peft is None:
        raise NotProbedError("the fields of the adapter are not known")
    peft = setup.peft
    cast = peft.get("autocast_adapter_dtype", True)
    if peft.said("autocast_adapter_dtype") and cast is UNKNOWN:
        raise NotProbedError("autocast_adapter_dtype is not known")
    return get_peft_model(model, LoraConfig(**lora_fields(setup)), autocast_adapter_dtype=bool(cast is not False))


def _for_kbit(model: Any, keywords: Any, setup: Setup) -> Any:
    """Prepare as for weights in 4 or 8 bits; where the tiny model has none, it counts as if it had."""
    from peft import prepare_model_for_kbit_training

    loaded = setup.model or NOTHING
    real = getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)
    if not real and (loaded.on("load_in_4bit") or loaded.on("load_in_8bit")):
        model.is_loaded_in_4bit = True
    try:
        return prepare_model_for_kbit_training(model, **(keywords or {}))  # type: ignore[no-untyped-call]
    finally:
        if not real:
            vars(model).pop("is_loaded_in_4bit", None)


def _of_script(script: Script) -> Iterator[Step]:
    """Yield the steps in the order in which they run. Raises NotProbedError where more is done than is followed."""
    own = next(_by_hand(script), None)
    if own is not None:
        raise NotProbedError(f"the script freezes or casts parameters itself ({own.attr} in line {own.lineno})")
    models = {call.target for call in _makers(script)} - {""}
    for call in sorted(script.calls, key=lambda one: (one.node.end_lineno or 0, one.node.end_col_offset or 0)):
        step = _step(call, models)
        if step is None:
            continue
        if call.guards:
            raise NotProbedError(f"{call.text[:60]} in line {call.place.line} depends on `{call.guards[-1][:60]}`")
        yield step


def _by_hand(script: Script) -> Iterator[ast.Attribute]:
    """Yield where parameters are frozen or cast one by one."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute) and (
            node.attr == "requires_grad_"
            or (node.attr in ("requires_grad", "data") and isinstance(node.ctx, ast.Store))
        ):
            yield node


def _makers(script: Script) -> list[Call]:
    made = [call for call in script.named(*MAKERS) if "Tokenizer" not in call.name and "Processor" not in call.name]
    names = {call.target for call in made} - {""}
    return made + [call for call in script.calls if call.method in MOVES and _of_model(call, names)]


def _of_model(call: Call, models: set[str]) -> bool:
    """Say whether a call is a method of the model, or of the call that makes it."""
    return call.receiver in models or call.receiver.rpartition(".")[2] in MAKERS


def _step(call: Call, models: set[str]) -> Step | None:
    if call.method == "get_peft_model":
        return Step("peft")
    if call.method == "prepare_model_for_kbit_training":
        return Step("kbit", {k: v for k, v in call.keywords.items() if k != "model" and v is not UNKNOWN})
    if not _of_model(call, models):
        return None
    if call.method in CASTS:
        return Step("cast", CASTS[call.method])
    if call.method == "to":
        return _moved(call)
    if call.method in CHECKPOINTING:
        given = [*call.args[:1], *(call.keywords.get(f"{name}_kwargs") for name in _NAMES)]
        if any(value is UNKNOWN for value in given):
            raise NotProbedError(f"the arguments of {call.method} are not known")
        return Step("checkpointing", next((dict(value) for value in given if isinstance(value, Mapping)), {}))
    return Step("inputs") if call.method == "enable_input_require_grads" else None


def _moved(call: Call) -> Step | None:
    """Return the cast of `.to(...)`; None where it only moves."""
    if call.keywords.get("dtype") is UNKNOWN:
        raise NotProbedError(f"the dtype of {call.text[:60]} is not known")
    asked = [dtype(value) for value in (*call.args, *call.keywords.values()) if isinstance(value, str)]
    found = [name for name in asked if isinstance(name, str) and name != "auto"]
    return Step("cast", found[0]) if found else None


_NAMES = ("activation_checkpointing", "gradient_checkpointing")
