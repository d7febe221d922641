"""How right the estimate is, as a page: published measurements, and real steps on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_efficient.memory.results import PARTS

Row = Mapping[str, Any]
JUDGED = {
    "hf-1gpu-allocated": "Trainer, one GPU",
    "hf-fsdp-allocated": "Trainer, FSDP on 2 GPUs",
    "hf-fused-allocated": "Trainer, fused kernels",
    "other-allocated": "litgpt, torchtune, torchao",
}
"""Groups of the published measurements of allocated bytes, and what they are."""


def groups(accuracy: Mapping[str, Any], reality: Mapping[str, Any]) -> str:
    """Return the table of groups: how many runs, and the median, 90th percentile and worst absolute error."""
    rows = [
        (
            words,
            f"{found['in']} of {found['rows']}",
            *(f"{found[name]:.2f} %" for name in ("median", "p90", "worst")),
        )
        for name, words in JUDGED.items()
        if (found := accuracy["groups"].get(name))
    ]
    errors = sorted(abs(row["error_percent"]) for row in reality["rows"])
    rows.append(
        (
            "ten architectures, six plans each, on a CPU",
            f"{len(errors)} of {len(errors)}",
            f"{errors[len(errors) // 2]:.2f} %",
            f"{errors[int(0.9 * (len(errors) - 1))]:.2f} %",
            f"{errors[-1]:.2f} %",
        )
    )
    return _table(("measured", "runs", "median error", "90th percentile", "worst"), rows)


def page(accuracy: Mapping[str, Any], reality: Mapping[str, Any]) -> str:
    """Return the page of `docs/measured/accuracy.json` and `docs/measured/reality.json`."""
    return "\n\n".join([*_about(), groups(accuracy, reality), *_published(accuracy), *_real(reality)]) + "\n"


def _about() -> list[str]:
    return [
        "<!-- Made by `make generate` from docs/measured/accuracy.json and docs/measured/reality.json. -->\n"
        "# The memory estimate, held against measurements",
        f"Allocated bytes: what PyTorch's `max_memory_allocated` says at the highest moment of a step, by parts: "
        f"{', '.join(PARTS)}. What the caching allocator and CUDA hold besides is not in it.",
    ]


def _published(accuracy: Mapping[str, Any]) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in accuracy["versions"].items())
    rows = [row for row in accuracy["rows"] if row["group"] in JUDGED]
    lines = [
        (row["id"], row["model"], row["setting"], _gib(row.get("published")), _gib(row.get("traced")), _signed(row),
         row.get("with", ""), "; ".join([*row["marks"], *([row["error"]] if "error" in row else [])]))
        for row in rows
    ]  # fmt: skip
    return [
        "## Published runs on GPUs",
        "Each row is traced with the release of transformers and PEFT that it was measured with, as far as its source "
        "says; torch is the installed one. Trainers of their own (litgpt, torchtune) are rebuilt from their sources. "
        "No constant is fitted.",
        f"`{accuracy['command']}`, {accuracy['date']}, commit {accuracy['commit']}, {accuracy['machine']}; "
        f"Python {accuracy['python']}, {packages}.",
        _table(("id", "model", "setting", "published GiB", "traced GiB", "error", "transformers", "remarks"), lines),
    ]


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
