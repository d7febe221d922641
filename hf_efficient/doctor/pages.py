"""The pages of codes that no check on settings gives: of reading, silencing and probing."""

from __future__ import annotations

from collections.abc import Mapping

from hf_efficient.checks.run import BROKEN
from hf_efficient.reading.pages import PAGES as READING

OF_PROBES: Mapping[str, str] = {
    "probe-loss-scale": """The factor by which accumulation multiplies loss and gradient, tried with a real Trainer.

A tiny model of the same structure makes one update with 1 micro-batch and with several; the factor should be 1.""",
    "probe-trainable-dtype": """Trainable parameters in half precision once the model is as the run makes it.

Under fp16 AMP the gradient scaler refuses fp16 gradients; elsewhere small updates are rounded away.""",
    "probe-gradients": """Trainable parameters that reentrant checkpointing leaves without a gradient.

One backward pass of the tiny model as the run checkpoints it, beside one with use_reentrant=False.""",
    "probe-checkpointing": """Does activation checkpointing recompute anything in this run?

Forward calls of the layers are counted during a backward pass: in eval mode there are none.""",
    "probe-checkpointing-support": """The model's class does not support activation checkpointing.

Asking it for checkpointing raises ValueError when training begins.""",
    "probe-eval-mode": """Layers that are in eval mode while the run trains, dropout among them.""",
    "probe-unused-parameters": """Trainable parameters that get no gradient whatever the settings are.

DDP waits for their gradients in vain unless find_unused_parameters is on.""",
    "probe-no-backward": """The loss has no gradient: nothing that it depends on is trainable.""",
    "probe-attention": """The class does not take the attention implementation that is asked for.""",
    "probe-adapter-targets": """The adapter finds none of its target modules in this model.""",
    "probe-untied-weights": """modules_to_save copies one of two tied weights, so that they part while training.""",
    "probe-shards": """How many shards the local files have, and which rows two workers would get.""",
    "probe-own-dataset": """A dataset class of a script is not executed; lines that show what workers get.""",
    "probe-untried": """What could not be probed, and why.""",
}
PAGES: Mapping[str, str] = {
    **READING,
    **OF_PROBES,
    BROKEN: """A check of ours failed on your files; the other checks were asked all the same.""",
    "silence-unknown-code": """A code that is to be ignored is none that a finding has, so nothing is silenced.""",
    "silence-without-reason": """A finding is to be ignored, and no reason is given, so it is told all the same.

A comment `# hf-efficient: ignore[CODE] REASON` silences its line, or the next one where it stands alone; a line
`CODE = "REASON"` under [tool.hf-efficient.doctor.silence] of pyproject.toml silences the code everywhere.""",
}
"""Code to page."""
