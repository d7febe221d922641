"""Setups in which the checks of accumulation find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any


def trained(head: str, steps: int = 8, **trainer: Any) -> dict[str, Any]:
    """Return a setup that trains a head of the library with stock Trainer."""
    return {"trainer": {"gradient_accumulation_steps": steps, **trainer}, "model": {"class": head}}


def script(
    head: str, body: str = "", call: str = "Trainer(model=model, args=args)", steps: str = "8"
) -> dict[str, Any]:
    """Return files of one script."""
    text = f"""from transformers import {head}, Seq2SeqTrainer, Trainer, TrainingArguments
{body}
model = {head}.from_pretrained("some/checkpoint")
args = TrainingArguments(output_dir="o", gradient_accumulation_steps={steps})
trainer = {call}
trainer.train()
"""
    return {"files": {"run.py": text}}


HALVED = "class Halved(Seq2SeqTrainer):\n    loss_is_scaled_for_ga = False\n"
SUMS = """class Sums(Trainer):
    loss_is_scaled_for_ga = False
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        return cross(out.logits, inputs["labels"], reduction="sum") / num_items_in_batch
"""
EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "accumulated-loss-not-divided": (
        [
            trained("RobertaForTokenClassification"),
            trained("BartForConditionalGeneration", steps=2),
            trained("AutoModelForMultipleChoice"),
            {
                "trainer": {"gradient_accumulation_steps": 3},
                "model": {"class": "AutoModelForSeq2SeqLM", "model_type": "t5"},
            },
            script("BeitForImageClassification"),
            script("ElectraForSequenceClassification", call="Seq2SeqTrainer(model=model, args=args)"),
        ],
        [
            trained("RobertaForTokenClassification", steps=1),
            trained("ViTForImageClassification"),
            trained("EuroBertForMaskedLM"),
            trained("BertForQuestionAnswering"),
            trained("RobertaForTokenClassification", label_smoothing_factor=0.1),
            trained("NobodyForSequenceClassification"),
            script("BeitForImageClassification", steps="int(input())"),
            script("BertForMaskedLM", body="from hf_efficient import exact_accumulation", call="T(model)"),
            script(
                "BertForMaskedLM", call="Trainer(model=model, args=args)\ntrainer.model_accepts_loss_kwargs = False"
            ),
        ],
    ),
    "accumulated-loss-divided-twice": (
        [
            script("MistralForCausalLM", HALVED, "Halved(model=model, args=args)"),
            script("AutoModelForSequenceClassification", SUMS, "Sums(model=model, args=args)"),
            script("AutoModelForCausalLM", HALVED, "Halved(model=model, args=args)"),
            script(
                "AutoModelForCausalLM",
                f"from trl import SFTTrainer\n{HALVED}".replace("Seq2Seq", "SFT"),
                "Halved(model, args)",
            ),
        ],
        [
            script("BartForSequenceClassification", HALVED, "Halved(model=model, args=args)"),
            script("MistralForCausalLM", HALVED, "Halved(model=model, args=args)", steps="1"),
        ],
    ),
    "router-loss-counted-per-micro-batch": (
        [
            {**trained("Qwen3MoeForCausalLM"), "model": {"class": "Qwen3MoeForCausalLM", "output_router_logits": True}},
            {**trained("x"), "model": {"class": "MixtralForCausalLM", "config": {"output_router_logits": True}}},
        ],
        [
            {**trained("x"), "model": {"class": "MixtralForCausalLM"}},
            {**trained("x", steps=1), "model": {"class": "MixtralForCausalLM", "output_router_logits": True}},
        ],
    ),
}
