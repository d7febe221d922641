"""Names that a script imports and that the release does not have any more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from hf_efficient.checks.check import check, version
from hf_efficient.finding import Finding, error
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, Settings

GONE: Mapping[str, str] = {
    "transformers.AdamW": "torch.optim.AdamW (from torch.optim import AdamW)",
    "transformers.optimization.AdamW": "torch.optim.AdamW (from torch.optim import AdamW)",
    "transformers.AutoModelWithLMHead": "AutoModelForCausalLM, AutoModelForMaskedLM or AutoModelForSeq2SeqLM",
    "transformers.AutoModelForVision2Seq": "AutoModelForImageTextToText",
    "transformers.HfDeepSpeedConfig": "from transformers.integrations import HfDeepSpeedConfig",
    "transformers.TextDataset": "datasets.load_dataset and a tokenizer",
    "transformers.LineByLineTextDataset": 'datasets.load_dataset("text", ...) and a tokenizer',
    "transformers.trainer_utils.ShardedDDPOption": "TrainingArguments(fsdp=...)",
    "peft.prepare_model_for_int8_training": "prepare_model_for_kbit_training",
    "datasets.load_metric": "evaluate.load of the package evaluate",
    "trl.DataCollatorForCompletionOnlyLM": "SFTConfig(completion_only_loss=True) with a prompt and a completion column",
    "trl.setup_chat_format": "clone_chat_template",
}
"""Full name to what is written instead; each tried with transformers 5.24, peft 0.21.2, trl 1.16 and datasets 5.2."""
NEWER: Mapping[str, str] = {
    **dict.fromkeys(
        ("transformers.GlueDataset", "transformers.SquadDataset", "transformers.TextDatasetForNextSentencePrediction"),
        "datasets.load_dataset and a tokenizer",
    ),
    **dict.fromkeys(
        ("transformers.glue_compute_metrics", "datasets.list_metrics", "datasets.Metric", "datasets.inspect_metric"),
        "the package evaluate",
    ),
    "transformers.is_torch_tpu_available": "transformers.is_torch_xla_available",
    "transformers.AdafactorSchedule": "Adafactor(lr=..., relative_step=False) with get_scheduler",
    "datasets.list_datasets": "huggingface_hub.list_datasets",
    "trl.ConstantLengthDataset": "SFTConfig(packing=True)",
    **dict.fromkeys(("trl.SFTScriptArguments", "trl.DPOScriptArguments"), "trl.ScriptArguments"),
    **dict.fromkeys(
        ("trl.PPOTrainer", "trl.PPOConfig", "trl.AutoModelForCausalLMWithValueHead"),
        "GRPOTrainer or RLOOTrainer, or an older trl",
    ),
    **{
        f"trl.{name}{kind}": f"from trl.experimental.{folder} import {name}{kind}"
        for name, folder in (("ORPO", "orpo"), ("CPO", "cpo"), ("GKD", "gkd"), ("OnlineDPO", "online_dpo"))
        for kind in ("Trainer", "Config")
    },
}
"""The same for names that some earlier 1.x release may have: told for trl 1.16 and transformers 5.24 on."""
SINCE: Mapping[str, str] = {"transformers": "5.24", "trl": "1.16", "datasets": "5.0"}
TENSORFLOW = re.compile(r"transformers\.(TF|Flax)[A-Z]\w*")


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def removed_name_imported(script: Script, machine: Settings = NOTHING) -> Iterator[Finding]:
    """Find imports of names that transformers, peft, trl or datasets have dropped.

    transformers 5 has neither its own AdamW nor its TensorFlow and Flax classes; AutoModelWithLMHead and
    AutoModelForVision2Seq gave way to exact ones; datasets 5 has no load_metric. The import raises ImportError before
    anything else; `transformers.AdamW(...)` raises AttributeError. An import inside `try` has an alternative and is
    left alone.
    """
    gone = dict(GONE) | {name: new for name, new in NEWER.items() if _as_new(name.partition(".")[0], machine)}
    for node, around in script.nodes:
        if any(isinstance(one, ast.Try) for one in around):
            continue
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                full = f"{node.module or ''}.{alias.name}"
                instead = gone.get(full, "the PyTorch class" if TENSORFLOW.fullmatch(full) else "")
                if instead:
                    yield _told(f"from {node.module} import {alias.name}", full, "ImportError", instead, script, node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            full = script.call_at[id(node)].name
            if full in gone:
                yield _told(f"{full}(...)", full, "AttributeError", gone[full], script, node)


def _as_new(package: str, machine: Settings) -> bool:
    used = version(package, machine)
    return used is None or used >= Version(SINCE[package])


def _told(what: str, full: str, raised: str, instead: str, script: Script, node: ast.AST) -> Finding:
    package, _, name = full.partition(".")
    return error(
        what,
        why=f"{package} has no {name.rpartition('.')[2]} any more: {raised} at once.",
        fix=f"Use {instead}.",
        at=script.place(node),
    )
