"""How right the estimate is, as a page: published measurements, and real steps on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from hf_efficient.memory.results import PARTS

Row = Mapping[str, Any]
ALLOCATED = {
    "hf-1gpu-allocated": "Trainer, one GPU",
    "hf-fsdp-allocated": "Trainer, FSDP on 2 GPUs",
    "hf-fused-allocated": "Trainer, fused kernels",
    "other-allocated": "litgpt, torchtune, torchao",
}
"""Groups of the published measurements of allocated bytes, and what they are."""
HELD = {
    "nvidia-smi": "nvidia-smi of the runs on one GPU above",
    "reserved": "reserved bytes, other runs",
    "device": "nvidia-smi, other runs",
}
"""Groups of what a process holds of the card."""
GROUPS = {
    **{name: f"allocated: {words}" for name, words in ALLOCATED.items()},
    **HELD,
    "speed": "seconds of a step, each source predicted without itself",
}


def groups(accuracy: Mapping[str, Any], reality: Mapping[str, Any]) -> str:
    """Return the table of groups: how many runs, and the median, 90th percentile and worst absolute error."""
    rows = [
        (
            words,
            f"{found.get('in', found['rows'])} of {found['rows']}",
            *(f"{found[name]:.2f} %" for name in ("median", "p90", "worst")),
        )
        for name, words in GROUPS.items()
        if "median" in (found := accuracy["groups"].get(name, {}))
    ]
    errors = sorted(abs(row["error_percent"]) for row in reality["rows"])
    rows.append(
        (
            "allocated: ten architectures, six plans each, on a CPU",
            f"{len(errors)} of {len(errors)}",
            f"{errors[len(errors) // 2]:.2f} %",
            f"{errors[int(0.9 * (len(errors) - 1))]:.2f} %",
            f"{errors[-1]:.2f} %",
        )
    )
    table = _table(("measured", "runs", "median error", "90th percentile", "worst"), rows)
    return "\n\n".join([table, *_counts(accuracy["groups"])])


def _counts(found: Mapping[str, Any]) -> list[str]:
    """Return what was right of the questions that have two answers."""
    said = []
    if fit := found.get("fit"):
        said.append(
            f"Of {fit['full']} published runs that ran out of memory {fit['full_right']} are said not to fit, and of "
            f"{fit['ran']} that went through {fit['ran_right']} are said to fit."
        )
    if speed := found.get("speed"):
        said.append(
            f"Of {speed['pairs']} pairs of runs of one model on the same cards, whose speeds differ by more than 5 %, "
            f"{speed['pairs_right']} are in the right order."
        )
    return [" ".join(said)] if said else []


def page(accuracy: Mapping[str, Any], reality: Mapping[str, Any]) -> str:
    """Return the page of `docs/measured/accuracy.json` and `docs/measured/reality.json`."""
    parts = (_about(), [groups(accuracy, reality)], _published(accuracy), _held(accuracy), _timed(accuracy))
    return "\n\n".join([*chain(*parts), *_real(reality)]) + "\n"


def _about() -> list[str]:
    return [
        "<!-- Made by `make generate` from docs/measured/accuracy.json and docs/measured/reality.json. -->\n"
        "# The memory estimate, held against measurements",
        f"Allocated bytes: what PyTorch's `max_memory_allocated` says at the highest moment of a step, by parts: "
        f"{', '.join(PARTS)}. Reserved bytes: what PyTorch's caching allocator holds, by a replay of the step's "
        "allocations. nvidia-smi: those, CUDA's context, NCCL's buffers and what the driver shows besides. Seconds: "
        "each kernel against the card's ceilings, in shares of them that were found on published speeds.",
    ]


def _published(accuracy: Mapping[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in accuracy["versions"].items())
    rows = [row for row in accuracy["rows"] if row["group"] in ALLOCATED]
    lines = [
        (row["id"], row["model"], row["setting"], _gib(row.get("published")), _gib(row.get("traced")), _signed(row),
         row.get("with", ""), _remarks(row))
        for row in rows
    ]  # fmt: skip
    return [
        "## Allocated bytes of published runs",
        "Each row is traced with the release of transformers and PEFT that it was measured with, as far as its source "
        "says; torch is the installed one. Trainers of their own (litgpt, torchtune) are rebuilt from their sources. "
        "No constant is fitted.",
        f"`{accuracy['command']}`, {accuracy['date']}, commit {accuracy['commit']}, {accuracy['machine']}; "
        f"Python {accuracy['python']}, {packages}.",
        _table(("id", "model", "setting", "published GiB", "traced GiB", "error", "transformers", "remarks"), lines),
    ]


def _held(accuracy: Mapping[str, Any]) -> list[str]:
    rows = [row for row in accuracy["rows"] if row["group"] in HELD]
    lines = [
        (row["id"], row["group"], row["model"], row["setting"], row["gpu"], _gib(row.get("published")),
         _gib(row.get("reserved" if row["group"] == "reserved" else "device")), _signed(row), _remarks(row))
        for row in rows
    ]  # fmt: skip
    ended = [row for row in accuracy["rows"] if row["group"] == "fit"]
    fits = [
        (row["id"], row["model"], row["setting"], row["gpu"], _gib(row.get("traced")), _gib(row.get("reserved")),
         {True: "fits", False: "does not fit"}.get(row.get("fits"), ""), "ran" if row["ran"] else "out of memory",
         _remarks(row))
        for row in ended
    ]  # fmt: skip
    return [
        "## Reserved bytes and nvidia-smi of published runs",
        _table(
            ("id", "figure", "model", "setting", "card", "published GiB", "predicted GiB", "error", "remarks"), lines
        ),
        "## Published runs at the limit of a card",
        _table(("id", "model", "setting", "card", "allocated", "reserved", "said", "was", "remarks"), fits),
    ]


def _timed(accuracy: Mapping[str, Any]) -> list[str]:
    rows = [row for row in accuracy["rows"] if row.get("predicted_s")]
    lines = [
        (row["id"], row["model"], row["setting"], row["gpu"], f"{row['published_s']:.3f}", f"{row['predicted_s']:.3f}",
         f"{100 * (row['predicted_s'] / row['published_s'] - 1):+.1f} %", "; ".join(row["marks"]))
        for row in rows
    ]  # fmt: skip
    return [
        "## Published speeds",
        "Seconds of one update on one GPU, predicted with shares of the card's ceilings that were found on all other "
        "sources: the figures say how far to trust an estimate for a trainer that nobody measured.",
        _table(("id", "model", "setting", "card", "published s", "predicted s", "error", "remarks"), lines),
    ]


def _remarks(row: Row) -> str:
    return "; ".join([*row["marks"], *([row["error"]] if "error" in row else [])])


def _real(reality: Mapping[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in reality["packages"].items())
    lines = [
        (row["architecture"], row["plan"], f"{row['real_gib']:.4f}", f"{row['traced_gib']:.4f}", _signed(row),
         row["peak_at"])
        for row in reality["rows"]
    ]  # fmt: skip
    return [
        "## Real steps on a CPU",
        "The second step of training with real weights, its peak by torch's MemTracker, against the same step traced "
        "without the imitation of CUDA's kernels.",
        f"`{reality['command']}`, {reality['date']}, commit {reality['commit']}, {reality['machine']}; "
        f"Python {reality['python']}, {packages}.",
        _table(("architecture", "plan", "real GiB", "traced GiB", "error", "peak"), lines),
    ]


def _gib(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else ""


def _signed(row: Row) -> str:
    return f"{row['error_percent']:+.2f} %" if row.get("error_percent") is not None else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in cells)
