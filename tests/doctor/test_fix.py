"""--fix: what is safe is rewritten as shown, all else stays byte for byte, and a second run finds nothing to do."""

from __future__ import annotations

import ast
import json
import os
import sys
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_efficient import doctor
from hf_efficient.checks.check import checks
from hf_efficient.cli import main
from hf_efficient.doctor.fix import mend
from hf_efficient.doctor.fix.calls import Reader
from hf_efficient.doctor.fix.cures import CURES
from hf_efficient.doctor.fix.mapping import Change, changed
from hf_efficient.doctor.fix.mend import NAMES
from hf_efficient.doctor.fix.text import UnsafeError, edited, taken_out
from hf_efficient.renames import FIELDS

SCRIPT = '''#!/usr/bin/env python
# -*- coding: utf-8 -*-
"""Instruction tuning as it was written in 2023: résumé of options below."""
import argparse, os
import torch
import transformers as hf
from transformers import (
    AutoModelForCausalLM, AutoTokenizer,
    Trainer as HFTrainer,          # not ours
    TrainingArguments as TA, Seq2SeqTrainingArguments
)
from diffusers import DiffusionPipeline


class Ours(TA):
    """Fields of our own."""
    group_by_length: bool = True


class Quiet(HFTrainer):
    pass


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--evaluation_strategy", default="steps")
    p.add_argument('--bf16', action = "store_true")
    return p.parse_args()

common = dict(evaluation_strategy='epoch',   # every epoch
              overwrite_output_dir=True, seed = 3)
printed = {"no_cuda": False, "seed": 1}
print(printed)


def build(opts):
    shared = {
        "no_cuda": True,
        # the folder of the logs
        "logging_dir": "runs",  # goes with its line
        'warmup_ratio': .1,
    }
    args = TA(
        output_dir="out",  # where
        # ---- schedule ----
        evaluation_strategy   =  opts.evaluation_strategy, eval_steps=100,

        # ---- logging ----
        group_by_length=True, save_safetensors=True,
        adafactor=False,        # we tried
        dispatch_batches=(None
                          if opts.bf16 else False), split_batches=True,
        optim="adamw_hf",
\t\tbf16=opts.bf16, **shared)
    return args


def others(opts):
    ours = Ours("o", group_by_length=True, accelerator_config={"even_batches": True}, split_batches=False)
    two = hf.TrainingArguments("o", **common, per_gpu_train_batch_size=4, adafactor=opts.bf16)
    three = Seq2SeqTrainingArguments("o", **printed, fp16_backend="auto")
    return ours, two, three


if __name__ == '__main__':
    opts = parse()
    model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16, use_flash_attention_2=True)
    pipe = DiffusionPipeline.from_pretrained("x", torch_dtype=torch.float16)
    tok = AutoTokenizer.from_pretrained("gpt2")
    Quiet(model=model, args=build(opts), tokenizer=tok).train()
'''
MENDED = """common = dict(evaluation_strategy='epoch',   # every epoch
common = dict(eval_strategy='epoch',   # every epoch
              overwrite_output_dir=True, seed = 3)
              seed = 3)
        "no_cuda": True,
        "use_cpu": True,
        "logging_dir": "runs",  # goes with its line

        'warmup_ratio': .1,
        'warmup_steps': .1,
        evaluation_strategy   =  opts.evaluation_strategy, eval_steps=100,
        eval_strategy   =  opts.evaluation_strategy, eval_steps=100,
        group_by_length=True, save_safetensors=True,
        train_sampling_strategy="group_by_length",
        adafactor=False,        # we tried

        dispatch_batches=(None
        accelerator_config={"dispatch_batches": (None
                          if opts.bf16 else False), split_batches=True,
                          if opts.bf16 else False), "split_batches": True},
        optim="adamw_hf",
        optim="adamw_torch_fused",
    ours = Ours("o", group_by_length=True, accelerator_config={"even_batches": True}, split_batches=False)
    ours = Ours("o", group_by_length=True, accelerator_config={"even_batches": True, "split_batches": False})
    two = hf.TrainingArguments("o", **common, per_gpu_train_batch_size=4, adafactor=opts.bf16)
    two = hf.TrainingArguments("o", **common, per_device_train_batch_size=4, adafactor=opts.bf16)
    three = Seq2SeqTrainingArguments("o", **printed, fp16_backend="auto")
    three = Seq2SeqTrainingArguments("o", **printed)
    model = AutoModelForCausalLM.from_pretrained("gpt2", torch_dtype=torch.float16, use_flash_attention_2=True)
    model = AutoModelForCausalLM.from_pretrained("gpt2", dtype=torch.float16, attn_implementation="flash_attention_2")
    Quiet(model=model, args=build(opts), tokenizer=tok).train()
    Quiet(model=model, args=build(opts), processing_class=tok).train()
"""
"""Pairs of a line and what it becomes; an empty one: it goes. Every other line stays."""
YAML = """# arguments of the run
defaults: &d   # shared
    run_name:   'a: b'
output_dir: &out "runs/x"   # where
evaluation_strategy: "steps"      # as often as we save
'warmup_ratio': 0.1

logging_dir: *out
group_by_length: yes
adafactor: false
learning_rate: 2e-5               # read as a string by YAML 1.1
dispatch_batches: false
split_batches: true
optim: adamw_hf
lr_scheduler_kwargs: {num_cycles: 2,   last_epoch: -1}
report_to:
-   none
# the end, with no newline"""
MENDED_YAML = """evaluation_strategy: "steps"      # as often as we save
eval_strategy: "steps"      # as often as we save
'warmup_ratio': 0.1
'warmup_steps': 0.1
logging_dir: *out

group_by_length: yes
train_sampling_strategy: group_by_length
adafactor: false

learning_rate: 2e-5               # read as a string by YAML 1.1
learning_rate: 2.0e-05               # read as a string by YAML 1.1
dispatch_batches: false
accelerator_config: {dispatch_batches: false, split_batches: true}
split_batches: true

optim: adamw_hf
optim: adamw_torch_fused
"""
TRAIN = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

args = TrainingArguments("out", deepspeed="ds.json", {})
model = AutoModelForCausalLM.from_pretrained("gpt2")
Trainer(model=model, args=args).train()
"""
LOOP = """from accelerate import Accelerator
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.launch  # half a minute: not in `make test-fast`

accelerator = Accelerator({})
model = AutoModelForCausalLM.from_pretrained("gpt2")
"""


def _trained(arguments: str, **keys: Any) -> dict[str, str]:
    return {
        "train.py": TRAIN.format(arguments),
        "ds.json": json.dumps({"zero_optimization": {"stage": 2}} | keys, indent=2),
    }


def _launched(**keys: Any) -> str:
    launch = {"distributed_type": "DEEPSPEED", "num_processes": 2, "deepspeed_config": {"zero_stage": 2} | keys}
    return yaml.safe_dump(launch)


EXAMPLES: dict[str, dict[str, str]] = {
    "renamed-argument": {"train.py": TRAIN.format("evaluation_strategy='no', no_cuda=True, warmup_ratio=0.1")},
    "deprecated-argument": {"train.py": TRAIN.format("gradient_checkpointing=True")},
    "renamed-optimizer": {
        "args.yaml": "output_dir: o\nlearning_rate: 0.1\nper_device_train_batch_size: 2\noptim: adamw_hf\n"
    },
    "renamed-trainer-keyword": {
        "train.py": TRAIN.format("bf16=True").replace("args=args", "args=args, tokenizer=None")
    },
    "renamed-loading-keyword": {"train.py": TRAIN.format("bf16=True").replace('"gpt2"', '"gpt2", use_auth_token=None')},
    "renamed-accelerator-keyword": {"loop.py": LOOP.format("logging_dir='runs'")},
    "deepspeed-mismatch": _trained("max_grad_norm=0.3, learning_rate=3e-4", gradient_clipping=0.5),
    "deepspeed-precision-mismatch": _trained("bf16=True", bf16={"enabled": False}),
    "deepspeed-max-grad-norm-ignored": _trained("max_grad_norm=0.3"),
    "deepspeed-clipping-left-to-default": _trained("max_grad_norm=0.7")
    | {"setup.yaml": "machine: {packages: {deepspeed: 0.16.0}}\n"},
    "deepspeed-accumulation-missing": _trained("gradient_accumulation_steps=4"),
    "deepspeed-accumulation-beats-code": {
        "loop.py": LOOP.format("gradient_accumulation_steps=4"),
        "ds.json": '{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2}',
        "launch.yaml": yaml.safe_dump(
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}}
        ),
    },
    "deepspeed-number-as-string": _trained(
        "learning_rate=1e-3", steps_per_print="100", optimizer={"params": {"lr": "1e-3"}}
    ),
    "deepspeed-flag-as-string": _trained("bf16=True", zero_allow_untested_optimizer="true"),
    "deepspeed-unknown-top-level-key": _trained("max_grad_norm=0.5", gradient_cliping="auto"),
    "deepspeed-unknown-block-key": _trained("bf16=True", fp16={"enabled": "auto", "loss_scale_windw": 500}),
    "deepspeed-deprecated-key": _trained(
        "bf16=True", zero_optimization={"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}
    ),
    "deepspeed-removed-block": _trained("bf16=True", compression_training={"enabled": False, "x": {}}),
    "deepspeed-offload-without-block": _trained(
        "bf16=True", zero_optimization={"stage": 2, "offload_optimizer": "cpu"}
    ),
    "launcher-accumulation-auto": {
        "loop.py": LOOP.format("gradient_accumulation_steps=4"),
        "launch.yaml": _launched(gradient_accumulation_steps="auto"),
    },
    "launcher-deepspeed-against-arguments": {
        "train.py": TRAIN.format("max_grad_norm=0.3").replace('deepspeed="ds.json", ', ""),
        "launch.yaml": _launched(gradient_clipping=1.5),
    },
    "launch-deepspeed-unknown-key": {"launch.yaml": _launched(zero3_save_16bit_modell=True, gradient_clipping=1.0)},
    "text-where-a-number-belongs": {
        "args.yaml": "output_dir: o\nlearning_rate: 3e-4  # fast\nper_device_train_batch_size: 2\nbf16: 'true'\n"
    },
}


def _replaced(text: str, pairs: str) -> list[str]:
    """Return the lines of a text with those of the pairs replaced; what becomes empty goes."""
    each = pairs.split("\n")
    table = dict(zip(each[:-1:2], each[1::2], strict=True))
    return [table.get(line, line) for line in text.split("\n") if table.get(line, line) or line not in table]


CODES = {code for table in CURES.values() for code in table} | {code for code in checks() if code.startswith(NAMES)}


def _written(files: dict[str, str], folder: Path) -> list[Path]:
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    return [folder / name for name in files]


def _mend(*files: Path) -> tuple[list[str], str]:
    """Mend files and return the names of those written, and what was told."""
    told: list[str] = []
    return [Path(name).name for name in mend(files, told.append)], "\n".join(told)


def test_every_code_with_a_cure_is_a_check_with_an_example() -> None:
    """No cure is for a finding that nobody makes, and each is tried."""
    assert checks().keys() >= CODES
    assert EXAMPLES.keys() == CODES


@pytest.mark.parametrize("code", EXAMPLES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_mended_finding_is_gone(code: str, newline: str, tmp_path: Path) -> None:
    """The finding is there before and not after, nothing new is found, and a second run writes nothing."""
    files = {name: text.replace("\n", newline) for name, text in EXAMPLES[code].items()}
    paths = _written(files, tmp_path)
    before = {finding.code for finding in doctor.examine_files(paths).findings}
    assert code in before
    names, told = _mend(*paths)
    assert names
    assert all(f"--- {tmp_path / name}" in told for name in names)
    after = {finding.code for finding in doctor.examine_files(paths).findings if finding.level != "info"}
    assert code not in after
    assert after <= before
    assert _mend(*paths)[0] == []
    for path in paths:
        data = path.read_bytes()
        assert data.count(b"\n") == data.count(newline.encode())


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
def test_a_script_keeps_every_other_line(newline: str, mark: str, tmp_path: Path) -> None:
    """Of an old script exactly the lines of the table change: comments, blanks, tabs, quotes, marks and ends stay."""
    (path,) = _written({"train.py": mark + SCRIPT.replace("\n", newline)}, tmp_path)
    names, told = _mend(path)
    expected = newline.join(_replaced(SCRIPT, MENDED))
    assert path.read_bytes().decode() == mark + expected
    assert names == ["train.py"]
    assert "adafactor is left: its value is computed" in told
    assert "no_cuda is left in printed, which other lines use as well" in told
    ast.parse(expected)
    assert _mend(path)[0] == []


OLD = {
    "evaluation_strategy": "no", "group_by_length": True, "warmup_ratio": 0.1, "torchdynamo": "eager",
    "per_gpu_train_batch_size": 2, "per_gpu_eval_batch_size": 2, "fsdp_min_num_params": 10, "xpu_backend": None,
    "fsdp_transformer_layer_cls_to_wrap": "Layer", "dispatch_batches": False, "split_batches": False,
    "push_to_hub_model_id": "a/b", "push_to_hub_token": "t", "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False}, "evaluate_during_training": False, "sharded_ddp": False,
    "logging_dir": "runs", "past_index": -1, "tpu_metrics_debug": False,
}  # fmt: skip
"""Values of 4.x; a field that is not here is tried with True."""


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "push_to_hub_organization"])
def test_mended_arguments_can_be_made(name: str, tmp_path: Path) -> None:
    """The installed TrainingArguments take what is written instead of each old name, without a warning."""
    text = "from transformers import TrainingArguments\n"
    text += f"args = TrainingArguments(output_dir={str(tmp_path)!r}, {name}={OLD.get(name, True)!r})\n"
    (path,) = _written({"train.py": text}, tmp_path)
    assert _mend(path)[0] == ["train.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        exec(path.read_text(), {})


def test_a_script_in_another_encoding_keeps_it(tmp_path: Path) -> None:
    """The bytes of a declared encoding come back."""
    path = tmp_path / "train.py"
    text = "# -*- coding: latin-1 -*-\n# été\n" + TRAIN.format("no_cuda=False")
    path.write_bytes(text.encode("latin-1"))
    _mend(path)
    assert path.read_bytes() == text.replace("no_cuda", "use_cpu").encode("latin-1")


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_yaml_file_keeps_every_other_line(newline: str, tmp_path: Path) -> None:
    """Anchors, quotes, comments, indents and flow mappings stay; values become what the new name takes."""
    (path,) = _written({"args.yaml": YAML.replace("\n", newline)}, tmp_path)
    _mend(path)
    assert path.read_bytes().decode() == newline.join(_replaced(YAML, MENDED_YAML))
    assert _mend(path)[0] == []


def test_a_json_file_keeps_its_layout(tmp_path: Path) -> None:
    """Tabs, spaces, line ends, the order of keys and odd numbers of a DeepSpeed JSON stay."""
    text = (
        '{\r\n\t"train_batch_size" : "auto",\r\n\t"gradient_accumulation_steps":"4" ,\r\n\t"zero_optimization": '
        '{ "stage":3,   "reduce_bucket_size": 1E+8,\r\n\t\t"stage3_gather_fp16_weights_on_model_save": true },\r\n'
        '\t"nebula": {"enabled": false}\r\n}\r\n'
    )
    train, path = _written(
        {"train.py": TRAIN.format("gradient_accumulation_steps=4, max_grad_norm=2.0"), "ds.json": text}, tmp_path
    )
    _mend(train, path)
    expected = text.replace('"4"', "4").replace("fp16_weights", "16bit_weights")
    expected = expected.replace(',\r\n\t"nebula": {"enabled": false}', ',\r\n\t"gradient_clipping": "auto"')
    assert path.read_bytes().decode() == expected


LAYOUTS = (
    "f(a=1, b=2, c=3)",
    "f(a=1, b=2, c=3,)",
    "f(\n    a=1,\n    b=2,\n    c=3\n)",
    "f(\n    a=1,  # A\n    b=2,  # B\n    c=3,  # C\n)",
    "f(a=1,\n  b=2,  # two, with a comma\n  c=3)",
    "f(a=1, b=2,\n  c=3)",
    "f(\n  # own\n  a=1, b=(2,\n  2),\n\n  # last\n  c=3,\n  # end\n)",
    "f(a=1  # first\n  , b=2\n  , c=3)",
    "f( a = 1 ,b=[1,2] , c={'x': 1,} )",
    "f(a=1,b=2,c=3)",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_any_arguments_can_be_taken_out(layout: str, newline: str) -> None:
    """What is left is Python with the other arguments; comments on lines of their own stay."""
    text = layout.replace("\n", newline)
    call: Any = ast.parse(layout).body[0]
    reader = Reader(text)
    node = next(node for node in reader.nodes if type(node).__name__ == "Call")
    listing = reader._arguments(node)
    for size in range(1, 4):
        for gone in combinations(range(3), size):
            made = edited(text, taken_out(text, [item.span for item in listing.items], set(gone), listing.close))
            left: Any = ast.parse(made).body[0]
            kept = [ast.dump(keyword) for i, keyword in enumerate(call.value.keywords) if i not in gone]
            assert [ast.dump(keyword) for keyword in left.value.keywords] == kept, made
            own = [line for line in text.split(newline) if line.strip().startswith("#")]
            assert [line for line in made.split(newline) if line.strip().startswith("#")][: len(own)] == own


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "b": {"c": 2}, "d": [1, 2]}', '{\n\t"a": 1,\n\t"b": {"c": 2},\n\t"d": [1, 2]\n}\n',
     '{"a":1\n,"b":{\n"c":2}\n,"d":[1,2]}', "a: 1\nb:\n  c: 2   # two\nd: [1, 2]\n", "{a: 1, b: {c: 2}, d: [1, 2]}\n",
     "# top\n'a': 1\n\nb: {c: 2}\nd:\n- 1\n- 2\n# end"],
)  # fmt: skip
@pytest.mark.parametrize(
    "change",
    [
     Change("remove", ("a",)), Change("remove", ("d",)), Change("rename", ("b",), "new"),
     Change("set", ("b", "c"), "auto"),
     Change("add", ("e",), 2), Change("add", ("b", "e"), {"x": 1}), Change("set", ("d",), [1.5, 2])],
    ids=lambda change: f"{change.do}-{'.'.join(change.path)}",
)  # fmt: skip
def test_a_change_of_a_mapping_is_that_change(text: str, change: Change) -> None:
    """Any change in any layout gives the old data with it, and all comments."""
    is_json = text[:1] == "{" and '"' in text
    made = changed(text, [change], is_json=is_json)
    assert all(line in made for line in ("# top", "# end") if line in text)
    assert (json.loads if is_json else yaml.safe_load)(made) != (json.loads if is_json else yaml.safe_load)(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [("x: &a {logging_dir: o}\n<<: *a\n", "logging_dir"), ("logging_dir: &o runs\nrun_name: *o\n", "logging_dir"),
     ('{"a": 1, "a": 2}', "a"), ("b: 1\nb: 2\n", "b")],
)  # fmt: skip
def test_what_others_may_use_is_not_taken_out(text: str, path: str) -> None:
    """Anchors, keys from an anchor and keys that stand twice are refused."""
    with pytest.raises(UnsafeError):
        changed(text, [Change("remove", (path,))], is_json=text[0] == "{")


@pytest.mark.parametrize(
    "arguments",
    ["eval_strategy='no', evaluation_strategy='steps'", "warmup_ratio=1.5", "group_by_length=flag()",
     "optim='sgd', adafactor=True",
     "accelerator_config=config, dispatch_batches=False", "logging_dir=(x := 'runs')", "push_to_hub_organization='us'"],
)  # fmt: skip
def test_what_is_not_sure_is_left_with_a_reason(arguments: str, tmp_path: Path) -> None:
    """Both names, computed values that would have to change, values with another meaning: nothing is written."""
    (path,) = _written({"train.py": TRAIN.format(arguments)}, tmp_path)
    names, told = _mend(path)
    assert names == []
    assert f"{path}:3: " in told
    assert " is left: " in told


OTHERS = (
    """from mine import TrainingArguments
TrainingArguments(no_cuda=True)""",
    """def TrainingArguments(**k): ...
TrainingArguments(no_cuda=True)""",
    """import argparse
argparse.Namespace(evaluation_strategy='no')""",
    """x = dict(no_cuda=True)""",
    """TrainingArguments(no_cuda=True)""",
    """from transformers import TrainingArguments
class A(TrainingArguments):
    no_cuda: bool = False
A('o', no_cuda=True)""",
    """from transformers import TrainingArguments
def f(TrainingArguments):
    return TrainingArguments(no_cuda=True)""",
    """from transformers import Trainer
class T(Trainer):
    def __init__(self, tokenizer, **k): ...
T(tokenizer=1)""",
)
"""Scripts in which an old name is no name of the stack."""


@pytest.mark.parametrize(
    "source",
    OTHERS,
)
def test_names_of_others_are_not_touched(source: str, tmp_path: Path) -> None:
    """Only what resolves through imports to the class that dropped the name is changed."""
    (path,) = _written({"train.py": source + "\n"}, tmp_path)
    assert _mend(path) == ([], "")


def test_a_release_that_still_takes_the_name_is_left_alone(tmp_path: Path) -> None:
    """Under transformers 4 the old names are the right ones."""
    files = {
        "train.py": TRAIN.format("evaluation_strategy='no'"),
        "setup.yaml": "machine: {packages: {transformers: 4.44.0}}\n",
    }
    assert _mend(*_written(files, tmp_path))[0] == []


def test_what_is_silenced_is_not_mended(tmp_path: Path) -> None:
    """A finding that somebody decided to live with stays."""
    text = TRAIN.format("evaluation_strategy='no'").replace(
        ", evaluation", ",\n    # hf-efficient: ignore[renamed-argument] 4.x\n    evaluation"
    )
    (path,) = _written({"train.py": text}, tmp_path)
    assert _mend(path)[0] == []
    path.write_text(text.replace(" 4.x", ""))
    assert _mend(path)[0] == ["train.py"]


def test_a_default_does_not_win_over_what_is_written(tmp_path: Path) -> None:
    """A JSON that differs from an argument nobody gave is no case for auto, nor is a file that a loop uses too."""
    files = _trained("bf16=True", gradient_clipping=0.5)
    assert _mend(*_written(files, tmp_path))[0] == []
    loop = LOOP.format("deepspeed_plugin=DeepSpeedPlugin(hf_ds_config='ds.json')")
    files = _trained("max_grad_norm=0.3", gradient_clipping=0.5) | {"loop.py": loop}
    assert _mend(*_written(files, tmp_path))[0] == []


def test_contradicting_precisions_are_no_case_for_auto(tmp_path: Path) -> None:
    """Where the arguments turn no precision on, the JSON's may be what was meant."""
    files = _trained("fp16=False, bf16=False", bf16={"enabled": True})
    assert _mend(*_written(files, tmp_path))[0] == []
    files = _trained("bf16=True", fp16={"enabled": True}, bf16={"enabled": "auto"})
    assert _mend(*_written(files, tmp_path))[0] == ["ds.json"]


def test_only_named_files_are_written(tmp_path: Path) -> None:
    """A file that another one refers to is read and not touched, and an unreadable one stays as it is."""
    files = _trained("max_grad_norm=0.3, no_cuda=True") | {"broken.py": "def (:\n", "broken.json": "{'a': 1"}
    paths = _written(files, tmp_path)
    assert _mend(*(path for path in paths if path.name != "ds.json"))[0] == ["train.py"]
    assert {path.name: path.read_text() for path in paths[1:]} == {name: files[name] for name in list(files)[1:]}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    """The file behind a link is written once, keeps its mode, and the link stays a link."""
    (path,) = _written({"train.py": TRAIN.format("no_cuda=True")}, tmp_path)
    path.chmod(0o751)
    link = tmp_path / "link.py"
    link.symlink_to(path.name)
    assert _mend(link, path)[0] == ["link.py"]
    assert link.is_symlink()
    assert "use_cpu" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o751


def test_a_read_only_file_stops_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence and exit 2; the files beside it are not written either."""
    files = {"a.py": TRAIN.format("no_cuda=True"), "b.py": TRAIN.format("no_cuda=True")}
    one, other = _written(files, tmp_path)
    other.chmod(0o444)
    assert main(["doctor", "--fix", str(one), str(other)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert "read-only" in error
    assert "no_cuda" in one.read_text()


def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without libcst a script cannot be mended: the command to install it, exit 2; YAML and JSON need none."""
    for name in ("hf_efficient.doctor.fix.python", "hf_efficient.doctor.fix.calls"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "libcst", None)
    script, args = _written({"train.py": TRAIN.format("no_cuda=True"), "args.yaml": YAML}, tmp_path)
    assert main(["doctor", "--fix", str(script)]) == 2
    assert "pip install 'hf-efficient[fix]'" in capsys.readouterr().err
    assert _mend(args)[0] == ["args.yaml"]


def test_json_goes_to_stdout_and_the_diff_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The diff and the names come first on stderr, what is left as JSON on stdout."""
    (path,) = _written({"train.py": TRAIN.format("no_cuda=True")}, tmp_path)
    assert main(["doctor", "--fix", "--json", str(path)]) in (0, 1)
    out, err = capsys.readouterr()
    assert not [row for row in json.loads(out)["findings"] if row["code"] == "renamed-argument"]
    assert "use_cpu=True" in err
    assert f"mended {path}" in err
    assert os.linesep.join(err.splitlines()[:1]).startswith("--- ")


def test_libcst_is_loaded_for_scripts_that_are_mended_only() -> None:
    """No module but those behind --fix names it, and what imports these does so inside a function."""
    package = Path(doctor.__file__).parents[1]
    naming = {path.name for path in package.rglob("*.py") if "import libcst" in path.read_text()}
    assert naming == {"calls.py", "python.py"}
    for path in package.rglob("*.py"):
        tops = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        inner = path.parent.name == "fix" and path.name != "mend.py"
        assert inner or not [node for node in tops if str(node.module).endswith((".fix.python", ".fix.calls"))]
