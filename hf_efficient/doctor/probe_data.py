"""How the rows of a streamed dataset are divided among workers: tried on local files, never by running the script."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

from hf_efficient.doctor.probe_answer import Answer
from hf_efficient.finding import Finding, info, warning
from hf_efficient.reading.script import Call
from hf_efficient.reading.settings import NOTHING, UNKNOWN
from hf_efficient.reading.setup import Setup

READERS = ("json", "csv", "text", "parquet")
ROWS = 200
WORKERS = 2
"""Workers that are tried, whatever the number asked for."""


def shards(setup: Setup) -> Iterator[Answer]:
    """Yield how local files that are streamed divide among the workers, and how to see it for a class of the script."""
    if setup.script is None:
        return
    trainer, loader = setup.trainer or NOTHING, setup.dataloader or NOTHING
    workers = trainer.number("dataloader_num_workers") if setup.trainer is not None else loader.number("num_workers")
    alike = isinstance(workers, int) and workers < 2  # then nothing is divided
    for name in _own_classes(setup) if not alike else ():
        yield Answer(_own(setup, name, workers))
    calls = setup.script.named("load_dataset")
    alone = len(calls) == 1
    for call in calls:
        files = _files(call, setup)
        if files and call.keywords.get("streaming") is True:
            found = _streamed(call, files, workers)
            # of several, only one was perhaps complained about
            yield from (one if alone or one.fault else one._replace(fault=None) for one in found)


def _streamed(call: Call, files: dict[str, list[str]], workers: Any) -> Iterator[Answer]:
    dataset = _load(call, files)
    number, first = int(dataset.num_shards), [list(islice(_as_worker(dataset, w), ROWS)) for w in range(WORKERS)]
    counts = f"of {WORKERS} workers, each asked for {ROWS} rows, they get " + " and ".join(str(len(r)) for r in first)
    seen = f"{number} shard{'s' * (number != 1)} for {sum(map(len, files.values()))} files; {counts}"
    what = f"Probed: the streamed files have {seen}"
    if not isinstance(workers, int) or workers < 2:
        yield Answer(info(what, why="With fewer than two workers nothing has to be divided.",
                          fix="Nothing has to be changed.", at=call.place).coded("probe-shards"))  # fmt: skip
    elif number < workers:
        yield Answer(
            warning(
                f"{what}; num_shards {number} < {workers} workers",
                why=f"A worker reads whole shards, so {workers - number} of {workers} workers get no row and only cost "
                "memory; rows are not repeated.",
                fix=f"Use {number} worker{'s' * (number != 1)} or split the data into at least {workers} files.",
                at=call.place,
            ).coded("probe-shards"),
            "shards",
            True,
        )
    else:
        yield Answer(
            info(f"{what}: fine for {workers} workers", why="Each worker has its own shards: no row comes twice.",
                 fix="Nothing has to be changed.", at=call.place).coded("probe-shards"), "shards", False
        )  # fmt: skip


def _load(call: Call, files: dict[str, list[str]]) -> Any:
    from datasets import load_dataset

    split = call.keywords.get("split")
    part = split if isinstance(split, str) and split in files else next(iter(files))
    with tempfile.TemporaryDirectory() as cache:
        return load_dataset(str(call.args[0]), data_files=files, split=part, streaming=True, cache_dir=cache)


def _as_worker(dataset: Any, number: int) -> Iterator[Any]:
    """Yield the rows that one of two DataLoader workers would read; no process is started."""
    from torch.utils.data._utils.worker import WorkerInfo

    worker = WorkerInfo(id=number, num_workers=WORKERS, seed=0, dataset=dataset)
    with mock.patch("torch.utils.data.get_worker_info", return_value=worker):
        yield from islice(iter(dataset), ROWS)


def _files(call: Call, setup: Setup) -> dict[str, list[str]]:
    """Return the local files of a call by split; empty where one cannot be known or is not here."""
    given = call.keywords.get("data_files")
    if not call.args or call.args[0] not in READERS or given in (None, UNKNOWN):
        return {}
    parts = given if isinstance(given, dict) else {"train": given}
    found: dict[str, list[str]] = {}
    for split, names in parts.items():
        paths = [_local(name, setup) for name in (names if isinstance(names, list) else [names])]
        if not all(paths):
            return {}
        found[str(split)] = [str(path) for many in paths for path in many]
    return found


def _local(name: Any, setup: Setup) -> list[Path]:
    """Return the files that a name or pattern means, beside the script or in the working folder."""
    if not isinstance(name, str) or "://" in name or not name:
        return []
    for folder in (*(Path(file).parent for file in setup.files), Path()):
        try:
            here = Path(name)
            paths = sorted(folder.glob(name)) if "*" in name and not here.is_absolute() else [folder / name]
            files = [path.resolve() for path in paths if path.is_file()]
        except (OSError, ValueError, NotImplementedError):
            continue
        if files:
            return files
    return []


def _own_classes(setup: Setup) -> list[str]:
    """Return the iterable dataset classes that the script defines."""
    import ast

    classes = setup.script.classes if setup.script is not None else {}
    return [name for name, node in classes.items() if any("IterableDataset" in ast.unparse(b) for b in node.bases)]


def _own(setup: Setup, name: str, workers: Any) -> Finding:
    script = setup.script
    assert script is not None
    count = workers if isinstance(workers, int) and workers > 1 else WORKERS
    return info(
        f"Not probed: {name} is a class of the script, which is not executed",
        why="Whether its rows come once for each worker shows only when it is iterated over in worker processes.",
        fix="To see it, run these lines with your own arguments: "
        f"`from torch.utils.data import DataLoader`; `rows = [str(r) for r in DataLoader({name}(...), batch_size=None, "
        f"num_workers={count})]`; `print(len(rows), len(set(rows)))`: two different numbers mean repeated rows.",
        at=script.place(script.classes[name]),
    ).coded("probe-own-dataset")
