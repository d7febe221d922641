"""What a model's head learns, and the tricks that are not made for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hf_efficient.plan import Plan

if TYPE_CHECKING:
    from torch import nn


class NotMadeForError(ValueError):
    """A trick and a model, or its rows, that do not belong together; the message names both."""


class NeedsAutocastError(ValueError):
    """An adapter and a new head whose dtypes fit together under autocast only."""


def require_head(plan: Plan, model: Any) -> None:
    """Raise NotMadeForError where a trick of `plan` is not made for the head of `model`, a module or its class."""
    name = model.__name__ if isinstance(model, type) else type(_inner(model)).__name__
    for trick in plan.tricks:
        for kind in trick.heads:
            fits, what, lack = KINDS[kind]
            if not fits(model):
                raise NotMadeForError(
                    f"{trick.name} is made for {what}, and {name} {lack}: leave it out, with "
                    f"`without=({trick.name.partition('(')[0]!r},)`."
                )


def reads_texts(model: Any) -> bool:
    """Say whether the rows of a model are tokens."""
    return getattr(_inner(model), "main_input_name", "input_ids") == "input_ids"


def has_linear_blocks(model: Any) -> bool:
    """Say whether the blocks of a module have linear layers; of a class that is not known, and taken for granted."""
    from torch import nn

    if isinstance(model, type):
        return True
    return any(isinstance(module, nn.Linear) and IN_A_BLOCK.search(name) for name, module in model.named_modules())


IN_A_BLOCK = re.compile(r"\.\d+\.")
KINDS: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "causal_lm": (lambda model: shifts_labels(model), "causal language models", "is none"),
    "texts": (reads_texts, "models that read tokens", "reads something else"),
    "linear_blocks": (has_linear_blocks, "models whose blocks have torch's linear layers", "has none there"),
}
"""Kind of head -> whether a model is of it, what it is called, and what is said of a model that is not."""


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
