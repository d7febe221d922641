"""What happens beside the training step: evaluation, and going on from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory.build import faked
from hf_efficient.memory.figures import logits_bytes
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.quantize import dequantizing
from hf_efficient.memory.reading import Run
from hf_efficient.memory.results import Batch
from hf_efficient.memory.step import Step, passed_forward
from hf_efficient.memory.values import Values


def evaluation(model: nn.Module, run: Run, batch: Batch, how: Step, gpus: int = 1) -> tuple[int, int]:
    """Return the highest bytes of an evaluation beside weights and optimizer state, and those of kept logits in them.

    With `batch.eval_rows` its logits are kept until metrics are computed, on each rank those of all of them.

    Trainer joins each batch's logits to those before it, so that both copies are there for a moment
    (transformers.trainer_pt_utils.EvalLoopContainer).
    """
    size = batch.eval_size or run.eval_size
    size = min(size, -(-batch.eval_rows // gpus)) if batch.eval_rows else size
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    faked(model.eval(), mode)
    with mode, Values():
        inputs = batch_for(model, replace(batch, size=size))
    with dequantizing(model):
        peak, logits = passed_forward(model, inputs, how, mode)
    if not batch.eval_rows or logits is None:
        return peak, 0
    rows = min(batch.eval_rows, size * gpus * (run.kept_on_host_every or batch.eval_rows))
    dtype, length = str(logits.dtype), max(1, logits.numel() // size // logits.shape[-1])
    all_rows = logits_bytes(rows, length, logits.shape[-1], dtype)
    before = all_rows - logits_bytes(min(size * gpus, rows), length, logits.shape[-1], dtype)
    joined = 2 * all_rows if before else all_rows
    return max((before + peak, before), (joined, joined))
