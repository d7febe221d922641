"""Setups in which the checks of evaluation find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

_HEAD = "from transformers import AutoModelForCausalLM, Seq2SeqTrainer, Trainer, TrainingArguments\n"
_MODEL = "model = AutoModelForCausalLM.from_pretrained('m')\n"
_ROWS = {"rows": 2000, "seq_len": 1024, "compute_metrics": True}


def _script(arguments: str, trainer: str, more: str = "", after: str = "trainer.train()") -> dict[str, object]:
    text = (
        f"{_HEAD}{more}\n{_MODEL}args = TrainingArguments('out', {arguments})\n"
        f"trainer = Trainer(model=model, args=args, train_dataset=rows{trainer})\n{after}\n"
    )
    return {"files": {"train.py": text}}


EXAMPLES = {
    "evaluation-keeps-logits": (
        [
            {"trainer": {"bf16": True}, "eval": _ROWS, "model": {"class": "GPT2LMHeadModel", "vocab_size": 50257}},
            {
                "trainer": {"eval_strategy": "steps", "eval_accumulation_steps": 4},
                "eval": {**_ROWS, "rows": 300},
                "model": {"class": "T5ForConditionalGeneration", "vocab_size": 32128, "load_dtype": "bfloat16"},
                "machine": {"gpu": "RTX 4090"},
            },
            _script("eval_strategy='epoch'", ", eval_dataset=rows, compute_metrics=score", "def score(p): return {}"),
        ],
        [
            {
                "trainer": {"bf16": True, "batch_eval_metrics": True},
                "eval": _ROWS,
                "model": {"class": "GPT2LMHeadModel", "vocab_size": 50257},
            },
            {"trainer": {}, "eval": _ROWS, "model": {"class": "RobertaForSequenceClassification", "vocab_size": 50265}},
            {
                "trainer": {"predict_with_generate": True},
                "eval": _ROWS,
                "model": {"class": "T5ForConditionalGeneration", "vocab_size": 32128},
            },
            _script("eval_strategy='epoch'", ", eval_dataset=rows, compute_metrics=score, **more"),
        ],
    ),
    "evaluation-batch-at-its-default": (
        [
            {"trainer": {"per_device_train_batch_size": 1, "eval_strategy": "epoch"}},
            {"sft": {"per_device_train_batch_size": 4, "eval_strategy": "steps", "max_length": 4096}},
            _script("per_device_train_batch_size=2, eval_strategy='epoch'", ", eval_dataset=rows"),
        ],
        [
            {"trainer": {"per_device_train_batch_size": 16, "eval_strategy": "epoch"}},
            {"trainer": {"per_device_train_batch_size": 2}},
            _script("per_device_train_batch_size=2, eval_strategy='epoch', **more", ", eval_dataset=rows"),
        ],
    ),
    "evaluation-without-dataset": (
        [
            _script("eval_strategy='steps'", ""),
            _script("eval_strategy='epoch', bf16=True", ", compute_metrics=None"),
        ],
        [
            _script("eval_strategy='steps'", ", eval_dataset=rows"),
            _script("eval_strategy='steps'", ", **more"),
            _script("eval_strategy='no'", ""),
        ],
    ),
    "metrics-never-called": (
        [
            {"trainer": {"prediction_loss_only": True}, "eval": {"compute_metrics": True}},
            _script("prediction_loss_only=True", ", compute_metrics=score", "def score(p): return {}"),
        ],
        [{"trainer": {"prediction_loss_only": True}, "eval": {"compute_metrics": False}}],
    ),
    "full-eval-before-training": (
        [
            _script("bf16_full_eval=True", ", eval_dataset=rows", after="trainer.evaluate()\ntrainer.train()"),
            _script("fp16_full_eval=True", ", eval_dataset=rows", after="print(trainer.evaluate())\ntrainer.train()"),
        ],
        [
            _script("bf16_full_eval=True", ", eval_dataset=rows", after="trainer.train()\ntrainer.evaluate()"),
            _script("bf16=True", ", eval_dataset=rows", after="trainer.evaluate()\ntrainer.train()"),
        ],
    ),
    "batch-metrics-without-flag": (
        [
            _script("batch_eval_metrics=True", ", compute_metrics=score", "def score(p): return {}"),
            _script(
                "batch_eval_metrics=True, bf16=True", ", compute_metrics=f1", "def f1(p, *, last=False): return {}"
            ),
        ],
        [
            _script(
                "batch_eval_metrics=True", ", compute_metrics=score", "def score(p, compute_result=False): return {}"
            ),
            _script("batch_eval_metrics=False", ", compute_metrics=score", "def score(p): return {}"),
        ],
    ),
}
