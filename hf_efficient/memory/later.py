"""What happens beside the training step: evaluation, and going on from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_efficient.memory.build import faked
from hf_efficient.memory.inputs import batch_for
from hf_efficient.memory.quantize import dequantizing
from hf_efficient.memory.reading import Run
from hf_efficient.memory.results import Batch
from hf_efficient.memory.step import passed_forward


def evaluation(model: nn.Module, run: Run, batch: Batch, standing: Mapping[str, int]) -> int:
    """Return the highest bytes of an evaluation; with `batch.eval_rows` its logits are kept until metrics are computed.

    Trainer joins each batch's logits to those before it, so that both copies are there for a moment
    (transformers.trainer_pt_utils.EvalLoopContainer). Weights and optimizer state stay on the card.
    """
    size = batch.eval_size or run.eval_size
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    faked(model.eval(), mode)
    autocast = getattr(torch, run.autocast) if run.autocast else None
    with mode, dequantizing():
        inputs = batch_for(model, replace(batch, size=size))
        peak, logits = passed_forward(model, inputs, autocast, mode)
    kept = 0
    if batch.eval_rows:
        rows = min(batch.eval_rows, size * (run.kept_on_host_every or batch.eval_rows))
        each = logits / size
        before, whole = max(0, rows - size), rows
        kept = int(max(before * each + peak, (before + size + (whole if before else 0)) * each))
    return sum(standing.values()) - standing.get("gradients", 0) + max(peak, kept)


def resumed(standing: Mapping[str, int]) -> int:
    """Return the highest bytes while Trainer goes on from a checkpoint: the state is on the card once.

    Weights are read to the host and copied, and so is the optimizer's state where there is one process; with several,
    each reads its state to its card first, where it is copied (transformers.Trainer._load_optimizer_and_scheduler).
    """
    return sum(standing.values()) - standing.get("gradients", 0)
