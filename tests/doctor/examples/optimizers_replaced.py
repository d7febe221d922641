"""Setups in which the checks of optimizers_replaced find their mistake, and relatives in which they stay silent."""

from __future__ import annotations

from typing import Any

ZERO = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu"}}


def own(line: str, more: str = "", arguments: str = "") -> dict[str, Any]:
    """Return a script with an optimizer of its own."""
    text = f"""import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from torch.utils.data import DataLoader
from accelerate import Accelerator
net = AutoModelForCausalLM.from_pretrained("some/checkpoint")
{line}
args = TrainingArguments(output_dir="o"{arguments})
{more}
"""
    return {"files": {"own.py": text}}


def looped(prepared: str, processes: int = 2) -> dict[str, Any]:
    """Return a loop and the command that starts it."""
    text = f"""import torch
from accelerate import Accelerator
acc = Accelerator()
data = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
{prepared}
for batch in data:
    acc.backward(net(batch).mean())
    opt.step()
    opt.zero_grad()
"""
    return {"files": {"l.py": text, "go.sh": f"accelerate launch --multi_gpu --num_processes {processes} l.py\n"}}


SGD = "o = torch.optim.SGD(net.parameters(), lr=0.1)"
GIVEN = "t = Trainer(net, args, optimizers=(o, None))"
EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "offload-replaces-optimizer": (
        [
            {"accelerator": {}, "launch": ZERO, "optimizer": {"class": "torch.optim.RMSprop", "lr": 0.1}},
            {
                "trainer": {"optim": "adafactor", "deepspeed": {}},
                "deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
            },
        ],
        [
            {"accelerator": {}, "launch": ZERO, "optimizer": {"class": "torch.optim.AdamW", "lr": 0.1}},
            {"accelerator": {}, "launch": ZERO, "optimizer": {"class": "MyOwn", "lr": 0.1}},
            {
                "accelerator": {},
                "optimizer": {"class": "SGD"},
                "deepspeed": {
                    "zero_force_ds_cpu_optimizer": False,
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                },
            },
        ],
    ),
    "trainer-optimizers-under-fsdp": (
        [
            own(SGD, GIVEN, ", fsdp=True"),
            own(
                "o = torch.optim.AdamW(net.parameters())",
                "t = Trainer(net, args, optimizers=(o, make(o)))",
                ', fsdp="full_shard"',
            ),
        ],
        [own(SGD, GIVEN), own("", "t = Trainer(net, args, optimizers=(None, None))", ", fsdp=True")],
    ),
    "optim-beside-own-optimizer": (
        [own(SGD, GIVEN, ', optim="adafactor"'), own(SGD, GIVEN, ", learning_rate=3e-4")],
        [own(SGD, GIVEN), own(SGD, GIVEN, ", learning_rate=0.1"), own("", "t = Trainer(net, args)", ', optim="sgd"')],
    ),
    "optimizer-of-an-older-model": (
        [
            own(SGD, "net = get_peft_model(net, LoraConfig())"),
            own(SGD, 'net = AutoModelForCausalLM.from_pretrained("other/checkpoint")'),
        ],
        [
            own("net = get_peft_model(net, LoraConfig())\n" + SGD),
            own(SGD, "net = get_peft_model(net, LoraConfig())\n" + SGD),
        ],
    ),
    "loader-not-prepared": (
        [looped("net, opt = acc.prepare(net, opt)"), looped("net = acc.prepare(net)\nopt = acc.prepare(opt)", 4)],
        [looped("net, opt, data = acc.prepare(net, opt, data)"), looped("net, opt = acc.prepare(net, opt)", 1)],
    ),
}
