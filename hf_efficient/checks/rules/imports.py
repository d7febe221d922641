"""Names that a script imports and that the release does not have any more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from hf_efficient.checks.check import check
from hf_efficient.finding import Finding, error
from hf_efficient.reading.script import Script

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
TENSORFLOW = re.compile(r"transformers\.(TF|Flax)[A-Z]\w*")


@check({"transformers": ">=5.0"}, seen="ran on CPU")
def removed_name_imported(script: Script) -> Iterator[Finding]:
    """Find imports of names that transformers, peft, trl or datasets have dropped.

    transformers 5 has neither its own AdamW nor its TensorFlow and Flax classes; AutoModelWithLMHead and
    AutoModelForVision2Seq gave way to exact ones; datasets 5 has no load_metric. The import raises ImportError before
    anything else. An import inside `try` has an alternative and is left alone.
    """
    for node, around in script.nodes:
        if not isinstance(node, ast.ImportFrom) or any(isinstance(one, ast.Try) for one in around):
            continue
        for alias in node.names:
            full = f"{node.module or ''}.{alias.name}"
            instead = GONE.get(full, "the PyTorch class" if TENSORFLOW.fullmatch(full) else "")
            if instead and not node.level:
                yield error(
                    f"from {node.module} import {alias.name}",
                    why=f"{(node.module or '').partition('.')[0]} has no {alias.name} any more: ImportError at once.",
                    fix=f"Use {instead}.",
                    at=script.place(node),
                )
