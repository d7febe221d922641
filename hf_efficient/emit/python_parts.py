"""The lines of Python about model, adapter, data and loader, which the doors of `emit python` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.emit.sampler import grouped
from hf_efficient.plan import Plan


def classes_of_model(plan: Plan, door: str) -> list[str]:
    """Return the imports that the lines about model and adapter need at one door."""
    quantized = "quantization_config" in plan["model"]
    return [
        *(["from peft import LoraConfig"] if plan["peft"] and door == "sft" else []),
        *(["from transformers import BitsAndBytesConfig"] if quantized and door != "sft" else []),
    ]


def model_lines(plan: Plan) -> list[str]:
    """Write the keywords of from_pretrained; a quantization's configuration is an object."""
    keywords = plan["model"]
    quantization = keywords.pop("quantization_config", None)
    shown = [f"    {key}={value!r}," for key, value in keywords.items()]
    shown += [f"    quantization_config=BitsAndBytesConfig({_keywords(quantization)}),"] if quantization else []
    return ["model_keywords = dict(  # AutoModel....from_pretrained(name, **model_keywords)", *shown, ")"]


def adapter_lines(plan: Plan) -> list[str]:
    """Write a function that adds the adapter, for the head that the model has and with float32 for what is trained."""
    if not plan["peft"]:
        return []
    spelled = ", ".join(repr(trick.name) for trick in plan.tricks if trick.peft)
    return [
        "",
        "",
        f"def add_adapter(model):  # before Trainer or accelerator.prepare: LoraConfig({_keywords(plan['peft'])})",
        "    from hf_efficient import add_adapter, make_plan",
        "",
        f"    return add_adapter(make_plan({spelled}), model)",
        "",
        "",
    ]


def sft_adapter_lines(plan: Plan) -> list[str]:
    """Write the configuration that SFTTrainer takes, and what to do after SFTTrainer has cast the adapter."""
    if not plan["peft"]:
        return []
    keywords = _keywords({"task_type": "CAUSAL_LM"} | plan["peft"])
    config = f"peft_config = LoraConfig({keywords})  # SFTTrainer(..., peft_config=peft_config)"
    if "quantization_config" not in plan["model"]:
        return [config]
    return [
        config,
        "",
        "",
        "def keep_float32(model):  # trainer.model before trainer.train(): SFTTrainer casts such adapters to bf16",
        "    for parameter in model.parameters():",
        "        if parameter.requires_grad:",
        "            parameter.data = parameter.data.float()",
        "",
        "",
    ]


def data_lines(plan: Plan) -> list[str]:
    """Write how rows of tokens are padded or packed."""
    if not plan["collator"]:
        return []
    spelled = ", ".join(repr(trick.name) for trick in plan.tricks if trick.collator)
    if plan["collator"].get("padding_free"):
        head = "def prepare_data(rows, tokenizer, model, max_length):  # rows of input_ids and labels"
        names, made = "make_collator, make_plan, pack", "pack(plan, rows, max_length=max_length), make_collator(plan, "
        last = f"    return {made}tokenizer, model)"
    else:
        head, names = "def prepare_collator(tokenizer):  # for rows of input_ids and labels", "make_collator, make_plan"
        last = "    return make_collator(plan, tokenizer)"
    return ["", "", head, f"    from hf_efficient import {names}", "", f"    plan = make_plan({spelled})", last, "", ""]


def loader_lines(plan: Plan) -> list[str]:
    """Write the keywords of DataLoader, and the sampler where the plan has one."""
    keywords = plan["dataloader"]
    if not grouped(plan):
        return [f"loader_keywords = {keywords!r}  # torch.utils.data.DataLoader(data, **loader_keywords)"]
    keywords.pop("sampler")
    seed, steps = plan["loop"].get("seed", 42), plan["accelerator"].get("gradient_accumulation_steps", 1)
    return [
        f"loader_keywords = {keywords!r}",
        "# torch.utils.data.DataLoader(data, sampler=make_sampler(data, batch_size), **loader_keywords)",
        "",
        "",
        f"def make_sampler(data, batch_size):  # instead of shuffle=True; {plan.author('dataloader', 'sampler')}",
        "    from torch import Generator",
        "    from transformers.trainer_pt_utils import LengthGroupedSampler",
        "",
        f"    generator = Generator().manual_seed({seed!r})  # every process draws the same order",
        f"    return LengthGroupedSampler(batch_size * {steps}, data, generator=generator)",
        "",
        "",
    ]


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())
