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


def fits(row: Row, found: Any) -> bool | None:
    """Return whether the product would say that a row fits on its card; None for a card that is not known."""
    from hf_efficient.machine import Machine
    from hf_efficient.memory.fit import needed

    size = re.search(r"(\d+) ?GB", row.gpu)
    try:
        memory = Machine.named(row.gpu).memory_gib
    except ValueError:
        memory = float(size[1]) if size else None
    return None if not memory else needed(found) <= memory


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
            result |= {"breakdown": dict(found.breakdown), "fits": fits(row, found)}
        except Exception as error:  # a row that cannot be traced is a result, too
            result |= {"error": f"{type(error).__name__}: {error}"[:300], "where": traceback.format_exc()[-1500:]}
        result["seconds"] = round(time.perf_counter() - start, 1)
        print("\n@" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
