"""Texts of yours, from a file, a folder or the Hub, as rows of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
SPLITS = {"test": "test", "valid": "validation", "dev": "validation", "eval": "validation"}
"""Beginning of a file's name -> its split; other files of a folder are for training."""
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
    try:
        return _split(_read(data), data, seed)
    except UnicodeDecodeError:
        raise ValueError(f"{data} is not UTF-8: convert it, for example with `iconv -f latin1 -t utf8`.") from None


def _split(splits: Mapping[str, Dataset], data: str, seed: int) -> tuple[Dataset, Dataset]:
    """Return training and evaluation texts, by the data's own splits where there are two."""
    name = "train" if "train" in splits else next(iter(splits))
    held_out = next((split for split in HELD_OUT if split in splits and split != name), None)
    train = _texts(splits[name], data)
    if held_out:
        return train, _texts(splits[held_out], data)
    if len(train) == 1:
        raise ValueError(
            f"{data} holds one text, and evaluation needs one of its own: give it two rows, or in a .txt file an empty "
            "line between texts."
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
    if not data.strip():
        raise ValueError("--data is empty: name a file, a folder or a Hub dataset, or leave it out.")
    if not path.exists() and _looks_like_a_path(data):
        raise ValueError(f"There is no file or folder {data}: check --data.")
    if path.is_file() and path.suffix.lower() not in READERS:
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
    files = _files(path) if path.is_dir() else [path]
    kinds = {READERS[file.suffix.lower()] for file in files}
    if len(kinds) != 1:
        found = "files of several kinds" if kinds else f"no {listed(READERS, 'or')} file"
        raise ValueError(f"the folder holds {found}.")
    if not any(file.stat().st_size for file in files):
        raise ValueError("it is empty.")
    splits: dict[str, list[str]] = {}
    for file in files:
        splits.setdefault(_split_of(file) if path.is_dir() else "train", []).append(str(file))
    kind = kinds.pop()
    return load_dataset(kind, data_files=splits, **({"sample_by": "paragraph"} if kind == "text" else {}))


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder and those below it that a reader is for; hidden ones are nobody's data."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix.lower() in READERS]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _split_of(file: Path) -> str:
    """Return the split that a file's name says, as on the Hub."""
    return next((split for start, split in SPLITS.items() if file.stem.lower().startswith(start)), "train")


def _texts(dataset: Dataset, data: str) -> Dataset:
    """Return the rows of `dataset` that have text, as the one column `text`."""
    from datasets import Value

    strings = [name for name, kind in dataset.features.items() if kind in (Value("string"), Value("large_string"))]
    column = "text" if "text" in dataset.features else strings[0] if len(strings) == 1 else ""
    if not column:
        raise ValueError(
            f"{data} has no column `text`; it has {listed(dataset.column_names) or 'none'}: rename the one to train on "
            "(messages go through a chat template first)."
        )
    texts = dataset.select_columns([column]).rename_columns({column: "text"} if column != "text" else {})
    texts = texts.filter(lambda batch: [_has_text(text) for text in batch["text"]], batched=True)
    if not len(texts):
        kind = dataset.features[column]
        raise ValueError(
            f"{data} holds no text: no row of its column {column!r} ({kind}) has a text that is not empty."
        )
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
