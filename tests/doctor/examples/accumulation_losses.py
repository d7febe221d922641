"""Setups in which the checks of accumulation_losses find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

HEAD = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\nfrom functools import partial\n"


def files(
    body: str, call: str, arguments: str = "gradient_accumulation_steps=16", model: str = "OPTForCausalLM"
) -> dict[str, Any]:
    """Return a script with a Trainer of its own."""
    end = f"""
from transformers import {model}
model = {model}.from_pretrained("some/checkpoint")
args = TrainingArguments(output_dir="o", {arguments})
trainer = {call}
"""
    return {"files": {"tune.py": HEAD + body + end}}


def own(signature: str, body: str, attributes: str = "", base: str = "Trainer") -> str:
    """Return a Trainer class with a compute_loss."""
    return f"class Own({base}):\n    {attributes or 'pass'}\n    def compute_loss({signature}):\n        {body}\n"


FULL = "self, model, inputs, return_outputs=False, num_items_in_batch=None"
MEAN = "return focal(model(**inputs).logits, inputs['labels']).mean()"
BUILT = "Own(model=model, args=args)"
EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "compute-loss-without-num-items": (
        [
            files(own("self, model, inputs, return_outputs=False", MEAN), BUILT, ""),
            files("loss_of = lambda outputs, labels: outputs[0]", "Trainer(model, args, compute_loss_func=loss_of)"),
            files(
                "class Dice:\n    def __call__(self, outputs, labels):\n        return 0",
                "Trainer(model, args, compute_loss_func=Dice())",
            ),
        ],
        [
            files(own("self, model, inputs, **kwargs", "return super().compute_loss(model, inputs, **kwargs)"), BUILT),
            files("from losses import dice", "Trainer(model, args, compute_loss_func=dice)"),
            files("class Own:\n    def compute_loss(self, batch):\n        return 0\n", "Trainer(model, args)"),
        ],
    ),
    "compute-loss-ignores-num-items": (
        [
            files(own(FULL, MEAN), BUILT),
            files(
                own("self, model, inputs, return_outputs=False, **kwargs", "return model(**inputs).loss * 0.5"), BUILT
            ),
            files(own(FULL, "return super().compute_loss(model, inputs, return_outputs)"), BUILT),
            files(
                "def dice(outputs, labels, num_items_in_batch=None, smooth=1.0):\n"
                "    return (outputs.logits - labels).abs().mean()",
                "Trainer(model, args, compute_loss_func=partial(dice, smooth=0.5))",
            ),
        ],
        [
            files(own(FULL, MEAN), BUILT, "gradient_accumulation_steps=1"),
            files(own(FULL, MEAN), BUILT, "gradient_accumulation_steps=steps()"),
            files(own(FULL, MEAN, "loss_is_scaled_for_ga = False"), BUILT),
            files(own(FULL, MEAN.replace(".mean()", ".sum() / self.args.gradient_accumulation_steps")), BUILT),
            files(own(FULL, "return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)"), BUILT),
            files(own(FULL, "return model(**inputs, num_items_in_batch=num_items_in_batch).loss"), BUILT),
            files(own(FULL, MEAN), BUILT, model="Qwen2_5_VLForConditionalGeneration"),
            files(own(FULL, MEAN, base="SomebodysTrainer"), BUILT),
        ],
    ),
    "compute-loss-without-return-outputs": (
        [
            files(own("self, model, inputs, num_items_in_batch=None", MEAN), BUILT, 'eval_strategy="epoch"'),
            files(own("self, model, batch, num_items_in_batch", MEAN), BUILT, 'eval_strategy="steps", eval_steps=10'),
        ],
        [files(own("self, model, inputs, num_items_in_batch=None", MEAN), BUILT, 'eval_strategy="no"')],
    ),
    "tokens-averaged-per-process": (
        [
            {"trainer": {"average_tokens_across_devices": False}, "processes": n, "model": {"class": "Phi3ForCausalLM"}}
            for n in (2, 8)
        ],
        [{"trainer": {"average_tokens_across_devices": False}, "processes": 1, "model": {"class": "Phi3ForCausalLM"}}],
    ),
}
