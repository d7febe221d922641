"""Accumulation on two processes: each head's update is that of one big batch of all processes' rows."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import HEADS
from trained import assert_equal, big_batch, model_of

import hf_efficient as hf

SCRIPT = """
import copy, os, sys
from pathlib import Path
{first}
import torch
from torch.utils.data import DataLoader
import hf_efficient as hf
from heads import HEADS
from losses import Stream
from trained import model_of, trainer_of, update_of, weights

folder, seen = Path(sys.argv[1]), {{}}
rank = int(os.environ["RANK"])

def trained(name, average, called, rows, stream=False, **more):
    data = Stream(rows) if stream else rows
    order = {{"train_sampling_strategy": "random"}} if stream else {{}}
    trainer = trainer_of(model_of(HEADS[name].build), data, folder, per_device_train_batch_size=2,
                         gradient_accumulation_steps=2, average_tokens_across_devices=average, **order, **more)
    first = hf.exact_accumulation(trainer) if called else None
    update = update_of(trainer)
    return update, called and str(hf.exact_accumulation(trainer))

def looped(name, rows):
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(2)", "gradient_clipping(1000)"))
    model = model_of(HEADS[name].build)
    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=2))
    items = []
    for window in hf.windows(loader, accelerator):
        items.append(window.items.item())
        for batch in window:
            more = {{"num_items_in_batch": window.items}} if name in {taking} else {{}}
            window.backward(prepared(**batch, **more).loss)
        optimizer.step()
        optimizer.zero_grad()
    return before - weights(accelerator.unwrap_model(prepared)), items, type(prepared).__name__

{body}
torch.save(seen, folder / f"{{rank}}.pt")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
sys.stdout.flush(), sys.stderr.flush()
os._exit(0)  # gloo sometimes aborts while the interpreter exits
"""
NAMES = ("llama", "gpt2", "bert", "roberta", "regression", "answers", "t5")
TRAINED = """
for name in {names}:
    rows = HEADS[name].rows()[:8]
    for average in (True, False):
        seen[name, average] = trained(name, average, True, list(rows))
    seen[name, "stock"] = trained(name, True, False, list(rows))
    seen[name, "stream"] = trained(name, True, True, list(rows), stream=True)
"""
LOOPED = "for name in {names}: seen[name] = looped(name, HEADS[name].rows()[:8])"
APART = """
from losses import Read, Waiting, without_a_key
rows = HEADS["bert"].rows()[:8]
rows[1]["labels"] = rows[1]["labels"].where(rows[1]["labels"] != -100, 3)
rows[0]["input_ids"][0], rows[1]["input_ids"][0] = 3, 4
for kind, collate in (("labels", None), ("keys", without_a_key)):
    trainer = trainer_of(model_of(HEADS["bert"].build), Read(rows[:2]), folder, kind=Waiting, data_collator=collate,
                         per_device_train_batch_size=1, average_tokens_across_devices=False)  # stock waits for labels
    hf.exact_accumulation(trainer)
    seen[kind] = update_of(trainer), str(hf.exact_accumulation(trainer))
"""
SHARDED = "from accelerate import PartialState; PartialState(cpu=True)"


def launched(
    folder: Path, body: str, *flags: str, first: str = "", names: Sequence[str] = NAMES
) -> list[dict[Any, Any]]:
    """Return what each of two processes saw."""
    body = body.format(names=names)
    (folder / "script.py").write_text(SCRIPT.format(first=first, body=body, taking=NAMES))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = f"--main_process_port={free.getsockname()[1]}"
    common = "--num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    command = [sys.executable, "-m", "accelerate.commands.launch", *flags, *common.split(), port, "script.py"]
    path = os.pathsep.join([str(Path(hf.__file__).parents[1]), str(Path(__file__).parent)])
    # With it, accelerate drops DeepSpeed in silence.
    env = {**os.environ, "PYTHONPATH": path} | ({} if first else {"ACCELERATE_USE_CPU": "true"})
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])  # DeepSpeed looks for ninja there
    done = subprocess.run([*command, str(folder)], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def whole(name: str) -> torch.Tensor:
    """Return the gradient of one big batch of the rows that the processes shared."""
    return big_batch(model_of(HEADS[name].build), HEADS[name].rows()[:8])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What two processes of Trainer saw."""
    return launched(tmp_path_factory.mktemp("trained"), TRAINED, "--multi_gpu")


@pytest.mark.launch
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_of_trainer_make_one_big_batch(name: str, trained: list[dict[Any, Any]]) -> None:
    """With the average over processes on and off, and from a stream, both processes make the big batch's update."""
    factor = {"llama": 1, "gpt2": 0.9, "answers": 1}.get(name, 4)
    for seen in trained:
        for kind in (True, False, "stream"):
            assert_equal(seen[name, kind][0], whole(name))
        assert (seen[name, "stock"][0].norm() / whole(name).norm()).item() == pytest.approx(factor, rel=0.2)
    if name == "bert":
        assert "by 4 (2 accumulation steps times 2 processes)" in trained[0][name, True][1]
        assert "by 2 (2 accumulation steps)" in trained[0][name, False][1]
    assert ("Nothing had to be changed" in trained[0][name, True][1]) == (name == "llama")


@pytest.mark.launch
@pytest.mark.parametrize("engine", ["DistributedDataParallel", "DeepSpeedEngine"])
def test_two_processes_of_windows_make_one_big_batch(engine: str, tmp_path: Path) -> None:
    """Under DDP and ZeRO-2, one line of a loop makes the big batch's update for every head."""
    sharded = engine == "DeepSpeedEngine"
    flags = ("--use_deepspeed", "--zero_stage", "2") if sharded else ("--multi_gpu",)
    names = ("bert",) if sharded else NAMES  # DeepSpeed allows one Accelerator per process
    for seen in launched(tmp_path, LOOPED, *flags, first=SHARDED if sharded else "", names=names):
        for name in names:
            update, items, kind = seen[name]
            assert (kind, len(items)) == (engine, 1)
            assert_equal(update, whole(name))


@pytest.mark.slow
def test_processes_with_different_batches_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """A loss that waits for all processes is tried as often in each, whatever is in their batches, and told alike."""
    first, second = launched(tmp_path, APART, "--multi_gpu", names=())
    for kind in ("labels", "keys"):
        assert torch.equal(first[kind][0], second[kind][0])
        assert first[kind][1] == second[kind][1]
    assert_equal(first["labels"][0], whole_of_two())
    assert "batches of different kinds. Nothing was changed." in first["keys"][1]


def whole_of_two() -> torch.Tensor:
    """Return the gradient of the two rows of APART in one batch."""
    rows = HEADS["bert"].rows()[:2]
    rows[1]["labels"] = rows[1]["labels"].where(rows[1]["labels"] != -100, 3)
    rows[0]["input_ids"][0], rows[1]["input_ids"][0] = 3, 4
    return big_batch(model_of(HEADS["bert"].build), rows)
