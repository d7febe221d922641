"""Texts from files, folders and the standard library, as rows of tokens; bad data in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_efficient.train import embedded
from hf_efficient.train.text import load_texts, token_rows

TEXTS = [f"w{number} w{number + 1} w{number + 2}" for number in range(20)]


def _write(folder: Path, name: str, texts: list[str] = TEXTS) -> Path:
    import pandas as pd

    path, frame = folder / name, pd.DataFrame({"text": texts, "id": range(len(texts))})
    folder.mkdir(exist_ok=True)
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        case ".csv":
            frame.to_csv(path, index=False)
        case ".parquet":
            frame.to_parquet(path)
        case ".txt":
            path.write_text("\n\n".join(texts))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.txt"])
def test_every_kind_of_file_gives_the_same_texts(name: str, tmp_path: Path) -> None:
    """A file's texts are split into training and evaluation, none lost and none in both."""
    train, evaluation = load_texts(str(_write(tmp_path, name)))
    assert sorted([*train["text"], *evaluation["text"]]) == sorted(TEXTS)
    assert len(evaluation) == 2
    assert train.column_names == ["text"]


def test_a_folder_of_files_is_read_whole(tmp_path: Path) -> None:
    """All files of one kind in a folder count, in folders below it too."""
    _write(tmp_path / "data", "a.jsonl", TEXTS[:10])
    _write(tmp_path / "data" / "more", "b.jsonl", TEXTS[10:])
    train, evaluation = load_texts(str(tmp_path / "data"))
    assert len(train) + len(evaluation) == 20


def test_a_saved_dataset_keeps_its_own_splits(tmp_path: Path) -> None:
    """A folder written by `save_to_disk` is read as such, and its validation split is the evaluation."""
    from datasets import Dataset, DatasetDict

    splits = {"train": Dataset.from_dict({"text": TEXTS}), "validation": Dataset.from_dict({"text": ["w1 w2"]})}
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    train, evaluation = load_texts(str(tmp_path / "saved"))
    assert (len(train), evaluation["text"][0]) == (20, "w1 w2")


def test_evaluation_never_sees_training_texts(tmp_path: Path) -> None:
    """A dataset with one split is divided, and a folder's files keep the splits that their names say."""
    from datasets import Dataset, DatasetDict

    DatasetDict({"test": Dataset.from_dict({"text": TEXTS})}).save_to_disk(tmp_path / "only")
    train, evaluation = load_texts(str(tmp_path / "only"))
    assert sorted([*train["text"], *evaluation["text"]]) == sorted(TEXTS)
    _write(tmp_path / "named", "train.jsonl", TEXTS[:15])
    _write(tmp_path / "named", "test.jsonl", TEXTS[15:])
    train, evaluation = load_texts(str(tmp_path / "named"))
    assert (train["text"][:], evaluation["text"][:]) == (TEXTS[:15], TEXTS[15:])


def test_the_only_text_column_serves(tmp_path: Path) -> None:
    """A column of another name is taken where it is the only one with texts."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"content": text, "stars": 3}) + "\n" for text in TEXTS))
    assert load_texts(str(path))[0].column_names == ["text"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", "", "it is empty"),
        ("a.txt", "", "it is empty"),
        ("a.jsonl", '{"text": ""}\n{"text": " "}\n', "holds no text: no row of its column 'text'"),
        ("a.jsonl", '{"stars": 3}\n', "has no column `text`; it has stars"),
        ("a.jsonl", '{"title": "x", "body": "y"}\n', "has no column `text`; it has title and body"),
        ("a.jsonl", '{"text": "broken\n', "Cannot read"),
        ("a.csv", "id,text\n1\n", "holds no text"),
        ("a.parquet", "no parquet", "Cannot read"),
        ("a.jsonl", '{"text": 5}\n{"text": 6}\n', "no row of its column 'text' (Value('int64')) has a text"),
        ("a.docx", "x", "is no .jsonl, .json, .csv, .parquet or .txt file"),
        ("a.txt", "one text only", "holds one text, and evaluation needs one of its own"),
    ],
)
def test_bad_data_get_one_sentence(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    """Empty, broken, textless and unknown files are named with what is wrong."""
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=r".") as error:
        load_texts(str(path))
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "/no/such/folder"])
def test_a_missing_path_is_not_looked_up_on_the_hub(name: str) -> None:
    """What looks like a path and is not there is said to be missing, without asking anybody."""
    with pytest.raises(ValueError, match=f"There is no file or folder {name}"):
        load_texts(name)


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    """latin-1 is said to be no UTF-8, with the file's name and what to do."""
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "caf\u00e9 one two"}\n'.encode("latin-1") * 9)
    with pytest.raises(ValueError, match=r"a\.jsonl") as error:
        load_texts(str(path))
    assert "iconv" in str(error.value) or "utf-8" in str(error.value)


def test_an_empty_folder_is_said_to_hold_nothing(tmp_path: Path) -> None:
    """A folder without a readable file is an error that names the kinds."""
    with pytest.raises(ValueError, match=r"the folder holds no .jsonl"):
        load_texts(str(tmp_path))


def test_rows_lose_nothing_and_never_mix_texts(tiny: Path) -> None:
    """Long texts become several rows, each text ends with the end token, labels are the tokens."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    texts = [" ".join(f"w{i}" for i in range(length)) for length in (3, 20, 8, 7)]
    rows = token_rows(Dataset.from_dict({"text": texts}), tokenizer, 8)
    end = tokenizer.eos_token_id
    whole = [[*tokenizer(text)["input_ids"], end] for text in texts]
    # 8 words and an end: the end alone would be a row that predicts nothing
    assert [len(row) for row in rows["input_ids"]] == [4, 8, 8, 5, 8, 8]
    assert rows["input_ids"][:4] == [whole[0], whole[1][:8], whole[1][8:16], whole[1][16:]]
    assert rows["labels"][:] == rows["input_ids"][:]
    assert max(map(len, rows["input_ids"])) <= 8


def test_padding_with_the_end_token_still_teaches_the_end(tiny: Path) -> None:
    """Labels are padded by themselves: an end token stays a label even where it is also the padding."""
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.pad_token = tokenizer.eos_token
    end = tokenizer.eos_token_id
    rows = [{"input_ids": ids, "labels": list(ids)} for ids in ([5, 6, end], [5, end])]
    batch = DataCollatorForSeq2Seq(tokenizer)(rows)
    assert batch["labels"].tolist() == [[5, 6, end], [5, end, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]


def test_the_embedded_corpus_is_split_by_file() -> None:
    """The standard library's files are in training or evaluation, none in both."""
    train, evaluation = embedded.corpus()
    assert len(train) > 100
    assert len(evaluation) > 5
    assert not set(train["text"]) & set(evaluation["text"])


@pytest.mark.launch
def test_the_embedded_tokenizer_reads_back_what_it_reads() -> None:
    """Byte-level BPE: any text survives, and there are 4,096 tokens."""
    tokenizer = embedded.tokenizer()
    text = "def f(x):\n\treturn 'ü ∑ 🙂'\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == embedded.VOCABULARY


def test_the_embedded_model_is_small_and_float32() -> None:
    """About five million parameters, in float32."""
    model = embedded.model()
    assert 4.5e6 < model.num_parameters() < 6e6
    assert str(model.dtype) == "torch.float32"
