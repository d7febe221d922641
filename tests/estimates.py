"""Made-up estimates of realistic shape, for the tests of tables and pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hf_efficient.memory.results import GIB, PARTS, Batch, CardFit, Estimate, Timeline

LABEL = "the fp32 logits of the loss"
SECONDS = {"products": 1.0, "attention": 0.2, "moving": 0.5, "waiting": 0.1, "update": 0.2, "exchange": 0.0}


def step(*, layers: int = 28, scale: float = 1.0, peak: str = "loss", per_layer: int = 8) -> Timeline:
    """Return a step of a small language model: forward, backward with recomputing, clipping, optimizer.

    `peak` is where it lies: at the loss, at the very first moment, or at the very last one.
    """
    rows: list[tuple[str, tuple[float, ...]]] = []
    saved = 0.0
    for layer in range(layers * per_layer):
        saved += 0.12 / per_layer
        rows.append(("forward", (1.11, 0, 2.22, saved, 0, 0.1 * (layer % per_layer))))
    rows += [("forward", (1.11, 0, 2.22, saved, 2.3 * k, 0.2)) for k in (1, 2, 2)]
    rows += [("backward", (1.11, 0.3, 2.22, saved, 4.6, 0.9))]
    for layer in range(layers * per_layer):
        saved -= 0.12 / per_layer
        done = (layer + 1) / (layers * per_layer)
        phase = "recompute" if layer % per_layer < per_layer // 3 else "backward"
        rows.append((phase, (1.11, 0.3 + 0.8 * done, 2.22, max(saved, 0), 0, 0.15 * (layer % per_layer))))
    rows += [("clipping", (1.11, 1.11, 2.22, 0, 0, 0.05))] * 6
    rows += [("optimizer", (1.11, 1.11, 2.22, 0, 0, 0.02 * k)) for k in range(12)]
    if peak == "first":
        rows[0] = ("forward", (1.11, 0, 2.22, 0, 0, 14))
    if peak == "last":
        rows[-1] = ("optimizer", (1.11, 1.11, 2.22, 0, 0, 14))
    columns = list(zip(*(row for _, row in rows), strict=True))
    parts = {part: [int(v * scale * GIB) for v in column] for part, column in zip(PARTS, columns, strict=True)}
    sums = [sum(row) for _, row in rows]
    return Timeline(parts=parts, phases=[phase for phase, _ in rows], peak=sums.index(max(sums)), label=LABEL)


def estimate(*, timeline: Timeline | None = None, **others: Any) -> Estimate:
    """Return the estimate of a step, by default one that was asked without a card."""
    timeline = timeline or step()
    breakdown = {part: timeline.parts[part][timeline.peak] / GIB for part in PARTS}
    allocated = sum(breakdown.values())
    known = Estimate(
        model="Qwen/Qwen3-0.6B",
        plan="bf16, tf32, activation_checkpointing, adamw_8bit, gradient_clipping(1.0), data_loading",
        batch=Batch(size=8, seq_len=2048),
        params=596_049_920,
        trainable_params=596_049_920,
        allocated_gib=allocated,
        reserved_gib=allocated * 1.04,
        breakdown=breakdown,
        peak_at=timeline.label,
        moments={"forward": 0.9 * allocated, "backward": allocated, "clipping": 0.36 * allocated},
        assumptions=("the CUDA context takes 0.50 GiB", "the allocator keeps 4 % in its cache"),
        cards=[CardFit(gpu, fits) for gpu, fits in (("T4", False), ("RTX 4090", True), ("L40S", True), ("H100", True))],
        timeline=timeline,
    )
    return replace(known, **others)


def on_card(known: Estimate, *, gpu: str = "RTX 4090", capacity: float = 22.5) -> Estimate:
    """Return the estimate as it is when that card was asked about."""
    known = replace(known, beside_gib={"CUDA's context": 0.5})
    margin = capacity - known.taken_gib
    changes = () if margin >= 0 else ("halve the batch to 4 rows: 9.10 GiB", "add fused_loss: 8.70 GiB")
    known = replace(known, step_s=2.0, tokens_per_s=4096.0, mfu=0.4, seconds=SECONDS, device_gib=known.taken_gib + 1.0)
    return replace(
        known, gpu=gpu, capacity_gib=capacity, margin_gib=margin, fits=margin >= 0, changes=changes, cards=()
    )
