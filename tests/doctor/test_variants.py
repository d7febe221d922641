"""The same mistakes through other doors: command lines, files that a script names, parsers of one's own, functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_efficient.doctor import examine_files

PARSED = """
from {module} import {parser}, {config}, {trainer}
def main():
    args, = {parser}(({config},)).{method}()
    {trainer}({model}args=args, train_dataset=rows).train()
if __name__ == "__main__":
    main()
"""
SFT = PARSED.format(
    module="trl", parser="TrlParser", config="SFTConfig", trainer="SFTTrainer", method="parse_args_and_config",
    model='model="org/name", ',
)  # fmt: skip
OWN_PARSER = """
import argparse
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=6)
    parser.add_argument("--workers", type=int, default={workers})
    parser.add_argument("--precision", default="bf16", choices=["no", "fp16", "bf16"])
    return parser.parse_args()
def main():
    args = options()
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate, mixed_precision=args.precision)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(rows, batch_size=4, shuffle=True, num_workers=args.workers, persistent_workers=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
main()
"""
ENGINE = """
import deepspeed
engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=rows)
count = engine.gradient_accumulation_steps()
for batch in loader:
    loss = engine(batch).mean()
    loss = loss / count
    engine.backward(loss)
    engine.step()
"""
NAMED = """
import json
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
with open("run.json") as file:
    held = json.load(file)
Trainer(model=AutoModelForCausalLM.from_pretrained("org/name"), args=TrainingArguments(**held), train_dataset=rows)
"""
READS = """
import torch
from transformers import HfArgumentParser, TrainingArguments
args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
print(torch.get_float32_matmul_precision())
"""
FORKED = """
from accelerate import Accelerator, notebook_launcher
from transformers import get_cosine_schedule_with_warmup
def work():
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model0, optimizer0, loader0)
    scheduler = accelerator.prepare(get_cosine_schedule_with_warmup(optimizer, 5, 2 * len(loader)))
    for batch in loader:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
notebook_launcher(work, num_processes={count})
"""
ZERO = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}
FOUND = {
    "a command line of TRL's parser": (
        {"train.py": SFT, "go.sh": "python train.py --output_dir o --dataloader_persistent_workers True\n"},
        "persistent-workers-without-workers",
    ),
    "defaults of argparse under a command": (
        {"train.py": OWN_PARSER.format(workers=0), "go.sh": "accelerate launch train.py --precision no\n"},
        "persistent-workers-without-workers",
    ),
    "accumulation of argparse": (
        {"train.py": OWN_PARSER.format(workers=2), "go.sh": "accelerate launch train.py\n"},
        "clipping-before-sync",
    ),
    "the engine's own number under a name": (
        {"train.py": ENGINE, "ds.json": json.dumps(ZERO), "go.sh": "deepspeed train.py --deepspeed_config ds.json\n"},
        "backward-divides-already",
    ),
    "arguments of a file that the script names": (
        {"train.py": NAMED, "run.json": json.dumps({"output_dir": "o", "dataloader_persistent_workers": True})},
        "persistent-workers-without-workers",
    ),
    "processes that the script starts": (
        {"train.py": FORKED.format(count=8), "go.sh": "python train.py\n"},
        "scheduler-ticks-per-process",
    ),
    "a command of TRL": (
        {"go.sh": "trl sft --model_name_or_path org/name --dataset_name d --max_seq_length 512 --output_dir o\n"},
        "renamed-argument",
    ),
    "tf32 told on the command line": (
        {"train.py": READS, "go.sh": "python train.py --tf32 True --output_dir o\n"},
        "tf32-old-switch-read",
    ),
}
SILENT = {
    "an option that is told": (
        {"train.py": OWN_PARSER.format(workers=0), "go.sh": "accelerate launch train.py --workers 3\n"},
        "persistent-workers-without-workers",
    ),
    "no command line": ({"train.py": OWN_PARSER.format(workers=0)}, "persistent-workers-without-workers"),
    "a command line that cannot be seen": (
        {"train.py": OWN_PARSER.format(workers=0), "go.sh": 'accelerate launch train.py "$@"\n'},
        "persistent-workers-without-workers",
    ),
    "one process that the script starts": ({"train.py": FORKED.format(count=1)}, "scheduler-ticks-per-process"),
    "accumulation that is told": (
        {"train.py": OWN_PARSER.format(workers=2), "go.sh": "accelerate launch train.py --accumulate 1\n"},
        "clipping-before-sync",
    ),
}


def _codes(files: dict[str, str], folder: Path) -> set[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    return {finding.code for finding in examine_files([folder / name for name in files], gpu="A100-80GB").findings}


@pytest.mark.parametrize("name", FOUND)
def test_a_mistake_is_found_through_another_door(name: str, tmp_path: Path) -> None:
    """Whoever says it: the script, its parser's defaults, a command, a file."""
    files, code = FOUND[name]
    assert code in _codes(files, tmp_path)


@pytest.mark.parametrize("name", SILENT)
def test_what_is_unknown_or_right_is_left_alone(name: str, tmp_path: Path) -> None:
    """A default counts only where the whole command line is seen and does not say otherwise."""
    files, code = SILENT[name]
    assert code not in _codes(files, tmp_path)
