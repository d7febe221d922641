"""What promises are tried on: a model that can be made again and again, its samples, and how they become a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_efficient.emit.model import add_adapter, model_keywords
from hf_efficient.plan import Plan, Setting
from hf_efficient.promises.facts import SEED

if TYPE_CHECKING:
    from torch import nn

Rows = Sequence[Mapping[str, Any]]
Collate = Callable[[Rows], Mapping[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A model and its samples. `load` takes keywords of from_pretrained and returns a new model of the same weights."""

    name: str
    load: Callable[..., nn.Module]
    rows: Rows
    collator: Callable[[Plan, nn.Module], Collate]
    """Makes the collator that a plan wants for a model."""

    def model(self, plan: Plan, *, dropout: bool) -> nn.Module:
        """Return a new model in training mode, loaded and adapted as `plan` says; without `dropout` nothing is dropped.

        Weights are float32 unless the plan says otherwise: rounding of 16-bit weights would hide what is compared.
        """
        import torch

        model = self.load(**{"dtype": torch.float32} | model_keywords(plan))
        torch.manual_seed(SEED)  # an adapter draws its weights
        model = add_adapter(plan, model)
        if not dropout:
            silence(model)
        return model.train()

    def drops(self) -> bool:
        """Say whether the model drops anything while it trains."""
        return silence(self.load()) > 0


def silence(model: nn.Module) -> int:
    """Turn every dropout of `model` off, modules' and those that attributes or the configuration name; count them."""
    found = 0
    for config in {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values():
        if getattr(config, "apply_spec_augment", False):  # speech models mask what they hear, by numpy's numbers
            config.apply_spec_augment, found = False, found + 1
    for module in model.modules():
        if "Dropout" in type(module).__name__ and getattr(module, "p", 0) > 0:
            module.p, found = 0.0, found + 1  # type: ignore[assignment]
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if "drop" in name and isinstance(value, float) and value > 0:
                    setattr(holder, name, 0.0)
                    found += 1
    return found


def reference_plan(plan: Plan) -> Plan:
    """Return what of `plan` decides which parameters are trained, and on which weights: what "without it" keeps too."""
    kept = tuple(
        setting
        for setting in plan.settings
        if setting.target == "peft" or (setting.target == "model" and setting.key != "attn_implementation")
    )
    # Beside frozen weights in 16 bits a new head in float32 runs under autocast only.
    halves = plan["peft"] and plan["model"].get("dtype") != "float32" and plan["trainer"].get("bf16")
    return Plan(settings=(*kept, *([Setting("trainer", "bf16", True, "verify")] if halves else [])))
