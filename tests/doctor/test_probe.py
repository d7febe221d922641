"""`doctor --probe`: what a tiny model of the configuration shows, confirms and refutes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.checks.run import with_effective
from hf_efficient.doctor.probe import probed
from hf_efficient.doctor.report import Report
from hf_efficient.finding import Finding, error, warning
from hf_efficient.promises.heads import HEADS
from hf_efficient.reading.document import from_document
from hf_efficient.reading.setup import Setup

pytestmark = pytest.mark.launch

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
ARGUMENTS = "from transformers import Trainer, TrainingArguments\n"


def _model(head: str, **more: Any) -> dict[str, Any]:
    """Return a setup's model with the configuration of a head of the matrix."""
    return {"config": json.loads(HEADS[head]().to_json_string(use_diff=False)), "load_dtype": "float32", **more}


def _run(**document: Any) -> Setup:
    return with_effective(from_document(document))


def _found(*runs: Setup, given: tuple[Finding, ...] = ()) -> dict[str, Finding]:
    return {finding.code: finding for finding in probed(Report(given, runs)).findings}


@pytest.mark.parametrize(
    ("head", "more", "level", "says"),
    [
        ("llama", {}, "info", "multiplies it by 1"),
        ("gpt2", {}, "info", "divides by num_items_in_batch"),
        ("vit", {}, "info", "Probed"),
        ("bert", {"class": "BertForTokenClassification"}, "error", "by 8"),
        ("t5", {}, "error", "by 8"),
        ("llama", {"class": "AutoModelForSequenceClassification", "num_labels": 3}, "error", "by 8"),
    ],
)
def test_the_head_is_asked_for_the_number_of_items(head: str, more: Mapping[str, Any], level: str, says: str) -> None:
    """A head that drops num_items_in_batch is an error under accumulation, with both remedies; else it is fine."""
    found = _found(_run(trainer={"gradient_accumulation_steps": 8}, model=_model(head, **more)))["probe-loss-scale"]
    assert found.level == level
    assert says in found.what
    assert level == "info" or all(word in found.fix for word in ("loss_is_scaled_for_ga", "exact_accumulation"))


def test_a_probe_refutes_and_confirms_what_reading_found() -> None:
    """What every run refutes is taken out; what one run confirms stays, and the probe tells it as an info."""
    read = error("a loss", why="w", fix="f").coded("accumulated-loss-not-divided")
    fine = _run(trainer={"gradient_accumulation_steps": 8}, model=_model("llama"))
    faulty = _run(trainer={"gradient_accumulation_steps": 8}, model=_model("t5"))
    other = error("another", why="w", fix="f").coded("something-else")
    assert read.code not in _found(fine, given=(read, other))
    assert other.code in _found(fine, given=(read, other))
    both = probed(Report((read,), (fine, faulty))).findings
    assert read in both
    levels = {finding.what.split(":")[0].split()[0]: finding.level for finding in both if "loss" in finding.code}
    assert levels["Confirms"] == "info"
    milder = warning("a loss", why="w", fix="f").coded("accumulated-loss-not-divided")
    assert _found(faulty, given=(milder,))["probe-loss-scale"].level == "error"


@pytest.mark.parametrize(
    ("head", "body", "level"),
    [
        ("bert", "    loss_is_scaled_for_ga = False\n", "info"),
        ("gpt2", "    loss_is_scaled_for_ga = False\n", "error"),
        ("bert", "    pass\n", "error"),
    ],
)
def test_a_subclass_of_trainer_counts(head: str, body: str, level: str) -> None:
    """The remedy is a remedy for heads that drop the number, and a mistake for those that use it."""
    script = f"{ARGUMENTS}class Mine(Trainer):\n{body}\nMine(model=m, args=TrainingArguments()).train()\n"
    model = _model(head, **({"class": "BertForSequenceClassification"} if head == "bert" else {}))
    run = _run(trainer={"gradient_accumulation_steps": 4}, model=model, script=script)
    assert _found(run)["probe-loss-scale"].level == level


@pytest.mark.parametrize(
    "script",
    [
        "class Mine(Trainer):\n    def compute_loss(self, model, inputs, **_):\n        return 0\nMine().train()\n",
        "Trainer(model=m, compute_loss_func=mine).train()\n",
        "import somebody\nsomebody.OtherTrainer(model=m).train()\n",
        "t = Trainer(model=m)\nexact_accumulation(t)\n",
        "class Mine(Trainer):\n    loss_is_scaled_for_ga = read()\nMine().train()\n",
    ],
)
def test_a_loss_of_the_users_own_is_not_executed(script: str) -> None:
    """It is told in one sentence, and judged by nobody."""
    run = _run(
        trainer={"gradient_accumulation_steps": 4},
        model=_model("bert", **{"class": "BertForSequenceClassification"}),
        script=ARGUMENTS + script,
    )
    found = _found(run)
    assert "probe-loss-scale" not in found
    assert "whether accumulation scales the loss" in found["probe-untried"].what


@pytest.mark.parametrize(
    ("trainer", "peft", "lines", "level", "says"),
    [
        ({"fp16": True}, LORA, "", "info", "are float32"),
        ({"fp16": True}, {**LORA, "autocast_adapter_dtype": False}, "", "error", "lora_A"),
        ({"fp16": True}, LORA, "model = model.half()\n", "error", "float16"),
        ({"fp16": True}, LORA, "model.to(torch.float32)\n", "info", "are float32"),
        ({"fp16": True}, {**LORA, "modules_to_save": ["lm_head"]}, "", "error", "modules_to_save"),
        ({"fp16": True}, None, "", "error", "16 more"),
        ({}, None, "", "warning", "21 of 21"),
    ],
)
def test_trainable_parameters_in_16_bits_are_named(
    trainer: dict[str, Any], peft: dict[str, Any] | None, lines: str, level: str, says: str
) -> None:
    """Loaded, adapted and cast as the run does it; an error where GradScaler meets them, five names at most."""
    script = "import torch\nfrom transformers import AutoModelForCausalLM\nfrom peft import get_peft_model\n"
    script += "model = AutoModelForCausalLM.from_pretrained('x', dtype=torch.float16)\n"
    script += "model = get_peft_model(model, config)\n" if peft else ""
    document = {"trainer": trainer, "model": _model("llama", load_dtype="float16"), "script": script + lines}
    found = _found(_run(**document, **({"peft": peft} if peft else {})))["probe-trainable-dtype"]
    assert found.level == level
    assert says in found.what
    assert found.what.count("weight") <= 6


@pytest.mark.parametrize(
    "lines",
    [
        "model.requires_grad_(False)\n",
        "for p in model.parameters():\n    p.data = p.data.float()\n",
        "if x:\n    model.half()\n",
        "model.to(dtype=wanted)\n",
    ],
)
def test_what_a_script_does_by_hand_is_not_guessed(lines: str) -> None:
    """Where reading cannot know what is trained, and in what, no claim is made."""
    script = (
        "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('x')\n" + lines
    )
    found = _found(_run(trainer={"fp16": True}, model=_model("llama", load_dtype="float16"), script=script))
    assert "probe-trainable-dtype" not in found
    assert "the dtypes of the trainable parameters" in found["probe-untried"].what


def test_engines_keep_masters_of_their_own() -> None:
    """Under DeepSpeed 16-bit parameters are no fault."""
    run = _run(trainer={"fp16": True}, model=_model("llama", load_dtype="float16"), deepspeed={"zero_optimization": {}})
    assert "probe-trainable-dtype" not in _found(run)


@pytest.mark.parametrize(
    ("head", "reentrant", "saved", "level", "says"),
    [
        ("vit", True, ["classifier"], "error", "8 of 10"),
        ("vit", True, None, "error", "backward fails"),
        ("vit", False, None, "info", "fine"),
        ("llama", True, None, "info", "fine"),
    ],
)
def test_reentrant_checkpointing_is_proved_by_a_backward(
    head: str, reentrant: bool, saved: list[str] | None, level: str, says: str
) -> None:
    """Adapters behind frozen pixels get no gradient in the reentrant variant; behind tokens, transformers helps."""
    trainer = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": reentrant}}
    found = _found(_run(trainer=trainer, model=_model(head), peft={**LORA, "modules_to_save": saved}))
    gradients = found["probe-gradients"]
    assert gradients.level == level
    assert says in gradients.what
    assert level == "info" or "use_reentrant=False" in gradients.fix
    assert ("probe-checkpointing" in found) == (level == "info")


@pytest.mark.parametrize("training", [True, False])
def test_checkpointing_of_a_model_that_evaluates_does_nothing(training: bool) -> None:
    """In a loop of one's own, eval mode turns off dropouts and checkpointing; recomputation is counted."""
    script = "from transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('x')\n"
    script += "model.gradient_checkpointing_enable()\nmodel.train()\n" + ("" if training else "model.eval()\n")
    script += "for batch in loader:\n    accelerator.backward(model(**batch).loss)\n"
    found = _found(_run(accelerator={}, model=_model("gpt2"), script=script))
    assert found["probe-checkpointing"].level == ("info" if training else "warning")
    assert ("probe-eval-mode" in found) is not training


def test_the_trainer_trains_whatever_the_mode_was() -> None:
    """Trainer calls model.train() itself, so training: false of the setup is no fault there."""
    run = _run(trainer={"activation_checkpointing": True}, model=_model("gpt2", training=False))
    assert _found(run)["probe-checkpointing"].level == "info"


@pytest.mark.parametrize(
    ("document", "code", "says"),
    [
        ({"model": {"class": "CTRLLMHeadModel"}, "trainer": {"activation_checkpointing": True}},
         "probe-checkpointing-support", "CTRLLMHeadModel"),
        ({"model": {"class": "T5ForConditionalGeneration", "attn_implementation": "flash_attention_2"}, "trainer": {}},
         "probe-attention", "flash_attention_2"),
        ({"model": {"class": "GPT2LMHeadModel"}, "trainer": {}, "peft": LORA}, "probe-adapter-targets", "q_proj"),
        ({"model": {"class": "GPT2LMHeadModel"}, "trainer": {},
          "peft": {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}},
         "probe-untied-weights", "tied"),
    ],
)  # fmt: skip
def test_what_the_class_does_not_support_is_found(document: dict[str, Any], code: str, says: str) -> None:
    """Checkpointing, an attention kernel, targets that are not there, tied weights that an adapter unties."""
    assert says in _found(_run(**document))[code].what


@pytest.mark.parametrize(
    "document",
    [
        {"model": _model("llama", attn_implementation="sdpa"), "trainer": {"activation_checkpointing": True}},
        {"model": _model("llama"), "trainer": {}, "peft": {**LORA, "modules_to_save": ["lm_head"]}},
        {"model": {"class": "GPT2LMHeadModel"}, "trainer": {}, "peft": {"target_modules": ["c_attn"]}},
        {"model": _model("llama"), "trainer": {}, "peft": {"target_modules": ["layers.20.self_attn.q_proj"]}},
    ],
)
def test_what_the_class_supports_is_passed(document: dict[str, Any]) -> None:
    """The relatives without the fault; layers that a tiny model has not are no fault of the file."""
    found = _found(_run(**document))
    assert not [code for code in found if code.startswith(("probe-att", "probe-adapter", "probe-untied"))]
    assert "probe-checkpointing-support" not in found


STREAM = """from datasets import load_dataset
train = load_dataset("json", data_files={files}, split="train", streaming=True)
"""


@pytest.mark.parametrize(("files", "level"), [(1, "warning"), (4, "info")])
def test_local_files_are_divided_among_workers(files: int, level: str, tmp_path: Path) -> None:
    """The script's files are streamed, and two workers counted; they lie beside the script."""
    names = [f"part{number}.jsonl" for number in range(files)]
    for name in names:
        (tmp_path / name).write_text("".join(json.dumps({"text": str(i)}) + "\n" for i in range(30)))
    run = _run(trainer={"dataloader_num_workers": 4}, script=STREAM.format(files=names))
    run = run.having(files=(str(tmp_path / "train.py"),))
    found = _found(run)["probe-shards"]
    assert found.level == level
    assert ("30 and 0" if files == 1 else "60 and 60") in found.what


def test_a_dataset_class_of_the_script_is_not_executed(tmp_path: Path) -> None:
    """Its file is named beside it and would tell if it were touched; the user gets lines to run."""
    script = "import torch\nopen('touched', 'w')\nclass Rows(torch.utils.data.IterableDataset):\n    pass\n"
    found = _found(_run(trainer={"dataloader_num_workers": 3}, script=script))["probe-own-dataset"]
    assert found.level == "info"
    assert "num_workers=3" in found.fix
    assert not Path("touched").exists()


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({}, "name a model with --model"),
        ({"class": "AutoModelForCausalLM", "name": "some/model"}, "name a model with --model"),
        ({"config": {"model_type": "llama", "auto_map": {"AutoModel": "x.Y"}}}, "auto_map"),
        ({"config": {"model_type": "nobody-knows"}}, "nobody-knows"),
        ({"config": {"model_type": "bert"}, "class": "LlamaForCausalLM"}, "BertConfig"),
        ({"config": {"model_type": "llama", "hidden_size": "many"}, "class": "LlamaForCausalLM"}, "Not probed"),
    ],
)
def test_what_cannot_be_probed_is_one_sentence(model: dict[str, Any], says: str) -> None:
    """No model, foreign code, an unknown type, a class of another family, a broken size: an info and no traceback."""
    found = _found(_run(trainer={"gradient_accumulation_steps": 4}, model=model))
    assert {finding.level for finding in found.values()} == {"info"}
    assert says in found["probe-untried"].what
    assert "Traceback" not in str(found)


def test_a_launch_file_alone_is_asked_for_no_model() -> None:
    """Where nothing trains there is nothing to say."""
    assert not _found(_run(launch={"num_processes": 2}))


def test_the_process_stays_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    """Random numbers, environment and stdout are untouched."""
    import torch
    from transformers.utils import logging

    capfd.readouterr()
    before = random.getstate(), torch.get_rng_state().clone(), dict(os.environ), logging.get_verbosity()
    _found(_run(trainer={"gradient_accumulation_steps": 2, "fp16": True}, model=_model("t5"), peft={"r": 2}))
    after = random.getstate(), torch.get_rng_state(), dict(os.environ), logging.get_verbosity()
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    assert before[2:] == after[2:]
    assert capfd.readouterr().out == ""


def test_the_command_probes_with_the_model_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor train.py --model FOLDER --probe --json` prints JSON alone, with what the tiny model showed."""
    from hf_efficient.cli import main

    HEADS["roberta"]().save_pretrained(tmp_path / "model")
    script = (
        f"{ARGUMENTS}from transformers import AutoModelForSequenceClassification as A\nm = A.from_pretrained('x')\n"
    )
    script += "args = TrainingArguments('out', gradient_accumulation_steps=4)\nTrainer(model=m, args=args).train()\n"
    (tmp_path / "train.py").write_text(script)
    code = main(["doctor", str(tmp_path / "train.py"), "--model", str(tmp_path / "model"), "--probe", "--json"])
    found = {row["code"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert "by 4" in found["probe-loss-scale"]["what"]
    assert code == 1
