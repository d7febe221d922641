"""Each "auto" of the DeepSpeed files is filled, by TrainingArguments and by accelerate; launched, this file does it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.checks.deepspeed_keys import BUCKETS
from hf_efficient.deepspeed_page import configs

ROOT = Path(__file__).parents[1]
HIDDEN = 64
ARGUMENTS = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_grad_norm": 0.3}
FILLED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 0.3,
    "train_batch_size": 8,
}  # fmt: skip
"""What ARGUMENTS make of the keys at the top, on one process."""
LOOPS = {
    "auto": ({}, {}),
    "auto, the Accelerator's 2": ({}, {"gradient_accumulation_steps": 2}),
    "0.0 and 2": ({"gradient_clipping": 0.0, "gradient_accumulation_steps": 2}, {}),
    "0.5 and 2, the Accelerator's 4": (
        {"gradient_clipping": 0.5, "gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 4},
    ),
}  # fmt: skip
"""What somebody writes into zero2.json, and says to the Accelerator."""
IN_FORCE = dict(zip(LOOPS, [(1.0, 1), (1.0, 2), (0.0, 2), (0.5, 2)], strict=True))


@pytest.mark.launch
def test_every_auto_is_filled(tiny: Path, tmp_path: Path) -> None:
    """By Trainer in bf16 and fp16 with the arguments' numbers, for DeepSpeed's classes; by a loop as the page says."""
    pytest.importorskip("deepspeed")
    files = configs()
    (tmp_path / "files.json").write_text(json.dumps(files))
    bin_folder = str(Path(sys.executable).parent)
    env = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    run = subprocess.run(
        [sys.executable, __file__, str(tmp_path), str(tiny)], env=env, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text())
    for name, precision in product(files, ("bf16", "fp16")):
        early, late, top, kinds, warned = said["trainer"][f"{name} {precision}"]
        stage3 = files[name]["zero_optimization"]["stage"] == 3
        assert early == (sorted(f"zero_optimization.{bucket}" for bucket in BUCKETS) if stage3 else []), name
        assert (late, top, warned) == ([], FILLED, []), name
        assert kinds == {"bf16": precision == "bf16", "fp16": precision == "fp16"}, name
    assert {name: tuple(found) for name, found in said["loop"].items()} == IN_FORCE


def _by_trainer(name: str, file: Path, precision: str) -> list[Any]:
    """Return what is "auto" after TrainingArguments and at train(), the numbers, and what DeepSpeed warns of."""
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger
    from engines import left_auto
    from torch import nn
    from transformers import LlamaConfig, TrainingArguments

    args = TrainingArguments(
        output_dir=str(file.parent), deepspeed=str(file), use_cpu=True, **{precision: True}, **ARGUMENTS
    )
    held = args.hf_deepspeed_config
    early = sorted(left_auto(held.config))
    model = nn.Module()
    model.config = LlamaConfig(hidden_size=HIDDEN)
    held.trainer_config_finalize(args, model, 10)
    warned: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    read = DeepSpeedConfig({key: value for key, value in held.config.items() if key != "steps_per_print"})
    logger.removeHandler(handler)
    kinds = {"bf16": read.bfloat16_config.enabled, "fp16": read.float16_config.enabled}
    return [early, list(left_auto(held.config)), {key: held.config[key] for key in FILLED}, kinds, warned]


def _by_loop(file: Path, tiny: str, numbers: Mapping[str, Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Return clipping and accumulation of the engine that accelerate makes."""
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import AcceleratorState, GradientState
    from transformers import AutoModelForCausalLM

    AcceleratorState._reset_state()
    GradientState._reset_state()
    config = json.loads(file.read_text()) | numbers
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), **keywords)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype="float32")
    loader = torch.utils.data.DataLoader([torch.arange(8)] * 4, batch_size=2)
    engine, *_ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    assert engine.train_micro_batch_size_per_gpu() == loader.batch_size
    return [engine.gradient_clipping(), engine.gradient_accumulation_steps()]


def _launched(folder: Path, tiny: str) -> None:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    from engines import start_deepspeed

    start_deepspeed()
    said: dict[str, Any] = {"trainer": {}}
    for name, config in json.loads((folder / "files.json").read_text()).items():
        (folder / f"{name}.json").write_text(json.dumps(config))
        for precision in ("bf16", "fp16"):
            said["trainer"][f"{name} {precision}"] = _by_trainer(name, folder / f"{name}.json", precision)
    said["loop"] = {name: _by_loop(folder / "zero2.json", tiny, *both) for name, both in LOOPS.items()}
    (folder / "said.json").write_text(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)  # gloo aborts now and then on the way out


if __name__ == "__main__":
    _launched(Path(sys.argv[1]), sys.argv[2])
