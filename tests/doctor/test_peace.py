"""What is right, or unknown, is left in peace: setups as people have them, each with no error and no warning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hf_efficient.doctor import examine_files
from hf_efficient.finding import Finding

OWN_ARGUMENTS = """
import argparse
import torch
from accelerate import Accelerator
p = argparse.ArgumentParser()
p.add_argument("--gradient_accumulation_steps", type=int, default=1)
args = p.parse_args()
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, batch in enumerate(loader):
    loss = model(**batch).loss / args.gradient_accumulation_steps
    accelerator.backward(loss)
    if step % args.gradient_accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
LAUNCHED = "accelerate launch --num_processes 4 --multi_gpu train.py --gradient_accumulation_steps 4 --fp16\n"
IMPORTED = """
import config
from config import BF16, cfg
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained(config.NAME, dtype="bfloat16")
if cfg.lora:
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
if not cfg.lora:
    model = model.float()
args = TrainingArguments("o", bf16=BF16, fp16=not BF16, torch_compile=cfg.compile, optim=config.OPTIM)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
BF16_LOOP = """
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained("m", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(**batch).loss)
    optimizer.step()
    optimizer.zero_grad()
"""
EITHER_DUMMY = """
import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim
accelerator = Accelerator()
blocks = accelerator.state.deepspeed_plugin.deepspeed_config
optimizer_class = torch.optim.AdamW if "optimizer" not in blocks else DummyOptim
optimizer = optimizer_class(model.parameters(), lr=1e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(**batch).loss)
    optimizer.step()
    optimizer.zero_grad()
"""
DUMMY_JSON = """{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 1,
"gradient_clipping": "auto", "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
"optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}}"""
DUMMY_LAUNCH = """
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: false}
num_processes: 2
"""
PLAIN = """
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
args = TrainingArguments("o", per_device_train_batch_size=8, fp16=True, max_grad_norm=0.5)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
SHARDED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
args = TrainingArguments("o", bf16=True, per_device_train_batch_size=8, deepspeed="ds.json")
model = AutoModelForCausalLM.from_pretrained("gpt2", dtype="float32")
Trainer(model=model, args=args, train_dataset=rows).train()
"""
SHARDED_JSON = """{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, "gradient_clipping": "auto",
"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto"}"""
DDP_YAML = "distributed_type: MULTI_GPU\nmixed_precision: fp16\nnum_processes: 8\nmachine_rank: 0\n"
ZERO_YAML = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4, gradient_clipping: 1.0}
mixed_precision: bf16
num_processes: 8
machine_rank: 0
"""
FULL = PLAIN.replace("fp16=True, max_grad_norm=0.5", "bf16=True, gradient_accumulation_steps=4")
FULL = FULL.replace("SequenceClassification", "CausalLM")

SETUPS: Mapping[str, Mapping[str, str]] = {
    "an argument of the script's own is none of Trainer's": {"train.py": OWN_ARGUMENTS, "run.sh": LAUNCHED},
    "what another module holds may be anything": {"train.py": IMPORTED},
    "a launch file that is not there may name any engine": {
        "train.py": BF16_LOOP,
        "run.sh": "accelerate launch --config_file zero3.yaml train.py\n",
    },
    "a class may be called under another name": {
        "train.py": EITHER_DUMMY,
        "ds.json": DUMMY_JSON,
        "launch.yaml": DUMMY_LAUNCH,
    },
    "a DeepSpeed file goes with the script that names it": {
        "shard.py": SHARDED,
        "plain.py": PLAIN,
        "ds.json": SHARDED_JSON,
    },
    "a launch file goes with the command that names it": {
        "full.py": FULL,
        "plain.py": PLAIN,
        "zero.yaml": ZERO_YAML,
        "run.sh": "accelerate launch --config_file zero.yaml full.py\n",
    },
    "a launch file goes with the module that it starts": {
        "src/full.py": FULL,
        "plain.py": PLAIN,
        "zero.yaml": ZERO_YAML,
        "run.sh": "accelerate launch --config_file zero.yaml -m src.full\n",
    },
    "which of two launch files is which script's is a guess": {
        "full.py": FULL,
        "plain.py": PLAIN,
        "zero.yaml": ZERO_YAML,
        "ddp.yaml": DDP_YAML,
    },
    "arguments alone do not say which engine runs them": {
        "sft.yaml": "model_name_or_path: m\ndtype: bfloat16\nbf16: true\nlearning_rate: 1.0e-05\noutput_dir: o\n"
    },
    "empty files that only mark a folder": {"pkg/__init__.py": "", "conftest.py": "", "train.py": PLAIN},
    "arguments of a script's own": {
        "config.yaml": "lr: 1e-4\nbatch_size: 32\nepochs: 10\nweight_decay: 0.01\nwarmup_ratio: 0.1\nbf16: true\n"
    },
    "LLaMA-Factory": {
        "lf.yaml": "stage: sft\nfinetuning_type: lora\nper_device_train_batch_size: 1\nwarmup_ratio: 0.1\n"
    },
    "torchtune": {
        "tt.yaml": "tokenizer: {a: b}\nloss: {a: b}\noptimizer: {lr: 1e-4}\ndtype: bf16\nbatch_size: 2\noutput_dir: o\n"
    },
    "another library's trainer": {
        "nemo.yaml": "name: x\ntrainer: {devices: 8, num_nodes: 1, precision: bf16, max_epochs: 3}\nmodel: {a: 1}\n"
    },
    "a package of Node": {"package.json": '{"name": "x", "version": "1.0.0", "scripts": {"test": "x"}}'},
    "logits that prediction_loss_only spares": {
        "setup.json": '{"trainer": {"eval_strategy": "epoch", "prediction_loss_only": true}, "eval": {"rows": 100000, '
        '"seq_len": 512, "compute_metrics": true}, "model": {"class": "BertForMaskedLM", "vocab_size": 30522}}'
    },
    "logits of an evaluation that never comes": {
        "setup.json": '{"trainer": {"eval_strategy": "no"}, "eval": {"rows": 100000, "seq_len": 512, "compute_metrics":'
        ' true}, "model": {"class": "BertForMaskedLM", "vocab_size": 30522}}'
    },
}


def _serious(files: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    report = examine_files([Path(name) for name in files], gpu="A100-80GB")
    return [finding for finding in report.findings if finding.level != "info"]


@pytest.mark.parametrize("name", SETUPS)
def test_nothing_serious_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error and no warning."""
    assert not _serious(SETUPS[name], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"full.py": FULL, "run.sh": "accelerate launch --config_file z.yaml full.py\n"}, "z.yaml"),
        ({"full.py": FULL, "run.sh": "accelerate launch --config_file z.yaml -m full\n"}, "z.yaml"),
        ({"full.py": FULL}, "z.yaml"),
        ({"full.py": FULL, "plain.py": PLAIN}, "z.yaml"),
    ],
)
def test_a_pair_that_is_known_is_judged(
    files: Mapping[str, str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command that names both, or because there is one launch file only."""
    wrong = ZERO_YAML.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 2")
    found = _serious({**files, code: wrong}, tmp_path, monkeypatch)
    assert "launcher-deepspeed-against-arguments" in {finding.code for finding in found}


def test_an_argument_is_followed_to_where_the_script_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)` knows what the command says."""
    taken = OWN_ARGUMENTS.replace(
        "Accelerator()", "Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)"
    )
    found = _serious({"train.py": taken, "run.sh": LAUNCHED}, tmp_path, monkeypatch)
    assert [finding.code for finding in found] == ["backward-divides-already"]
