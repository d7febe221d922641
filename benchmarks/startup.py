"""Start-up of the commands that plan, and of the doctor on four files, against typer and one rich table.

All of them by turns in one run.

    python benchmarks/startup.py [repeats]

Prints medians and the spread in milliseconds, and each command as a multiple of the reference. Exit code 1 when a
multiple is above 4, or the doctor's above 6.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

REFERENCE = [sys.executable, "-c", "import typer, rich.table"]
COMMANDS = {
    "list tricks": ["list", "tricks"],
    "explain": ["explain", "zero"],
    "plan": ["plan", "fast"],
    "emit": ["emit", "training-args", "fast"],
}
LIMIT = 4.0
FILES = {
    "train.py": """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

args = TrainingArguments("out", deepspeed="ds.json", bf16=True, warmup_ratio=0.1, gradient_accumulation_steps=8)
model = AutoModelForCausalLM.from_pretrained("gpt2")
Trainer(model=model, args=args, train_dataset=[]).train()
""",
    "loop.py": """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader([]))
for batch in loader:
    accelerator.backward(model(batch).sum() / 4)
    optimizer.step()
    optimizer.zero_grad()
""",
    "ds.json": '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}',
    "launch.yaml": "distributed_type: MULTI_GPU\nnum_processes: 2\n",
}
DOCTOR_LIMIT = 6.0


def seconds(command: list[str]) -> float:
    """Return how long a command takes."""
    start = time.perf_counter()
    run = subprocess.run(command, capture_output=True)
    # the doctor's 1 says that it found something
    assert run.returncode == 0 or (run.returncode == 1 and not run.stderr), (command, run.stderr)
    return time.perf_counter() - start


def main(repeats: int) -> int:
    """Time every command by turns with the reference, and say each as a multiple of it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            (Path(folder) / name).write_text(text)
        paths = {name: str(Path(folder) / name) for name in FILES}
        own = {f"doctor {name}": ["doctor", path] for name, path in paths.items()}
        return measured(COMMANDS | own | {"doctor, all": ["doctor", *paths.values()]}, repeats)


def measured(commands: dict[str, list[str]], repeats: int) -> int:
    """Print a line for each command; 1 where one is over its limit."""
    arms = {"reference": REFERENCE} | {name: [sys.executable, "-m", "hf_efficient", *c] for name, c in commands.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats + 1):
        for name, command in arms.items():
            times[name].append(seconds(command))
    base = median(times["reference"][1:])
    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {repeats} repeats")
    over = False
    for name, taken in times.items():
        taken = sorted(taken[1:])  # the first round fills the caches
        multiple = median(taken) / base
        over |= multiple > (DOCTOR_LIMIT if name.startswith("doctor") else LIMIT)
        low, middle, high = (value * 1e3 for value in (taken[0], median(taken), taken[-1]))
        print(f"{name:<18} {middle:6.0f} ms ({low:.0f} to {high:.0f})  {multiple:.2f} x")
    return int(over)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
