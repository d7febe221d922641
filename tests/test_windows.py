"""Windows: what they count, and that one update of unequal micro-batches is the update of one big batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import hf_efficient as hf
from hf_efficient.emit.head import shifts_labels
from hf_efficient.train.items import label_items

Rows = list[dict[str, Any]]
LABELS = torch.tensor([[-100, 5, 6, 7], [5, -100, -100, -100], [5, 6, -100, 7]])


def llama(tiny: Path) -> transformers.LlamaForCausalLM:
    """Return the tiny model, training."""
    return transformers.LlamaForCausalLM.from_pretrained(tiny).train()


def vector(model: nn.Module) -> torch.Tensor:
    """Return all gradients as one vector in 64 bits."""
    return torch.cat([weight.grad.double().flatten() for weight in model.parameters() if weight.grad is not None])


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the relative L2 distance of two vectors."""
    return ((ours - theirs).norm() / theirs.norm()).item()


def big_batch(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Return the gradient of one batch of all `rows`, by torch alone."""
    model(**next(iter(DataLoader(rows, batch_size=len(rows))))).loss.backward()
    return vector(model)


@pytest.fixture(scope="module")
def unequal(rows: Rows) -> Rows:
    """Twenty rows with 1 to 15 labels, the fewest first; the first token of a row, which nothing predicts, is one."""
    there = [torch.arange(16) < 1 + number * 15 // 20 for number in range(20)]
    return [{**row, "labels": row["labels"].where(t, -100)} for row, t in zip(rows, there, strict=False)]


@pytest.mark.parametrize(
    ("batch", "shifted", "count"),
    [
        ({"labels": LABELS}, True, 5),
        ({"labels": LABELS}, False, 7),
        ({"labels": LABELS, "shift_labels": LABELS}, True, 7),
        ({"shift_labels": LABELS[:1]}, False, 3),
        ({"labels": torch.tensor([1, 0, -100])}, False, 2),
        ({"labels": torch.full((2, 4), -100)}, True, 0),
    ],
)
def test_items_are_labels_that_a_loss_counts(batch: dict[str, torch.Tensor], shifted: bool, count: int) -> None:
    """-100 is no item; a causal model predicts no row's first token; `shift_labels` are shifted already."""
    assert label_items(batch, shifted=shifted).item() == count


SMALL = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
CAUSAL = ["LlamaForCausalLM", "GPT2LMHeadModel"]
OTHERS = ["BertForMaskedLM", "BertForTokenClassification", "BertForPreTraining", "T5ForConditionalGeneration"]


@pytest.mark.parametrize("name", CAUSAL + OTHERS)
def test_labels_are_shifted_where_the_loss_shifts(name: str) -> None:
    """The first label of each row is no item exactly for those heads whose loss is the same without it."""
    head = getattr(transformers, name)
    model = head(head.config_class(**SMALL, decoder_start_token_id=0)).eval()
    tokens, labels = torch.tensor([[3, 4, 5, 6], [1, 7, 8, 2]]), torch.tensor([[1, 1, -100, 1], [0, -100, -100, 1]])
    without = labels.where(torch.arange(4) > 0, -100)
    more = {"next_sentence_label": torch.tensor([0, 1])} if "PreTraining" in name else {}
    with torch.no_grad():
        first_counts = model(tokens, labels=labels, **more).loss != model(tokens, labels=without, **more).loss
    assert shifts_labels(model) != first_counts


@pytest.mark.launch
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_shorter_last_window_counts_right(tiny: Path, unequal: Rows, steps: int) -> None:
    """Ten micro-batches in windows of 3 leave one of 1; each window is the batch of its own rows, none is thinned."""
    accelerator = hf.make_accelerator(hf.make_plan(f"gradient_accumulation({steps})"))
    model, sizes = llama(tiny), []
    prepared, loader = accelerator.prepare(model, DataLoader(unequal, batch_size=2))
    for window in hf.windows(loader, accelerator):
        batches = [window.backward(prepared(**b, num_items_in_batch=window.items).loss) for b in window]
        rows = unequal[2 * sum(sizes) : 2 * (sum(sizes) + len(batches))]
        sizes.append(len(batches))
        assert window.items.item() == max(1, sum((row["labels"][1:] != -100).sum().item() for row in rows))
        if any((row["labels"][1:] != -100).any() for row in rows):
            assert relative(vector(model), big_batch(llama(tiny), rows)) < 1e-5
        model.zero_grad()
    assert sizes == [steps] * (10 // steps) + [10 % steps] * (10 % steps > 0)


def test_gradients_are_exchanged_and_weights_move_once_per_window(tiny: Path, unequal: Rows) -> None:
    """All but a window's last micro-batch run under `no_sync` of the model, and accelerate holds its step back."""
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(4)"))
    model, steps = llama(tiny), mock.Mock()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    plain.register_step_post_hook(steps)
    prepared, optimizer, loader = accelerator.prepare(model, plain, DataLoader(unequal, batch_size=2))
    seen = []
    with mock.patch.object(accelerator, "no_sync", wraps=accelerator.no_sync) as no_sync:
        for window in hf.windows(loader, accelerator):
            for batch in window:
                window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
                optimizer.step()
                seen.append((accelerator.sync_gradients, no_sync.call_count, steps.call_count))
            optimizer.zero_grad()
            assert model.lm_head.weight.grad is None
    no, yes = False, True
    assert seen[:4] == [(no, 1, 0), (no, 2, 0), (no, 3, 0), (yes, 3, 1)]
    assert seen[4:] == [(no, 4, 1), (no, 5, 1), (no, 6, 1), (yes, 6, 2), (no, 7, 2), (yes, 7, 3)]
    assert {call.args for call in no_sync.call_args_list} == {(prepared,)}


def test_a_summed_loss_divided_by_items_does_as_well(unequal: Rows) -> None:
    """A model that takes no `num_items_in_batch` passes its summed loss / items, and the big batch comes out."""
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Embedding(128, 8), nn.Linear(8, 128)) for _ in range(2))
    other.load_state_dict(model.state_dict())

    def summed(model: nn.Module, batch: Any) -> torch.Tensor:
        logits = model(batch["input_ids"]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch["labels"].flatten(), ignore_index=-100, reduction="sum")

    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(10)"))
    prepared, loader = accelerator.prepare(model, DataLoader(unequal, batch_size=2))
    (window,) = hf.windows(loader, accelerator)
    for batch in window:
        window.backward(summed(prepared, batch) / window.items)
    whole = next(iter(DataLoader(unequal, batch_size=20)))
    (summed(other, whole) / (whole["labels"] != -100).sum()).backward()
    assert relative(vector(model), vector(other)) < 1e-5


def test_a_window_without_labels_has_no_loss(tiny: Path, rows: Rows) -> None:
    """Where every label is ignored, loss and gradient are 0 and not nan."""
    ignored = [{**row, "labels": torch.full((16,), -100)} for row in rows[:4]]
    accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(2)"))
    model = llama(tiny)
    prepared, loader = accelerator.prepare(model, DataLoader(ignored, batch_size=2))
    (window,) = hf.windows(loader, accelerator)
    for batch in window:
        loss = prepared(**batch, num_items_in_batch=window.items).loss
        window.backward(loss)
        assert loss.item() == 0
    assert vector(model).abs().max().item() == 0


def test_batches_without_labels_are_refused(tiny: Path, rows: Rows) -> None:
    """Batches that have no labels cannot be weighed, and the error says what to add."""
    accelerator = Accelerator()
    accelerator.prepare(llama(tiny))
    with pytest.raises(ValueError, match="add a `labels` key"):
        next(hf.windows(DataLoader([{"input_ids": row["input_ids"]} for row in rows]), accelerator))


def test_a_model_that_is_not_prepared_is_refused(rows: Rows) -> None:
    """Windows need the prepared model, and the error names the call that is missing."""
    with pytest.raises(ValueError, match=r"call accelerator\.prepare\(model, \.\.\.\) before it"):
        next(hf.windows(DataLoader(rows), Accelerator()))


SCRIPT = """
import os, sys
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM
import hf_efficient as hf

folder = sys.argv[1]
accelerator = hf.make_accelerator(hf.make_plan("gradient_accumulation(2)"))
model = LlamaForCausalLM.from_pretrained(f"{folder}/model").train()
before = [weight.detach().clone() for weight in model.parameters()]
plain = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(torch.load(f"{folder}/rows.pt"), batch_size=5)
prepared, optimizer, loader = accelerator.prepare(model, plain, loader)
exchanges, items = [], []

def count(_, bucket):
    exchanges.append(bucket.index())
    return allreduce_hook(None, bucket)

prepared.register_comm_hook(None, count)
for window in hf.windows(loader, accelerator):
    items.append(window.items.item())
    for batch in window:
        window.backward(prepared(**batch, num_items_in_batch=window.items).loss)
    optimizer.step()
    optimizer.zero_grad()
update = torch.cat([(b - w).detach().double().flatten() for b, w in zip(before, model.parameters())])
seen = {"update": update, "items": items, "exchanges": exchanges, "world": os.environ["WORLD_SIZE"]}
seen |= {"processes": accelerator.num_processes, "wrapped": type(prepared).__name__}
torch.save(seen, f"{folder}/{accelerator.process_index}.pt")
accelerator.wait_for_everyone()
torch.distributed.destroy_process_group()
sys.stdout.flush(), sys.stderr.flush()
os._exit(0)  # gloo sometimes aborts while the interpreter exits
"""


@pytest.fixture(scope="module")
def ranks(tiny: Path, unequal: Rows, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw of one update."""
    folder = tmp_path_factory.mktemp("two_processes")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "model").symlink_to(tiny)
    torch.save(unequal, folder / "rows.pt")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = f"--main_process_port={free.getsockname()[1]}"
    flags = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    command = [sys.executable, "-m", "accelerate.commands.launch", *flags.split(), port, "script.py", str(folder)]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(Path(hf.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.launch
def test_two_processes_make_the_update_of_one(ranks: list[dict[str, Any]], tiny: Path, unequal: Rows) -> None:
    """Two processes with unequal micro-batches move as one process does with one big batch of all rows."""
    whole = big_batch(llama(tiny), unequal)
    labels = sum((row["labels"][1:] != -100).sum().item() for row in unequal)
    for seen in ranks:
        assert (seen["world"], seen["processes"], seen["wrapped"]) == ("2", 2, "DistributedDataParallel")
        assert seen["items"] == [labels]
        assert relative(seen["update"], whole) <= 1e-5
    assert torch.equal(ranks[0]["update"], ranks[1]["update"])


@pytest.mark.launch
def test_two_processes_exchange_gradients_once(ranks: list[dict[str, Any]]) -> None:
    """A window of two micro-batches costs one exchange of gradients, of one bucket here."""
    assert [seen["exchanges"] for seen in ranks] == [[0], [0]]
