"""Setups in which the checks of deepspeed_saving find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

TRAINER = """
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments
args = Seq2SeqTrainingArguments("out", deepspeed="ds.json")
model = AutoModelForSeq2SeqLM.from_pretrained("google/flan-t5-xl")
trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=rows)
trainer.train()
{save}
"""
LOOP = """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(**batch).loss)
{save}
"""
ENGINE = """
import deepspeed, torch
engine, optimizer, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="ds.json")
for batch in loader:
    engine.backward(engine(**batch).loss)
    engine.step()
{save}
"""


def _zero(stage: int = 3, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage} | keys, "gradient_clipping": "auto"}


GATHERED = {"stage3_gather_16bit_weights_on_model_save": True}
YAML = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}
GOOD = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True}}


def _trainer(save: str, deepspeed: dict[str, Any]) -> dict[str, Any]:
    return {"trainer": {}, "script": TRAINER.format(save=save), "deepspeed": deepspeed}


def _loop(save: str, launch: dict[str, Any]) -> dict[str, Any]:
    return {"accelerator": {}, "script": LOOP.format(save=save), "launch": launch}


def _engine(save: str, deepspeed: dict[str, Any]) -> dict[str, Any]:
    return {"script": ENGINE.format(save=save), "deepspeed": deepspeed}


EXAMPLES = {
    "zero3-saves-no-weight-file": (
        [
            _trainer("trainer.save_model()", _zero()),
            _trainer("trainer.push_to_hub()", _zero(stage3_gather_16bit_weights_on_model_save="auto")),
        ],
        [
            _trainer("trainer.save_model()", _zero(**GATHERED)),
            _trainer("trainer.save_model()", _zero(2)),
            _trainer("trainer.save_model()\nrun('zero_to_fp32.py')", _zero()),
        ],
    ),
    "zero3-state-dict-refused": (
        [
            _loop("weights = accelerator.get_state_dict(model)", YAML),
            _loop("accelerator.save_model(model, 'final')", YAML),
        ],
        [_loop("weights = accelerator.get_state_dict(model)", GOOD), _loop("accelerator.save_state('out')", YAML)],
    ),
    "zero3-saves-empty-shards": (
        [
            _trainer("model.save_pretrained('best')", _zero(**GATHERED)),
            _loop("torch.save(model.state_dict(), 'weights.pt')", GOOD),
            _loop("accelerator.unwrap_model(model).save_pretrained('final')", GOOD),
            _loop("plain = accelerator.unwrap_model(model)\nplain.save_pretrained('final')", GOOD),
            _loop("model.save_pretrained('final', accelerator.is_main_process)", GOOD),
            _trainer("held = {'weights': model.state_dict()}\ntorch.save(held, 'w.pt')", _zero(**GATHERED)),
            _engine("torch.save(engine.module.state_dict(), 'w.pt')", _zero(**GATHERED)),
        ],
        [
            _trainer("tokenizer.save_pretrained('best')", _zero(**GATHERED)),
            _trainer("model.save_pretrained('best')", _zero(2)),
            _loop("model.save_pretrained('a', state_dict=accelerator.get_state_dict(model))", GOOD),
            _loop("model.save_pretrained('a', accelerator.is_main_process, accelerator.get_state_dict(model))", GOOD),
            _engine("torch.save(optimizer.state_dict(), 'o.pt')", _zero(**GATHERED)),
        ],
    ),
    "zero3-save-writes-nothing": (
        [
            _engine("engine.save_16bit_model('final')", _zero()),
            _engine("engine.save_16bit_model('a', 'b')", _zero(stage3_gather_16bit_weights_on_model_save=False)),
        ],
        [
            _engine("engine.save_16bit_model('final')", _zero(**GATHERED)),
            _engine("engine.save_16bit_model('final')", _zero(2)),
        ],
    ),
    "sharded-save-only-model-with-best": (
        [
            {"trainer": {"save_only_model": True, "load_best_model_at_end": True}, "deepspeed": _zero(2)},
            {"trainer": {"save_only_model": True, "load_best_model_at_end": True, "fsdp": True}},
        ],
        [
            {"trainer": {"save_only_model": True, "load_best_model_at_end": True}},
            {"trainer": {"save_only_model": True}, "deepspeed": _zero(2)},
        ],
    ),
}
