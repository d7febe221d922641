"""The benchmark against published measurements: how rows are read, and traced with the installed release."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[1] / "benchmarks" / "accuracy"
NAMES = """
id source model params_b hidden layers heads kv_heads intermediate vocab weights_dtype amp batch seq accum ckpt
optimizer attn peft quant zero_stage n_gpu gpu
liger_or_fused peak_mem_gib mem_kind tokens_per_s samples_per_s mfu reproducible
repro_scope notes group torch transformers peft_version nvidia_smi_gib lora_r lora_targets
"""
COLUMNS: dict[str, str] = dict.fromkeys(NAMES.split(), "") | {
    "id": "T1", "source": "made up", "model": "tiny", "weights_dtype": "bf16", "amp": "no", "batch": "2", "seq": "16",
    "accum": "1", "ckpt": "no", "optimizer": "adamw_torch", "attn": "sdpa", "quant": "none", "zero_stage": "0",
    "n_gpu": "1", "gpu": "A100-80GB", "peak_mem_gib": "0.02", "group": "hf-1gpu-allocated",
    "transformers": "installed",
}  # fmt: skip
TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "vocab_size": 96, "num_hidden_layers": 14, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def table(folder: Path, *rows: dict[str, str]) -> Path:
    """Return a table of these rows, each the plain one with other columns, and the configuration of their model."""
    (folder / "configs").mkdir()
    (folder / "configs" / "tiny.json").write_text(json.dumps(TINY))
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        writer.writerows(COLUMNS | row for row in rows)
    return folder / "rows.csv"


@pytest.mark.parametrize(
    ("column", "value", "field", "expected"),
    [
        ("weights_dtype", "fp32", "dtype", "float32"),
        ("amp", "bf16", "autocast", "bfloat16"),
        ("batch", "4", "batch", 4),
        ("seq", "257 (224px/14)", "seq", 257),
        ("accum", "8", "accumulation", 8),
        ("ckpt", "yes", "checkpointing", True),
        ("ckpt", "yes + CPU offload", "offload", True),
        ("optimizer", "adafactor", "optimizer", "adafactor"),
        ("attn", "eager", "attention", "eager"),
        ("lora_r", "16", "lora_r", 16),
        ("lora_targets", "q,k,v,o (c_attn)", "lora_targets", ("q", "k", "v", "o")),
        ("quant", "nf4", "four_bits", True),
        ("quant", "nf4-dq", "double", True),
        ("zero_stage", "3", "sharded", True),
        ("zero_stage", "3+CPU offload", "host", True),
        ("n_gpu", "2", "ranks", 2),
        ("liger_or_fused", "liger FLCE + foak", "kernels", "liger FLCE + foak"),
        ("peak_mem_gib", "1.5", "published", 1.5),
        ("transformers", "4.45.2", "transformers", "4.45.2"),
        ("peft_version", "0.12.0", "peft", "0.12.0"),
        ("ckpt", "selective (per-op)", "selective", "per-op"),
        ("tokens_per_s", "331", "tokens_per_s", 331.0),
        ("samples_per_s", "2.5", "tokens_per_s", 40.0),
        ("mfu", "51.7", "mfu", 51.7),
        ("source", "mosaicml/llm-foundry README", "trainer", "llm-foundry"),
    ],
)
def test_each_column_that_decides_memory_is_read(column: str, value: str, field: str, expected: Any) -> None:
    """Another value in one column is another value of one field."""
    import rows

    plain, other = rows.row(COLUMNS), rows.row(COLUMNS | {column: value})
    assert getattr(other, field) == expected
    assert getattr(plain, field) != expected


def test_a_row_without_a_release_takes_one_and_says_so() -> None:
    """4.48.1, marked; a file of requirements that the notes name comes first, and 4.48.1 is traced beside it."""
    import rows

    silent = rows.row(COLUMNS | {"transformers": ""})
    named = rows.row(COLUMNS | {"transformers": "", "notes": "see refs/requirements_granite.txt"})
    assert (silent.transformers, silent.silent) == ("4.48.1", False)
    assert "no release named" in silent.marks[0]
    assert (named.transformers, named.peft, named.silent) == ("4.45.0", "0.12.0", True)
    assert "requirements_granite.txt" in named.marks[0]


def test_samples_of_all_gpus_are_tokens_of_one() -> None:
    """Samples are published for all GPUs together, tokens for one."""
    import rows

    both = COLUMNS | {"samples_per_s": "2.5", "n_gpu": "4"}
    assert rows.row(both).tokens_per_s == 10.0
    assert rows.row(both | {"tokens_per_s": "7"}).tokens_per_s == 7.0


def test_a_script_that_divides_by_1e9_is_converted() -> None:
    """Only torchao's figures are as printed; others are converted in the table."""
    import rows

    printed = COLUMNS | {"peak_mem_gib": "1.073741824", "mem_kind": "torch max_memory_allocated (GB as printed)"}
    assert rows.row(printed | {"source": "pytorch/ao README"}).published == pytest.approx(1.0)
    assert rows.row(printed).published == 1.073741824


def test_without_a_table_there_is_one_sentence(tmp_path: Path) -> None:
    """It says what to write."""
    done = subprocess.run(
        [sys.executable, str(HERE), "--rows", str(tmp_path / "none.csv")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "There is no table" in done.stderr
    assert "ROWS=FILE" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_figures_of_a_group() -> None:
    """Median, 90th percentile and worst are of absolute errors; limits are said where they are missed."""
    import summary

    figures = summary.of([-4.0, 1.0, 2.0, -1.0, 0.5])
    assert (figures["median"], figures["worst"], figures["signed_median"]) == (1.0, 4.0, 0.5)
    assert summary.error(10.0, 11.0) == pytest.approx(10.0)
    assert summary.missed("hf-1gpu-allocated", figures) == ["worst 4.0 % above 3 %"]
    assert summary.missed("reserved", figures) == []


SHARED = {"weights_dtype": "fp32", "amp": "bf16", "zero_stage": "3", "n_gpu": "8", "seq": "64", "model": "own"}
OWN = {"d_model": 64, "n_heads": 4, "n_layers": 14, "vocab_size": 96, "expansion_ratio": 4}
TITAN = {"source": "pytorch/torchtitan"}


@pytest.mark.parametrize(
    ("config", "others", "computed_again", "params"),
    [
        (OWN, {"source": "mosaicml/llm-foundry", "ckpt": "yes"}, 14 * 3, 14 * 12 * 64**2 + (14 * 2 + 96 + 64 + 1) * 64),
        pytest.param(OWN, {"source": "mosaicml/llm-foundry"}, 0, None, marks=pytest.mark.launch),
        pytest.param(TINY, TITAN | {"ckpt": "yes"}, 14 * 6, None, marks=pytest.mark.launch),
        pytest.param(
            TINY | {"num_hidden_layers": 26},
            TITAN | {"ckpt": "selective (every 2nd layer)"},
            13 * 6,
            None,
            marks=pytest.mark.launch,
        ),
        pytest.param(TINY, TITAN | {"ckpt": "selective (per-op)"}, 14 * 3, None, marks=pytest.mark.launch),
        pytest.param(
            {"n_embd": 64, "n_head": 4, "n_layer": 2},
            {"source": "karpathy/nanoGPT", "zero_stage": "0 (DDP)"},
            0,
            None,
            marks=pytest.mark.launch,
        ),
    ],
)
def test_a_trainer_of_its_own_is_traced_by_its_own_model(
    tmp_path: Path, config: dict[str, Any], others: dict[str, str], computed_again: int, params: int | None
) -> None:
    """What is computed again are the products that checkpointing does not keep, and that something behind needs."""
    import rows
    import worker

    file = table(tmp_path, SHARED | others)
    (tmp_path / "configs" / "own.json").write_text(json.dumps(config))
    (row,) = rows.read(file)
    found = worker.trace(row, file)
    again = {kernel: times for kernel, times in found.demand.work.items() if kernel.phase == "recompute"}
    assert sum(times for kernel, times in again.items() if kernel.op == "mm") == computed_again
    assert found.params == found.trainable_params == (params or found.params)


@pytest.mark.launch
@pytest.mark.parametrize(
    ("others", "more"),
    [
        ({"weights_dtype": "fp32"}, True),
        ({"batch": "8"}, True),
        ({"ckpt": "yes", "batch": "512"}, True),
        ({"lora_r": "4", "lora_targets": "q,v"}, False),
        ({"zero_stage": "3", "n_gpu": "2"}, False),
        ({"liger_or_fused": "liger FLCE + foak", "batch": "16"}, True),
    ],
)
def test_a_row_is_traced_with_the_installed_release(tmp_path: Path, others: dict[str, str], more: bool) -> None:
    """What a row says decides its figure, by the product's own path."""
    import rows

    import recipes

    file = table(tmp_path, {}, others)
    plain, other = rows.read(file)
    figures = [recipes.traced(row, rows.config_of(row, file)).allocated_gib for row in (plain, other)]
    assert (figures[1] > figures[0]) == more


@pytest.mark.slow
def test_a_row_is_traced_with_the_release_that_it_names(tmp_path: Path) -> None:
    """The release is installed in a folder of its own, and a process imports it from there."""
    file = table(tmp_path, {"transformers": "4.45.2", "peft_version": "0.13.2"})
    asked = [sys.executable, str(HERE), "--rows", str(file), "--json", str(tmp_path / "out.json")]
    subprocess.run(asked, capture_output=True, text=True, check=False)
    (found,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert found["with"] == "4.45.2"
    assert found["traced"] > 0
