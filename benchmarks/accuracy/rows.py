"""The table of published measurements: what each row says of a run."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "../shared/measurements/published_training_measurements.csv"
JUDGED = ("hf-1gpu-allocated", "hf-fsdp-allocated", "hf-fused-allocated", "other-allocated")
"""Groups whose figure is torch's peak of allocated bytes, which is what the tracer says."""
SHOWN = ("reserved", "device", "fit", "speed")
"""Groups of what follows from the trace: the allocator's bytes, nvidia-smi's, whether it fits, and times."""
SILENT = "4.48.1"
"""Of a row that names no release of transformers."""
SOURCES = {"requirements_granite.txt": ("4.45.0", "0.12.0")}
"""File that a row's notes name instead of a release -> transformers and peft in it, as fms-acceleration has it."""
PEFT = "0.13.2"
SHORTER = "rows are shorter than seq"
"""Mark of rows whose batches differ in length; the table's is the longest."""
TRAINERS = ("llm-foundry", "torchtitan", "torchtune", "litgpt")
"""Whose own model code is imitated, as sources and notes name them."""
OWN = ("llm-foundry", "torchtitan", "karpathy")
"""Those whose rows need no release of transformers."""
LOWEST = "4.45.0"
"""The lowest release that releases.py installs."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row; GiB are 2**30 bytes."""

    id: str
    group: str
    model: str
    published: float | None
    dtype: str
    """Of the weights as loaded; of 4-bit weights, of those that stay."""
    autocast: str | None
    batch: int
    seq: int
    accumulation: int
    checkpointing: bool
    offload: bool
    optimizer: str
    attention: str
    lora_r: int
    lora_targets: tuple[str, ...]
    saved: bool
    """Embeddings and head are trained as a whole beside the adapters."""
    four_bits: bool
    double: bool
    ranks: int
    sharded: bool
    host: bool
    ddp: bool
    gpu: str
    kernels: str
    notes: str
    source: str
    transformers: str
    peft: str
    marks: tuple[str, ...] = field(default=())
    silent: bool = False
    """Whether the table names no release, and its notes name one: the row is traced with SILENT as well."""
    ran: bool | None = None
    """Of a row of the group `fit`: False where it ran out of memory."""
    selective: str = ""
    """What is checkpointed where not every layer is: `every 2nd layer`, or `per-op`."""
    tokens_per_s: float | None = None
    """Of one GPU; of rows of tokens, the longest that a batch could have."""
    mfu: float | None = None
    nvidia_smi: float | None = None
    """GiB that nvidia-smi shows, of rows whose figure is another."""
    """Percent."""

    @property
    def varies(self) -> bool:
        """Say whether batches differ in length."""
        return SHORTER in self.marks

    @property
    def trainer(self) -> str:
        """Return whose model code and loop the row ran."""
        if self.source.startswith("karpathy"):
            return "karpathy"
        said = f"{self.source} {self.notes}".lower()
        return next((name for name in TRAINERS if name in said), "Trainer")

    @property
    def unlike(self) -> str:
        """Return why a row's own code is not imitated, or nothing."""
        if self.trainer == "torchtune" and self.sharded:
            return "torchtune's FSDP is not imitated"
        if self.host:
            return "FSDP1 with offloaded weights has no estimate"
        return ""

    def checkpointed(self, layer: int) -> str:
        """Return what of a layer is computed again: `all`, what is not kept `per-op`, or nothing."""
        if self.selective == "per-op":
            return self.selective
        return "all" if self.checkpointing or (self.selective and layer % 2 == 0) else ""

    @property
    def setting(self) -> str:
        """Return in a few words what was run."""
        said = [
            f"{self.batch}x{self.seq}",
            "nf4" if self.four_bits else self.dtype.replace("float", "f").replace("bf", "bf"),
        ]
        said += [f"amp {self.autocast}"] if self.autocast else []
        said += [f"lora r{self.lora_r} {','.join(self.lora_targets)}"] if self.lora_r else ["full"]
        said += ["ckpt"] if self.checkpointing else [f"ckpt {self.selective}"] if self.selective else []
        said += [f"fsdp {self.ranks}"] if self.sharded else []
        said += [self.kernels] if self.kernels else []
        return " ".join(said)


def read(table: Path) -> list[Row]:
    """Return every row of a group that is judged or shown. Raises SystemExit where there is no table."""
    if not table.is_file():
        raise SystemExit(
            f"There is no table {table}: write ROWS=FILE, of the columns that shared/measurements/README.md names."
        )
    with table.open(newline="") as file:
        return [row(columns) for columns in csv.DictReader(file) if columns["group"] in (*JUDGED, *SHOWN)]


def row(columns: dict[str, str]) -> Row:
    """Return what a line of the table says."""
    notes, quantized = columns["notes"], columns["quant"] not in ("none", "")
    release, peft, marks = _releases(columns)
    named = next((name for name in DTYPES if columns["weights_dtype"].startswith(name)), "")
    dtype = DTYPES.get(named or notes.split("+")[0], "bfloat16")  # of 4-bit rows the notes may name what computes
    amp = next((DTYPES[name] for name in ("bf16", "fp16") if columns["amp"].startswith(name)), None)
    stage = columns["zero_stage"]
    kind = re.search(r"selective \((.+)\)", columns["ckpt"])
    return Row(
        id=columns["id"],
        group=columns["group"],
        model=columns["model"],
        published=_gib(columns),
        dtype=dtype,
        autocast=None if columns["amp"].startswith("no") else amp,
        batch=_number(columns["batch"], 1),
        seq=_number(columns["seq"], 0),
        accumulation=_number(columns["accum"], 1),
        checkpointing=columns["ckpt"].startswith("yes"),
        offload="offload" in columns["ckpt"],
        optimizer=columns["optimizer"],
        attention=columns["attn"],
        lora_r=_number(columns["lora_r"], 0),
        lora_targets=tuple(t for t in re.split(r" \(|\(|\+", columns["lora_targets"])[0].strip().split(",") if t),
        saved="embed/lm_head trained" in columns["peft"],
        four_bits=quantized and "4" in columns["quant"] and "fp8" not in columns["quant"],
        double="dq" in columns["quant"],
        ranks=_number(columns["n_gpu"], 1),
        sharded=stage.startswith("3"),
        host="offload" in stage,
        ddp=stage.startswith("0") and _number(columns["n_gpu"], 1) > 1,
        gpu=columns["gpu"],
        kernels=columns["liger_or_fused"],
        notes=notes,
        source=columns["source"],
        transformers=release,
        peft=peft,
        silent=not columns["transformers"] and any(file in notes for file in SOURCES),
        ran=("OOM" not in notes) if columns["group"] == "fit" else None,
        marks=marks + _marks(columns),
        selective=kind[1] if kind else "",
        tokens_per_s=_speed(columns),
        mfu=float(columns["mfu"]) if columns["mfu"] else None,
        nvidia_smi=float(columns["nvidia_smi_gib"]) if columns["nvidia_smi_gib"] else None,
    )


def _speed(columns: dict[str, str]) -> float | None:
    """Return the tokens per second of one GPU; samples are published for all GPUs together."""
    if columns["tokens_per_s"]:
        return float(columns["tokens_per_s"])
    if not columns["samples_per_s"]:
        return None
    return float(columns["samples_per_s"]) * _number(columns["seq"], 0) / _number(columns["n_gpu"], 1)


def _marks(columns: dict[str, str]) -> tuple[str, ...]:
    """Return in what a trace cannot be what ran."""
    short = not columns["tokens_per_s"] and "ms-swift" in columns["source"]
    found = {
        "GB of 1e9 bytes": _decimal(columns),
        "fp8": "fp8" in columns["amp"] or "fp8" in columns["quant"],
        "compile": "compile" in columns["liger_or_fused"],
        "hand-written CUDA": "hand-written" in columns["liger_or_fused"],
        SHORTER: short,
    }
    return tuple(name for name, holds in found.items() if holds)


def _gib(columns: dict[str, str]) -> float | None:
    """Return the published figure; torchao's script prints bytes / 1e9, which the table holds as it was printed."""
    if not columns["peak_mem_gib"]:
        return None
    return float(columns["peak_mem_gib"]) / (2**30 / 1e9 if _decimal(columns) else 1.0)


def _decimal(columns: dict[str, str]) -> bool:
    return "GB as printed" in columns["mem_kind"] and columns["source"].startswith("pytorch/ao")


def _releases(columns: dict[str, str]) -> tuple[str, str, tuple[str, ...]]:
    peft = columns["peft_version"] or PEFT
    if any(name in columns["source"] + columns["notes"] for name in OWN):
        return "installed", peft, ()
    older = re.search(r"\(transformers (4\.\d+)\)", columns["attn"])
    if older:
        return LOWEST, peft, (f"transformers {LOWEST} for {older[1]}",)
    if columns["transformers"]:
        return columns["transformers"], peft, ()
    for file, (release, its_peft) in SOURCES.items():
        if file in columns["notes"]:
            return release, its_peft, (f"transformers {release} by {file}",)
    return SILENT, peft, (f"no release named: {SILENT}",)


def _number(text: str, otherwise: int) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else otherwise


def config_of(row: Row, table: Path) -> Path:
    """Return the file of the row's model."""
    return table.parent / "configs" / f"{row.model}.json"


def plain(row: Row) -> dict[str, Any]:
    """Return the row as JSON has it."""
    return dict(vars(row))
