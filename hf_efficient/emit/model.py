"""Plan -> how a model is loaded and which adapter it gets: the same for Trainer and for a hand-written loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hf_efficient.plan import Plan

if TYPE_CHECKING:
    from peft import LoraConfig
    from torch import nn

M = TypeVar("M", bound="nn.Module")

TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
"""How a model's class ends -> PEFT's task, which tells it the new head that is to be trained as a whole."""


def model_keywords(plan: Plan, **yours: Any) -> dict[str, Any]:
    """Return the keywords of `from_pretrained`: the plan's and yours, which win.

    They decide the dtype of the weights, the attention kernel and the quantization. Build the TrainingArguments or the
    Accelerator first: ZeRO-3 shards weights while they load.
    """
    keywords = plan["model"] | yours
    if isinstance(keywords.get("quantization_config"), dict):
        from transformers import BitsAndBytesConfig

        keywords["quantization_config"] = BitsAndBytesConfig(**keywords["quantization_config"])
    return keywords


def peft_config(plan: Plan, model: nn.Module | None = None, **yours: Any) -> LoraConfig | None:
    """Return the LoraConfig of `plan` and your fields, which win; None for a plan without an adapter.

    The task follows from the class of `model`. `SFTTrainer(peft_config=...)` takes it; everywhere else `add_adapter`
    does the rest.
    """
    if not plan["peft"]:
        return None
    from peft import LoraConfig

    task = {"task_type": _task(model)} if model is not None else {}
    return LoraConfig(**task | plan["peft"] | yours)


def add_adapter(plan: Plan, model: M, **yours: Any) -> M:
    """Freeze `model` and add the plan's adapter with your fields of LoraConfig; without one return `model` as it is.

    Call it before Trainer; in a hand-written loop `prepare_model` does. What is trained (the adapter, and a new head
    as a whole) is in float32, whatever dtype the frozen weights have: a 16-bit weight loses updates smaller than its
    rounding. SFTTrainer puts an adapter on 4-bit weights back into bf16 when it is built: call
    `add_adapter(plan, trainer.model)` after it, which keeps the adapter that is there.
    """
    config = peft_config(plan, model, **yours)
    if config is None:
        return model
    from peft import PeftModel, get_peft_model

    # DeepSpeed gathers the small weights of a ZeRO-3 model into one buffer of one dtype (TRL issue 6089), and keeps
    # float32 copies itself.
    sharded = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    if not isinstance(model, PeftModel):
        model = get_peft_model(model, config, autocast_adapter_dtype=not sharded)
    for parameter in model.parameters() if not sharded else ():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def _task(model: nn.Module) -> str | None:
    """Return PEFT's name for what `model` does, by its class; None for another kind of head."""
    base = getattr(model, "get_base_model", lambda: model)()
    return next((task for end, task in TASKS.items() if type(base).__name__.endswith(end)), None)
