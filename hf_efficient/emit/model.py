"""Plan -> how a model is loaded and which adapter it gets: the same for Trainer and for a hand-written loop."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from hf_efficient.emit.head import NeedsAutocastError, require_head
from hf_efficient.emit.launcher import PRECISION
from hf_efficient.plan import Plan
from hf_efficient.wording import unknown

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
"""How a model's class ends -> PEFT's name for what it does."""


def model_keywords(plan: Plan, **yours: Any) -> dict[str, Any]:
    """Return the keywords of `from_pretrained`: the plan's and yours, which win.

    They decide the dtype of the weights, the attention kernel and the quantization. Build the TrainingArguments or the
    Accelerator first: ZeRO-3 shards weights while they load.
    """
    if "torch_dtype" in yours:  # the old name, of which transformers takes the new one's value
        yours["dtype"] = yours.pop("torch_dtype")
    keywords = plan["model"] | yours
    if isinstance(keywords.get("quantization_config"), dict):
        from transformers import BitsAndBytesConfig

        keywords["quantization_config"] = BitsAndBytesConfig(**keywords["quantization_config"])
    return keywords


def peft_config(plan: Plan, model: nn.Module | None = None, **yours: Any) -> LoraConfig | None:
    """Return the LoraConfig of `plan` and your fields, which win; None for a plan without an adapter.

    The task follows from the class of `model`, and its new head, if it has one, is trained as a whole.
    `SFTTrainer(peft_config=...)` takes the configuration; everywhere else `add_adapter` does the rest.
    """
    if not plan["peft"]:
        return None
    from peft import LoraConfig

    known = [field.name for field in fields(LoraConfig) if field.init]
    for name in yours:
        if name not in known:
            raise unknown("field of LoraConfig", name, known)
    about = _about(model) if model is not None else {}
    return LoraConfig(**about | plan["peft"] | yours)


def add_adapter(plan: Plan, model: M, **yours: Any) -> M:
    """Freeze `model` and add the plan's adapter with your fields of LoraConfig; without one return `model` as it is.

    Call it before Trainer; in a hand-written loop `prepare_model` does. What is trained (the adapter, and a new head
    as a whole) is in float32, whatever dtype the frozen weights have: a 16-bit weight loses updates smaller than its
    rounding. SFTTrainer puts an adapter on 4-bit weights back into bf16 when it is built: call
    `add_adapter(plan, trainer.model)` after it, which keeps the adapter that is there.

    Raises ValueError for a model with a head that a trick of the plan is not made for, one that is not loaded in 4 bits
    as the plan says, one whose adapter is another than the plan's or not trainable, layers trained as a whole beside
    16-bit weights without bf16 or fp16, and a field that LoraConfig has not.
    """
    require_head(plan, model)
    config = peft_config(plan, model, **yours)
    if config is None:
        return model
    from peft import PeftModel, get_peft_model

    _check(plan, model, config)
    _keep_unpacked(model)
    _dequantize_head(model)
    # DeepSpeed gathers the small weights of a ZeRO-3 model into one buffer of one dtype (TRL issue 6089), and keeps
    # float32 copies itself.
    sharded = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    if not isinstance(model, PeftModel):
        model = get_peft_model(model, config, autocast_adapter_dtype=not sharded)
    for parameter in model.parameters() if not sharded else ():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "The model's adapter is loaded for inference, and nothing would train: pass is_trainable=True."
        )
    if not sharded:
        _require_one_dtype(plan, model)
    return model


def _check(plan: Plan, model: nn.Module, config: LoraConfig) -> None:
    """Raise ValueError for a model that cannot be the one that the plan means."""
    author = plan.author("peft", "r")
    if plan["model"].get("quantization_config") and not getattr(model, "is_loaded_in_4bit", False):
        raise ValueError(
            f"{author} trains adapters on a model in 4 bits, and this one is not: load it with "
            "from_pretrained(name, **model_keywords(plan))."
        )
    for there in getattr(model, "peft_config", {}).values():
        for key in ("r", "lora_alpha"):
            found, wanted = getattr(there, key, None), getattr(config, key)
            if found != wanted:
                raise ValueError(
                    f"The model has an adapter with {key}={found!r} already, and {author} wants {wanted!r}: take the "
                    "plan that made it, or a model without an adapter."
                )


def _keep_unpacked(model: nn.Module) -> None:
    """Keep bitsandbytes from repacking 4-bit weights on a CPU when they evaluate.

    Seen with 0.50.2 on a CPU with bf16 instructions: after one evaluation gradients were 0.997 off, their norm 0.07
    times what it was, since the backward pass knows nothing of the packed layout.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def _dequantize_head(model: nn.Module) -> None:
    """Give a new head, which is trained as a whole, float32 weights where loading in 4 bits has rounded them."""
    from torch import nn

    if hasattr(model, "peft_config") or not getattr(model, "is_loaded_in_4bit", False):
        return
    from bitsandbytes.functional import dequantize_4bit

    for head in _new_head(model):
        for name, layer in list(model.get_submodule(head).named_modules(prefix=head)):
            if not hasattr(getattr(layer, "weight", None), "quant_state"):
                continue
            whole = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, layer.weight.device)
            whole.weight.data = dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
            if layer.bias is not None:
                whole.bias.data = layer.bias.data.float()
            model.set_submodule(name, whole)


def _about(model: nn.Module) -> dict[str, Any]:
    """Return the fields of LoraConfig that follow from the model: its task and its new head."""
    base = getattr(model, "get_base_model", lambda: model)()
    task = next((task for end, task in TASKS.items() if type(base).__name__.endswith(end)), None)
    config = getattr(base, "config", None)
    reads_tokens = getattr(base, "main_input_name", "") == "input_ids"
    if task == "SEQ_2_SEQ_LM" and not (getattr(config, "is_encoder_decoder", False) and reads_tokens):
        task = None  # speech and vision models have that name, too
    head = _new_head(base)
    return {"task_type": task} | ({"modules_to_save": head, "exclude_modules": head} if head else {})


def _new_head(model: Any) -> list[str]:
    """Return the names of the modules beside the pretrained body that no checkpoint of it has, such as a classifier.

    The output embeddings of a language model are pretrained and no new head.
    """
    body, outputs = getattr(model, "base_model_prefix", ""), getattr(model, "get_output_embeddings", lambda: None)()
    if not body or not hasattr(model, body):
        return []
    return [
        name
        for name, child in model.named_children()
        if name != body and any(True for _ in child.parameters()) and outputs not in child.modules()
    ]


def _require_one_dtype(plan: Plan, model: nn.Module) -> None:
    """Raise ValueError where layers trained as a whole in float32 would meet 16-bit activations without autocast."""
    whole = {name for name, weight in model.named_parameters() if weight.requires_grad and "lora_" not in name}
    frozen = {weight.dtype for weight in model.parameters() if not weight.requires_grad and weight.is_floating_point()}
    autocast = plan["trainer"].get("bf16") or plan["trainer"].get("fp16") or plan["accelerator"].get("mixed_precision")
    asked = os.environ.get(PRECISION, "no") != "no"
    if whole and any(dtype.itemsize == 2 for dtype in frozen) and not (autocast or asked):
        raise NeedsAutocastError(
            f"{sorted(whole)[0]} is trained in float32 beside frozen weights in 16 bits, which fit together under "
            "autocast only: add bf16 or fp16 to the plan, or load the model with dtype='float32'."
        )
