"""Texts of yours, from a file, a folder or the Hub, as rows of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.train import embedded
from hf_efficient.wording import listed, one_sentence

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
"""Suffix -> the builder of `datasets` that reads it."""
HELD_OUT = ("validation", "test")
"""Splits to evaluate on, the first that there is."""
EVALUATED = 0.1
"""Share of the texts that is kept for evaluation where the data have no split of their own."""


def load_texts(data: str | None, *, seed: int = 42) -> tuple[Dataset, Dataset]:
    """Return training and evaluation texts, each a Dataset with one column `text`.

    `data` is a .jsonl, .csv, .parquet or .txt file (texts of a .txt file are separated by empty lines), a folder of
    them, or a Hub id; None takes the standard library's sources. Raises ValueError in one sentence for data that are
    missing, empty or without text.
    """
    if data is None:
        return embedded.corpus()
    splits = _read(data)
    name = "train" if "train" in splits else next(iter(splits))
    held_out = next((split for split in HELD_OUT if split in splits and split != name), None)
    train = _texts(splits[name], data)
    if held_out:
        return train, _texts(splits[held_out], data)
    if len(train) == 1:
        raise ValueError(
            f"{data} holds one text, and evaluation needs one of its own: separate texts by an empty line."
        )
    halves = train.train_test_split(test_size=max(1, round(len(train) * EVALUATED)), seed=seed)
    return halves["train"], halves["test"]


def token_rows(texts: Dataset, tokenizer: PreTrainedTokenizerBase, seq_len: int) -> Dataset:
    """Return rows of at most `seq_len` tokens with their labels; a longer text becomes several rows, nothing is lost.

    A text ends with the tokenizer's end token. A row never holds parts of two texts.
    Raises ValueError when no row is left.
    """
    rows = texts.map(
        lambda batch: _cut(batch["text"], tokenizer, seq_len), batched=True, remove_columns=texts.column_names
    )
    if not len(rows):
        raise ValueError("The data hold no text of two tokens or more: there is nothing to learn from.")
    return rows


def _cut(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, seq_len: int) -> dict[str, list[list[int]]]:
    rows: list[list[int]] = []
    for ids in tokenizer(list(texts), verbose=False)["input_ids"]:
        end = [] if tokenizer.eos_token_id is None or ids[-1:] == [tokenizer.eos_token_id] else [tokenizer.eos_token_id]
        ids = [*ids, *end]
        rows += [ids[start : start + seq_len] for start in range(0, len(ids), seq_len)]
    rows = [row for row in rows if len(row) > 1]  # one token alone predicts nothing
    return {"input_ids": rows, "labels": rows}


def _read(data: str) -> dict[str, Dataset]:
    """Return the splits of a file, a folder or a Hub dataset."""
    from datasets import DatasetDict, load_dataset

    path = Path(data).expanduser()
    if not path.exists() and _looks_like_a_path(data):
        raise ValueError(f"There is no file or folder {data}: check --data.")
    if path.is_file() and path.suffix not in READERS:
        raise ValueError(f"{data} is no {listed(READERS, 'or')} file: convert it, or name another one.")
    try:
        loaded = _read_local(path) if path.exists() else load_dataset(data)
    except Exception as error:  # datasets raises whatever its reader raised
        where = "" if path.exists() else ", neither here nor on the Hub"
        raise ValueError(f"Cannot read {data}{where}: {_cause(error)}") from None
    return dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}


def _read_local(path: Path) -> Any:
    from datasets import load_dataset, load_from_disk

    if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "state.json").exists()):
        return load_from_disk(str(path))
    files = sorted(f for f in path.rglob("*") if f.suffix in READERS) if path.is_dir() else [path]
    kinds = {READERS[file.suffix] for file in files}
    if len(kinds) != 1:
        found = "files of several kinds" if kinds else f"no {listed(READERS, 'or')} file"
        raise ValueError(f"the folder holds {found}.")
    if not any(file.stat().st_size for file in files):
        raise ValueError("it is empty.")
    kind = kinds.pop()
    how = {"sample_by": "paragraph"} if kind == "text" else {}
    if path.is_dir():
        return load_dataset(str(path), **how)  # splits by the files' names, as on the Hub
    return load_dataset(kind, data_files=str(path), split="train", **how)


def _texts(dataset: Dataset, data: str) -> Dataset:
    """Return the rows of `dataset` that have text, as the one column `text`."""
    from datasets import Value

    strings = [name for name, kind in dataset.features.items() if kind in (Value("string"), Value("large_string"))]
    column = "text" if "text" in dataset.features else strings[0] if len(strings) == 1 else ""
    if not column:
        raise ValueError(
            f"{data} has no column `text`; it has {listed(dataset.column_names) or 'none'}: rename the one to train on."
        )
    texts = dataset.select_columns([column]).rename_columns({column: "text"} if column != "text" else {})
    texts = texts.filter(lambda batch: [_has_text(text) for text in batch["text"]], batched=True)
    if not len(texts):
        raise ValueError(f"{data} holds no text: every row of its column {column!r} is empty.")
    return texts


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _looks_like_a_path(data: str) -> bool:
    return data.startswith((".", "/", "~")) or data.count("/") > 1 or Path(data).suffix in READERS


def _cause(error: BaseException) -> str:
    """Return the first cause of an error, which is the one that says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_sentence(error)
