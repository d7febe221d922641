"""What a model's head learns, and the tricks that are not made for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan

if TYPE_CHECKING:
    from torch import nn


def require_head(plan: Plan, model: Any) -> None:
    """Raise ValueError where a trick of `plan` is not made for the head of `model`, a module or a model's class."""
    name = model.__name__ if isinstance(model, type) else type(_inner(model)).__name__
    for trick in plan.tricks:
        if "causal_lm" in trick.heads and not shifts_labels(model):
            raise ValueError(
                f"{trick.name} is made for causal language models, and {name} is none: leave it out, with "
                f"`without=({trick.name.partition('(')[0]!r},)`."
            )


def shifts_labels(model: nn.Module | type[nn.Module]) -> bool:
    """Say whether the loss of `model` predicts each token from those before it, so that no row's first counts."""
    model = _inner(model)
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    loss_type = getattr(model, "loss_type", None)
    # GPT-2 and a few other old classes name no loss; transformers then takes the causal one.
    causal = LOSS_MAPPING.get(loss_type) is ForCausalLMLoss or (
        loss_type not in LOSS_MAPPING and not _names(model).isdisjoint(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    )
    return causal and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def _inner(model: Any) -> Any:
    """Return the model inside an adapter's wrapper, which has no name of its own."""
    return model.get_base_model() if hasattr(model, "get_base_model") and not isinstance(model, type) else model


def _names(model: Any) -> set[str]:
    """Return the names of the model's class and of those that it derives from."""
    return {kind.__name__ for kind in (model if isinstance(model, type) else type(model)).__mro__}
