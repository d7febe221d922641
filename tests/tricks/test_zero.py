"""DeepSpeed's engine runs with the plan's stage, clipping and accumulation; launched, this file is the script.

Offload is not run here: its optimizer takes minutes to compile, and pinned memory needs an accelerator. Its keys are
held against DeepSpeed's own schema instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import LAUNCHED_DOORS, load, train

from hf_efficient import Machine, make_plan
from hf_efficient.emit.deepspeed import deepspeed_json

VARIANTS = ["zero(1)", "zero(3)", "zero(3, 'optimizer')", "zero(3, 'all')", "zero(2, 'optimizer')"]

NAMES = ("batch_size(4)", "gradient_accumulation(2)", "gradient_clipping(0.25)")
ENGINE = {"engine": "DeepSpeedEngine", "stage": 2, "clipping": 0.25, "accumulation": 2, "micro_batch": 4, "updates": 3}
# The launcher's own default is stage 2 as well, with buckets of 500 million.
ENGINE |= {"buckets": [200_000_000, 200_000_000]}
VARIANTS = {
    "zero(1)": (1, None, None),
    "zero(2)": (2, None, None),
    "zero(2, offload='optimizer')": (2, "cpu", None),
    "zero(3)": (3, None, None),
    "zero(3, offload='optimizer')": (3, "cpu", None),
    "zero(3, offload='all')": (3, "cpu", "cpu"),
}
FILLED = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
FILLED |= {"gradient_clipping": 0.25, "enabled": False}


def fill(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a DeepSpeed configuration with every "auto" replaced by a number, as transformers would."""
    return {
        key: fill(value) if isinstance(value, dict) else FILLED.get(key, 4096) if value == "auto" else value
        for key, value in tree.items()
    }


@pytest.mark.parametrize(("name", "expected"), VARIANTS.items())
def test_deepspeed_reads_the_json(name: str, expected: tuple[Any, ...]) -> None:
    """DeepSpeed's schema takes the JSON once "auto" is filled, and reads stage and offload from it."""
    config = pytest.importorskip("deepspeed.runtime.config").DeepSpeedConfig(
        fill(json.loads(deepspeed_json(make_plan(name))))
    )
    zero = config.zero_config
    devices = [offload and offload.device for offload in (zero.offload_optimizer, zero.offload_param)]
    assert (zero.stage, *devices) == expected
    assert (config.gradient_clipping, config.gradient_accumulation_steps) == (0.25, 2)


def test_offload_of_weights_needs_stage_3() -> None:
    """Weights that no stage shards cannot be offloaded, and a missing DeepSpeed is named with how to install it."""
    with pytest.raises(ValueError, match=r"only stage 3 shards weights. Take zero\(3, offload='all'\)"):
        make_plan("zero(2, offload='all')")
    [sentence] = make_plan("zero").unmet(replace(Machine.named("T4"), packages={}))
    assert "pip install 'hf-efficient[deepspeed]'" in sentence


@LAUNCHED_DOORS
@pytest.mark.launch
def test_engine_trains_as_the_plan_says(door: str, tiny: Path, rows: list[Any], tmp_path: Path) -> None:
    """Under the launcher the model is a DeepSpeedEngine with the plan's numbers and ends where a plain run ends."""
    pytest.importorskip("deepspeed")
    bin_folder, root = str(Path(sys.executable).parent), str(Path(__file__).parents[2])
    env = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": root}  # DeepSpeed looks for ninja
    torch.save(rows, tmp_path / "rows.pt")
    command = "-m accelerate.commands.launch --use_deepspeed --num_processes 1 --num_machines 1 --mixed_precision no"
    script = [__file__, door, str(tiny), str(tmp_path)]
    process = subprocess.run(
        [sys.executable, *command.split(), "--dynamo_backend", "no", *script], env=env, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert json.loads((tmp_path / "engine.json").read_text()) == ENGINE
    plain = train(door, make_plan(*NAMES), load(tiny), rows, updates=3).model.lm_head.weight
    assert torch.allclose(torch.load(tmp_path / "head.pt"), plain, rtol=0, atol=1e-6)


def _launched(door: str, tiny: str, folder: Path) -> None:
    run = train(door, make_plan(*NAMES, "zero(2)"), load(Path(tiny)), torch.load(folder / "rows.pt"), updates=3)
    engine = run.trained
    seen = {"engine": type(engine).__name__, "stage": engine.zero_optimization_stage()}
    seen |= {"clipping": engine.gradient_clipping(), "accumulation": engine.gradient_accumulation_steps()}
    seen |= {"micro_batch": engine.train_micro_batch_size_per_gpu(), "updates": engine.global_steps}
    seen |= {"buckets": [engine.zero_reduce_bucket_size(), engine.zero_allgather_bucket_size()]}
    (folder / "engine.json").write_text(json.dumps(seen))
    torch.save(run.model.lm_head.weight.detach(), folder / "head.pt")


if __name__ == "__main__":
    _launched(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
