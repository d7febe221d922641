"""Trace rows with one release of transformers: rows as JSON on stdin, one result a line on stdout."""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from rows import Row, config_of


def trace(row: Row, table: Path) -> Any:
    """Return the estimate of a row by the code of its trainer."""
    if row.unlike:
        raise ValueError(row.unlike)
    if row.model.startswith("ViT"):
        import vit

        return vit.traced(row)
    if row.trainer == "litgpt":
        import litgpt_rows

        return litgpt_rows.traced(row, config_of(row, table))
    if row.trainer == "torchtune":
        import torchtune_rows

        return torchtune_rows.traced(row, config_of(row, table))
    if row.trainer == "llm-foundry":
        import mpt

        return mpt.traced(row, config_of(row, table))
    if row.trainer == "torchtitan":
        import torchtitan_rows

        return torchtitan_rows.traced(row, config_of(row, table))
    if row.trainer == "karpathy":
        import gpt2_rows

        return gpt2_rows.traced(row, config_of(row, table))
    import recipes

    return recipes.traced(row, config_of(row, table))


def card_of(row: Row) -> Any:
    """Return the row's card; of one that the table of cards lacks, its memory alone. None where that is not told."""
    from hf_efficient.machine import Machine

    size = re.search(r"(\d+) ?GB", row.gpu)
    try:
        return Machine.named(row.gpu, gpus=row.ranks)
    except ValueError:
        return Machine(gpu=row.gpu, accelerator="cuda", memory_gib=float(size[1]), gpus=row.ranks) if size else None


def on_its_card(row: Row, found: Any) -> dict[str, Any]:
    """Return what the product says of a row on its card, and what its step asks of any."""
    from hf_efficient.memory.fit import on_card

    card = card_of(row)
    said: dict[str, Any] = {"reserved": found.reserved_gib}
    if card is not None:
        there = on_card(found, card)
        said = {"reserved": there.reserved_gib, "device": there.device_gib, "fits": there.fits}
    if row.tokens_per_s:
        said["demand"] = plain_demand(found.demand)
    return said


def plain_demand(demand: Any) -> dict[str, Any]:
    """Return a demand as JSON has it."""
    kernels = [[*kernel, times] for kernel, times in demand.work.items()]
    return vars(demand) | {"work": kernels, "traffic": list(demand.traffic)}


def main(table: Path) -> None:
    """Answer every row that comes in."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for line in sys.stdin:
        columns = json.loads(line)
        row = Row(**{key: tuple(value) if isinstance(value, list) else value for key, value in columns.items()})
        start = time.perf_counter()
        result: dict[str, Any] = {"id": row.id, "with": transformers.__version__}
        try:
            found = trace(row, table)
            result |= {"traced": found.allocated_gib, "peak_at": found.peak_at, "moments": dict(found.moments)}
            result |= {"breakdown": dict(found.breakdown), **on_its_card(row, found)}
        except Exception as error:  # a row that cannot be traced is a result, too
            result |= {"error": f"{type(error).__name__}: {error}"[:300], "where": traceback.format_exc()[-1500:]}
        result["seconds"] = round(time.perf_counter() - start, 1)
        print("\n@" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
