"""FSDP and the model: what is wrapped, what is saved, and how adapters stand in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from hf_efficient.checks.check import check
from hf_efficient.checks.doors import door
from hf_efficient.finding import Finding, error, warning
from hf_efficient.reading.installed import folder
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.setup import Setup
from hf_efficient.wording import nearest

NAMES = "transformer_layer_cls_to_wrap"


@check({"accelerate": ">=1.0", "transformers": ">=4.46"})
def fsdp_wraps_unknown_class(fsdp: Settings, model: Settings) -> Iterator[Finding]:
    """Find a transformer_layer_cls_to_wrap that the model does not have.

    FSDP's plugin looks the class up among the model's modules and raises ValueError ("Could not find the transformer
    layer class"). Compared with the classes of the installed transformers for this model_type; a model that is not
    among them is unknown, and nothing is told.
    """
    given = fsdp.get(NAMES)
    names = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
    known = _classes(model.text("model_type"))
    for name in names:
        if known and isinstance(name, str) and name.strip() not in known:
            layers = {one for one in known if one.endswith(("Layer", "Block"))} or known
            yield error(
                f"fsdp_{NAMES} names {name.strip()}, and {model.text('model_type')} has no such class",
                why="accelerate raises ValueError: it finds no module of that class in the model.",
                fix=f"Write {nearest(name, layers) or sorted(layers)[0]}, or leave the key out: the model's own "
                "_no_split_modules are wrapped then.",
                at=fsdp.where(NAMES),
            )


@cache
def _classes(model_type: str) -> frozenset[str]:
    """Return the classes in the modeling files of a model_type; empty where the installed transformers have none.

    Composite models borrow layers of other models, so theirs are taken for unknown.
    """
    here, name = folder("transformers"), model_type.replace("-", "_")
    if here is None or not name.isidentifier():
        return frozenset()
    try:
        tree = ast.parse((here / "models" / name / f"modeling_{name}.py").read_text(encoding="utf-8"))
        config = (here / "models" / name / f"configuration_{name}.py").read_text(encoding="utf-8")
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found = frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return frozenset() if "sub_configs" in config else found


@check({"accelerate": ">=1.0"})
def fsdp_wraps_nothing(fsdp: Settings) -> Iterator[Finding]:
    """Find an FSDP that wraps the model as one unit.

    With NO_WRAP, or SIZE_BASED_WRAP and min_num_params 0, the whole model is one unit: each forward gathers all
    parameters at once, so that memory is saved for the optimizer's state only.
    """
    policy, least = fsdp.text("auto_wrap_policy").upper(), fsdp.get("min_num_params")
    if policy == "NO_WRAP" or (policy == "SIZE_BASED_WRAP" and least == 0 and least is not False):
        yield warning(
            f"fsdp_auto_wrap_policy {policy}" + (" with fsdp_min_num_params 0" if policy != "NO_WRAP" else ""),
            why="The whole model is one unit: every forward and backward gathers all its parameters at once.",
            fix="Write fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"
            + (", or fsdp_min_num_params: 100000000." if policy != "NO_WRAP" else "."),
            at=fsdp.where("auto_wrap_policy"),
        )


@check({"accelerate": ">=1.0", "peft": ">=0.10"})
def fsdp1_adapters_without_orig_params(setup: Setup, fsdp: Settings, peft: Settings) -> Iterator[Finding]:
    """Find LoRA in a hand-written loop under FSDP 1 with use_orig_params off.

    FSDP 1 flattens each unit into one parameter, which must be trainable or frozen as a whole: with frozen weights and
    adapters in one unit it raises ValueError ("must flatten tensors with uniform requires_grad") unless use_orig_params
    is on, or peft's fsdp_auto_wrap_policy puts the adapters into units of their own. Trainer sets that policy by itself
    (transformers/distributed/fsdp.py, update_fsdp_plugin_peft). FSDP 2 needs neither.
    """
    first = str(fsdp.get("version", 1 if setup.launch is not None else 2)) == "1"
    own = setup.script is not None and "fsdp_auto_wrap_policy" in setup.script.source
    if door(setup) == "accelerate" and first and not own and fsdp.get("use_orig_params") in (False, "false", "False"):
        yield error(
            "LoRA under FSDP 1 with fsdp_use_orig_params false",
            why="Frozen weights and adapters become one parameter of mixed requires_grad: FSDP raises ValueError.",
            fix="Write fsdp_use_orig_params: true, or fsdp_version: 2, or set accelerator.state.fsdp_plugin."
            "auto_wrap_policy = peft.utils.other.fsdp_auto_wrap_policy(model) before prepare.",
            at=fsdp.where("use_orig_params"),
        )


@check({"transformers": ">=4.46", "accelerate": ">=1.0"})
def fsdp_saves_shards(setup: Setup, fsdp: Settings, trainer: Settings) -> Iterator[Finding]:
    """Find a Trainer under FSDP that saves a model in shards.

    Trainer.save_model writes weights under FULL_STATE_DICT only; with SHARDED_STATE_DICT it writes nothing that
    from_pretrained reads (accelerate merge-weights puts the shards of a checkpoint together). save_only_model raises.
    """
    kind = fsdp.text("state_dict_type").upper()
    calls = setup.script.named("save_model") if setup.script is not None else []
    source = setup.script.source if setup.script is not None else ""
    if kind != "SHARDED_STATE_DICT" or "set_state_dict_type" in source or "merge" in source:
        return
    if trainer.on("save_only_model"):
        yield error(
            "save_only_model with fsdp_state_dict_type SHARDED_STATE_DICT",
            why="Trainer raises ValueError: the shards alone are no model.",
            fix="Write fsdp_state_dict_type: FULL_STATE_DICT, or save_only_model=False.",
            at=trainer.where("save_only_model"),
        )
    for call in calls[:1]:
        yield warning(
            f"{call.text[:60]} with fsdp_state_dict_type SHARDED_STATE_DICT",
            why="Trainer.save_model writes no weight file then.",
            fix='Call trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT") before it, or write '
            "fsdp_state_dict_type: FULL_STATE_DICT, or run accelerate merge-weights on a checkpoint.",
            at=call.place,
        )
