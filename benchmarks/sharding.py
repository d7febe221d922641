"""Estimate what each DeepSpeed file leaves on a card, for four models on 1 to 8 cards: `make sharding`.

Each row is one estimate: the preset of the file's name, one row of 2048 tokens on each card, bf16. Nothing is measured
and nothing downloaded: the models are configurations of the sizes that were published. `--only zero2` does the files
whose names have that word, and writes none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from measured_on import measured_on
from transformers import LlamaConfig

from hf_efficient import Batch, Machine, make_plan
from hf_efficient.deepspeed_page import FILES, MEASURED
from hf_efficient.emit.files import write
from hf_efficient.memory.estimate import estimator

PACKAGES = ("torch", "transformers", "accelerate")
CARDS = {"24 GB": "RTX 4090", "80 GB": "A100-80GB"}
"""Size of a card -> the one of the table that stands for it."""
COUNTS = (1, 2, 4, 8)
BATCH = Batch(size=1, seq_len=2048)
_LLAMA_2 = {"vocab_size": 32000}
MODELS = {
    "Llama-3.2-1B": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True,
    },
    "Llama-2-7B": _LLAMA_2 | {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "Llama-2-13B": _LLAMA_2 | {
        "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
    },
    "Llama-2-70B": _LLAMA_2 | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
}  # fmt: skip
"""Model -> its published sizes, as LlamaConfig has them."""


def row(model: str, file: str, gpus: int) -> dict[str, Any]:
    """Return what one card of `gpus` holds of a model under a file, and what the computer's memory holds for it."""
    config = LlamaConfig(**MODELS[model], architectures=["LlamaForCausalLM"], dtype="bfloat16")
    # bf16 is the preset's, whatever this machine has.
    plan = make_plan(file, machine=Machine.named(CARDS["80 GB"]))
    found = estimator(config, machine=None, gpus=gpus)(plan, BATCH)
    fits = {card.gpu: card.fits for card in found.cards}
    return {
        "model": model,
        "file": file,
        "gpus": gpus,
        "params": found.params,
        "reserved_gib": round(found.held_gib, 3),
        "host_gib": round(found.host_gib, 3),
        "fits": [size for size, card in CARDS.items() if fits[card]],
        "peak_at": found.peak_at,
        "breakdown": {part: round(size, 3) for part, size in found.breakdown.items()},
    }


def report(rows: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """Return the rows with what they were computed with."""
    return {
        **measured_on("make sharding", PACKAGES),
        "minutes": round(minutes, 1),
        "batch": {"size": BATCH.size, "seq_len": BATCH.seq_len},
        "cards": CARDS,
        "rows": rows,
    }


def main() -> int:
    """Estimate them all and write the table, or some and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="WORD", default="")
    only = parser.parse_args().only
    start, rows = time.perf_counter(), []
    for model in MODELS:
        for file in (name for name in FILES if only in name):
            for gpus in COUNTS:
                rows.append(row(model, file, gpus))
                one = rows[-1]
                print(f"{model:<13} {file:<21} {gpus} {one['reserved_gib']:8.1f} {one['host_gib']:8.1f} "
                      f"{', '.join(one['fits'])}", flush=True)  # fmt: skip
    minutes = (time.perf_counter() - start) / 60
    print(f"{len(rows)} estimates, {minutes:.1f} minutes")
    if not only:
        write(MEASURED, json.dumps(report(rows, minutes), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
