"""Whatever stands in the files, the doctor answers: no traceback, and no check that breaks."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_efficient import doctor
from hf_efficient.checks.run import BROKEN
from hf_efficient.reading.files import read

pytestmark = pytest.mark.launch  # half a minute: not in `make test-fast`

CASES = Path(__file__).parents[1] / "data" / "doctor_cases.jsonl"
Files = dict[str, str]
RUN = r"""#!/bin/bash
export A=1
ARGS=(--bf16 True --seed 1)
for i in 1 2; do
  CUDA_VISIBLE_DEVICES=0,1 nohup accelerate launch --config_file zero.yaml --num_processes ${N:-2} \
    train.py "${ARGS[@]}" $X > log 2>&1 &
done
cat <<EOF
$A
EOF
deepspeed --include localhost:0,1 train.py --deepspeed ds.json
"""
DS = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "fp16": {"enabled": "auto"}}
FSDP = "base: &b {fsdp_version: 2}\ndistributed_type: FSDP\nfsdp_config:\n  <<: *b\n  fsdp_offload_params: true\n"
ARGUMENTS = "model_name_or_path: gpt2\nlearning_rate: 1e-5\nbf16: true\nfsdp: full_shard\nfsdp_config: {version: 1}\n"
MORE: list[Files] = [
    {
        "run.sh": RUN,
        "zero.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
        "ds.json": json.dumps(DS),
    },
    {"launch.yaml": FSDP},
    {"args.yaml": ARGUMENTS},
    {"config.json": '{"model_type": "t5", "dtype": "float16", "text_config": {"vocab_size": 5, "hidden_size": 3}}'},
]
TOKENS = (
    *"[{}('\"\\$`\t\n\0,#=*01é\u2028", "${", "$(", "<<EOF\n", ": ", "- ", "&a ", "*a", "<<: *a", "!!int ", "!!set ",
    "? ", "|\n", "\r\n", "//", "null", "true", "False", "None", "NaN", "Infinity", "-1", "1e400", "9" * 30, "9" * 5000,
    "auto", "yes",
    "2024-13-45", "1:2:3", "**x", "lambda x: ", "await ", "f'{x}'", "x" * 3000, "--x", "torch.float16", "[" * 300,
    "{'a':" * 150, "(" * 150, "-" * 3000, "@x\n", "import x\n", "def f(", "; ", "&& ", "| ",
)  # fmt: skip
WORDS = [
    "auto",
    "",
    "cpu",
    "none",
    "true",
    "1e-5",
    "fp16",
    "bf16",
    "adamw_bnb_8bit",
    "T4",
    "A100",
    "float16",
    "-1",
    "0",
]
LARGE = st.integers(min_value=10**20, max_value=10**40)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), LARGE, st.floats(), st.text(max_size=8), st.sampled_from(WORDS),
    st.dates(), st.binary(max_size=3),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), one, max_size=3),
)
ASSIGNED = re.compile(r"(?<=[\w\"]=)[^,()\n=]+|(?<=: )[^,{}\n]+|(?<=[ =])--?\w+")


def _seeds() -> list[Files]:
    cases = map(json.loads, CASES.read_text().splitlines())
    seeds = [case["files"] if "files" in case else {"setup.json": json.dumps(case["setup"])}
             for case in cases if "files" in case or "setup" in case]  # fmt: skip
    return seeds + MORE


SEEDS = _seeds()


def _mutated_text(draw: st.DataObject, text: str) -> bytes:
    """Return a text with something cut, repeated, put in or replaced, perhaps in another encoding."""
    for _ in range(draw.draw(st.integers(1, 4))):
        start = draw.draw(st.integers(0, len(text)))
        end = min(len(text), start + draw.draw(st.integers(0, 40)))
        how = draw.draw(st.sampled_from(["insert", "value", "value", "cut", "delete", "repeat"]))
        if how == "insert":
            text = text[:start] + draw.draw(st.sampled_from(TOKENS)) + text[start:]
        elif how == "value" and (found := list(ASSIGNED.finditer(text))):
            spot = draw.draw(st.sampled_from(found))
            value = draw.draw(st.sampled_from(TOKENS) | LEAVES.map(repr))
            text = text[: spot.start()] + value + text[spot.end() :]
        elif how == "cut":
            text = text[:start]
        elif how == "delete":
            text = text[:start] + text[end:]
        else:
            text = text[:start] + text[start:end] * draw.draw(st.integers(2, 30)) + text[end:]
    encoding = draw.draw(st.sampled_from(["utf-8"] * 8 + ["utf-16", "utf-8-sig", "latin-1", "utf-32"]))
    data = bytearray(text.encode(encoding, errors="replace"))
    for _ in range(draw.draw(st.sampled_from([0, 0, 0, 1, 5])) if data else 0):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    return bytes(data)


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) inside a value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        pairs = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in list(pairs):
            found.append((one, key))
            waiting.append(inner)
    return found


def _mutated_values(draw: st.DataObject, name: str, text: str) -> bytes:
    """Return a mapping with values of other types, and keys misspelled, in the format of its file."""
    value = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    for _ in range(draw.draw(st.integers(1, 3))):
        spots = _spots(value)
        if spots:
            container, key = draw.draw(st.sampled_from(spots))
            if isinstance(container, dict) and draw.draw(st.integers(0, 4)) == 0:
                container[f"{key}{draw.draw(st.text(max_size=3))}"] = container.pop(key)
            else:
                container[key] = draw.draw(VALUES)
    return (json.dumps(value, default=str) if name.endswith(".json") else yaml.safe_dump(value)).encode()


def _mutated(draw: st.DataObject, files: Files) -> dict[str, bytes]:
    made = {name: text.encode() for name, text in files.items()}
    for name in draw.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=len(files), unique=True)):
        structured = name.endswith((".json", ".yaml")) and draw.draw(st.booleans())
        made[name] = _mutated_values(draw, name, files[name]) if structured else _mutated_text(draw, files[name])
    return made


def _examine(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in files]
        for path, data in zip(paths, files.values(), strict=True):
            path.write_bytes(data)
        report = doctor.examine_files(paths)
        broken = [finding.what for finding in report.findings if finding.code == BROKEN]
        assert not broken
        assert all(finding.code and finding.what and finding.fix for finding in report.findings)
        json.dumps(report.data())


def _fuzz(draw: st.DataObject) -> None:
    if draw.draw(st.integers(0, 9)) == 0:
        name = draw.draw(st.sampled_from(["a.py", "a.sh", "a.yaml", "a.json", "a", "a.txt"]))
        pieces = draw.draw(st.lists(st.sampled_from(TOKENS) | st.text(max_size=20), max_size=30))
        _examine({name: draw.draw(st.binary(max_size=300) | st.just("".join(pieces).encode(errors="replace")))})
    else:
        _examine(_mutated(draw, draw.draw(st.sampled_from(SEEDS))))


def _folder(draw: st.DataObject) -> None:
    """A checkpoint folder whose files are damaged."""
    names = [
        *(
            "trainer_state.json",
            "config.json",
            "adapter_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
        ),
        *("latest", "optimizer.pt", "rng_state_0.pth", "rng_state_99999999999999999999.pth", "global_step1"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in draw.draw(st.lists(st.sampled_from(names), unique=True)):
            size = draw.draw(st.integers(0, 2**64 - 1) | st.integers(0, 40)).to_bytes(8, "little")
            header = json.dumps(draw.draw(VALUES), default=str).encode()
            header = draw.draw(
                st.sampled_from([header, b'{"a": {"data_offsets": [0, 9], "dtype": "F16"}}', b"[]", b""])
            )
            safetensors = name.endswith(".safetensors")
            Path(folder, name).write_bytes((size if safetensors else b"") + header)
        (part,) = read(Path(folder))
        assert part.kind in ("checkpoint", "config", "unreadable")
        report = doctor.examine_files([Path(folder)])
        assert not [finding.what for finding in report.findings if finding.code == BROKEN]


def _options(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@_options(500)
@given(st.data())
def test_no_input_breaks_the_doctor(data: st.DataObject) -> None:
    """Mutated setups of every kind, and noise."""
    _fuzz(data)


@pytest.mark.slow
@_options(10_000)
@given(st.data())
def test_no_input_of_ten_thousand_breaks_the_doctor(data: st.DataObject) -> None:
    """The same, longer."""
    _fuzz(data)


@_options(60)
@given(st.data())
def test_no_folder_breaks_the_doctor(data: st.DataObject) -> None:
    """Names are all that is trusted of a checkpoint."""
    _folder(data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.py", b"x = [" + b"1," * 50_000 + b"]\n"),
        ("a.py", b"model.half()\n" * 1000),
        ("a.json", b'{"trainer": {"a": [' + b"1," * 200_000 + b"1]}}"),
        ("a.json", json.dumps({"trainer": {f"k{i}": {"a": i} for i in range(1000)}}).encode()),
        ("a.yaml", b"trainer:\n" + b"  a: 1\n" * 10_000),
        ("a.sh", b"A=$A$A$A\n" * 2000 + b"python train.py $A"),
        ("a.sh", b"python train.py " + b"--a 1 " * 10_000),
        ("a.sh", b"(" * 100_000),
        ("a.sh", b"A=(" * 10_000),
        ("a.txt", b"word " * 500_000),
    ],
    ids=lambda value: value if isinstance(value, str) else value[:8].decode(),
)
def test_large_files_are_answered(name: str, data: bytes) -> None:
    """Up to the limit, in seconds."""
    _examine({name: data})
