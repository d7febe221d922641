"""Scripts in which the check of checkpointing_modes finds its mistake, and relatives in which it stays silent."""

from __future__ import annotations

from typing import Any

LOOP = """
import torch
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained("roberta-base", dtype=torch.float32).cuda()
{enable}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
{before}
for epoch in range(3):
    {first}
    for batch in torch.load("train.pt"):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    {after}
    with torch.no_grad():
        for batch in torch.load("dev.pt"):
            print(model(**batch).loss)
"""
ENABLE = "model.activation_checkpointing_enable()"
TRAINER = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        {call}
        return model(**inputs).loss
model = AutoModelForCausalLM.from_pretrained("gpt2")
Mine(model=model, args=TrainingArguments(activation_checkpointing=True)).train()
"""


def _loop(enable: str = ENABLE, before: str = "", first: str = "pass", after: str = "pass") -> dict[str, Any]:
    return {"files": {"train.py": LOOP.format(enable=enable, before=before, first=first, after=after)}}


EXAMPLES = {
    "checkpointing-in-eval-mode": (
        [
            _loop(),
            _loop(before="model.train()", after="model.eval()"),
            _loop(enable="model.gradient_checkpointing_enable()", before="model.train(False)"),
            {"files": {"train.py": TRAINER.format(call="model.eval()")}},
            {"accelerator": {}, "model": {"activation_checkpointing": True, "training": False}},
        ],
        [
            _loop(first="model.train()", after="model.eval()"),
            _loop(before="model.train()"),
            _loop(enable=""),
            {"files": {"train.py": TRAINER.format(call="model.train()")}},
        ],
    ),
    "training-in-eval-mode": (
        [
            _loop(enable=""),
            {
                "files": {
                    "train.py": LOOP.format(
                        enable="", before="from accelerate import Accelerator", first="pass", after="pass"
                    ).replace("roberta-base", "google-t5/t5-small")
                }
            },
        ],
        [
            _loop(enable="", before="model.train()"),
            _loop(enable="", first="model.train()"),
            {
                "files": {
                    "train.py": LOOP.format(enable="", before="", first="pass", after="pass").replace(
                        "roberta-base", "Qwen/Qwen3-0.6B"
                    )
                }
            },
        ],
    ),
}
