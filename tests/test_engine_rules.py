"""What goes with DeepSpeed ZeRO and FSDP2: refused with the reason, noted, or let pass, through every door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launched import emitted, launch

from hf_efficient.describe import plan_report
from hf_efficient.emit.loop import settle_loop
from hf_efficient.emit.targets import Options, emit
from hf_efficient.emit.trainer import settle
from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan
from hf_efficient.plan import Conflict, Plan

ZERO = ("zero(1)", "zero(2)", "zero(3)")
OFFLOADED = ("zero(2, 'optimizer')", "zero(3, 'all')")
DOORS = pytest.mark.parametrize("settled", [settle, settle_loop], ids=["trainer", "loop"])
FLAT = "hands the optimizer one flat row of all weights"

REFUSED = [
    *((engine, "adafactor", f"{FLAT}, of which adafactor") for engine in ZERO),
    *((engine, "galore(8)", "galore_adamw cannot project: take adamw_8bit") for engine in ZERO),
    *((engine, "apollo(8)", "apollo_adamw cannot project: take adamw_8bit") for engine in ZERO),
    *((engine, "schedule_free", "evaluates and saves would never reach") for engine in ZERO),
    *((engine, "adamw_8bit", "would take the place of adamw_bnb_8bit") for engine in OFFLOADED),
    *((engine, "adamw_torchao_8bit", "would take the place of adamw_torch_8bit") for engine in OFFLOADED),
    ("fsdp", "adamw_8bit", "adamw_bnb_8bit cannot update: take zero"),
    ("fsdp", "adamw_8bit(paged=True)", "paged_adamw_8bit cannot update: take zero"),
    ("fsdp", "lion_8bit", "lion_8bit cannot update: take zero"),
    ("fsdp", "adafactor", "adafactor cannot update: take adamw_torchao_8bit"),
    ("fsdp", "apollo(8)", "apollo_adamw cannot update: take adamw_torchao_8bit"),
    ("fsdp", "adamw_torchao_4bit", "adamw_torch_4bit cannot update: take adamw_torchao_8bit"),
    ("fsdp", "galore(8)", "end in an error at the first checkpoint"),
    ("fsdp", "fp8", "which accelerate refuses beside fp8"),
]
NOTED = [
    *((engine, "adamw_8bit", "the state of embeddings is in 8 bits too") for engine in ZERO),
    ("zero(2)", "lion_8bit", "the state of embeddings is in 8 bits too"),
    ("zero(3)", "adamw_torchao_8bit", "no multiple of 256"),
    ("zero(1)", "adamw_torchao_4bit", "no multiple of 256"),
    ("zero(3)", "qlora", "after each process has loaded them whole"),
    ("zero(3)", "compile", "parts the compiled graph around every module"),
    ("fsdp", "adamw_torchao_8bit", "cannot be resumed with adamw_torch_8bit"),
    ("fsdp", "schedule_free", "cannot be resumed with schedule_free_adamw"),
    ("fsdp", "qlora", "leaves weights in 4 bits whole on every GPU"),
]
PASSED = [
    *(("zero(2)", name) for name in ("adamw_fused", "lora", "qlora", "compile", "compile(regional=True)", "fp8")),
    *(("zero(2)", name) for name in ("activation_checkpointing(2)", "bf16", "packing", "length_grouping")),
    *(("fsdp", name) for name in ("adamw_fused", "lora", "bf16")),
    *(("fsdp", name) for name in ("compile(regional=True)", "activation_checkpointing(offload=True)")),
    *((engine, name) for engine in OFFLOADED for name in ("adamw_fused", "lora", "bf16")),
]


@pytest.fixture(autouse=True)
def _everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher started this process, and no need of a trick is asked after: what goes with what is known anyway."""
    if request.node.get_closest_marker("launch"):
        return  # a real launcher's process would inherit the variable
    monkeypatch.setenv("LOCAL_RANK", "0")
    for door in ("trainer", "loop"):
        monkeypatch.setattr(f"hf_efficient.emit.{door}.require", lambda *_, **__: None)


@DOORS
@pytest.mark.parametrize(("engine", "trick", "why"), REFUSED)
def test_what_breaks_is_refused(settled: Callable[[Plan], Plan], engine: str, trick: str, why: str) -> None:
    """Both doors, `plan` and every file stop with one sentence, which begins with the engine."""
    plan = make_plan(engine, trick)
    with pytest.raises(Conflict, match=why) as stopped:
        settled(plan)
    assert str(stopped.value).startswith(f"{plan.author('launch', 'distributed_type')} ")
    for write in (
        lambda: emit(plan, "accelerate"),
        lambda: emit(plan, "training-args"),
        lambda: emit(plan, "python", Options(door="accelerate")),
        lambda: plan_report(plan, Machine(), 2),
    ):
        with pytest.raises(Conflict, match=why):
            write()


@DOORS
@pytest.mark.parametrize(("engine", "trick", "what"), NOTED)
def test_what_changes_is_said_once(settled: Callable[[Plan], Plan], engine: str, trick: str, what: str) -> None:
    """The recipes and `plan` print it; without the engine there is nothing to say."""
    plan = make_plan(engine, trick)
    for notes in (settled(plan).notes, plan_report(plan, Machine(), 2)["notes"]):
        assert sum(what in note for note in notes) == 1, notes
    assert not any(what in note for note in settled(make_plan(trick)).notes)


@DOORS
@pytest.mark.parametrize(("engine", "trick"), PASSED)
def test_what_trains_as_on_one_process_passes_without_a_word(
    settled: Callable[[Plan], Plan], engine: str, trick: str
) -> None:
    """No note of the engine's."""
    plan = make_plan(engine, trick)
    assert not [note for note in settled(plan).notes if note.startswith(plan.author("launch", "distributed_type"))]


def test_a_loop_compiles_layers_under_fsdp_and_trainer_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that looks at the model before it trains would stop at FSDP's state; Trainer's whole graph is noted."""
    plan = make_plan("fsdp", "compile")
    with pytest.raises(Conflict, match=r"compiled as a whole before it trains: write compile\(regional=True\)"):
        settle_loop(plan)
    assert any("parts the compiled graph at every layer" in note for note in settle(plan).notes)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        ("adafactor", FLAT),
        ("galore_adafactor_layerwise", "cannot project"),
        ("schedule_free_radam", "would never reach"),
        ("adagrad", "makes adagrad anew"),
        ("paged_adamw_8bit", ""),
        ("rmsprop", ""),
    ],
)
def test_an_optimizer_of_yours_is_held_to_the_same(optimizer: str, why: str) -> None:
    """`optim=` that you pass to training_arguments is refused like a trick's."""
    if not why:
        assert settle(make_plan("zero(2)"), yours={"optim": optimizer})["trainer"]["optim"] == optimizer
        return
    with pytest.raises(Conflict, match=why):
        settle(make_plan("zero(2)"), yours={"optim": optimizer})


@DOORS
def test_the_launchers_engine_is_held_to_the_same(
    settled: Callable[[Plan], Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that only `accelerate launch` named refuses and notes, and the sentence says whose it is."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    with pytest.raises(Conflict, match=rf"^The launcher's zero\(3\) {FLAT}"):
        settled(make_plan("adafactor"))
    assert any(
        note.startswith("The launcher's zero(3) hands adamw_bnb") for note in settled(make_plan("adamw_8bit")).notes
    )
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu")
    with pytest.raises(Conflict, match="updates on the CPU"):
        settled(make_plan("adamw_8bit"))
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(Conflict, match=r"^The launcher's fsdp shards every weight as a DTensor, which lion_8bit"):
        settled(make_plan("lion_8bit"))


def test_fp8_goes_with_fsdp_that_loads_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch YAML of the sentence is taken."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")
    assert settle_loop(make_plan("fp8")).engine == "FSDP"
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    with pytest.raises(Conflict, match=r"^The launcher's fsdp loads the weights in one process"):
        settle_loop(make_plan("fp8"))


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "recipe", "trick", "within", "share"),
    [
        ("zero(2)", "causal_lm", "adamw_8bit", 0.02, 1.0),
        ("zero(2)", "causal_lm", "compile('aot_eager')", 2e-5, 1.0),
        ("zero(3)", "causal_lm", "qlora(4, compute_dtype='float32')", 2e-5, 0.5),
        ("fsdp", "causal_lm", "adamw_torchao_8bit", 0.02, 0.5),
    ],
)
def test_it_trains_as_on_one_process(
    engine: str, recipe: str, trick: str, within: float, share: float, tiny: Path, tmp_path: Path
) -> None:
    """Losses are those of one process with the same trick; `share` of the weights, 4-bit ones too, lies on a rank."""
    data = tmp_path / "notes.jsonl"
    texts = [" ".join(f"w{(number + i) % 100}" for i in range(4 + number)) for number in range(40)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    flags = [
        "--model", str(tiny), "--data", str(data), "--output_dir", str(tmp_path / "out"), "--max_steps", "4",
        "--learning_rate", "0.003", "--lr_scheduler_type", "constant", "--seq-len", "32", "--plan", trick,
    ]  # fmt: skip
    script, size = f"recipes/{recipe}.py", "--per_device_train_batch_size"
    one = launch(script, [*flags, size, "8"], yaml=None, folder=tmp_path / "one")
    two = launch(script, [*flags, size, "4"], yaml=emitted(engine, folder=tmp_path), folder=tmp_path / "two")
    assert (one.returncode, two.returncode) == (0, 0), (one.output[-1500:], two.output[-1500:])
    seen: dict[str, Any] = two.ranks[0]
    assert (seen["processes"], seen["weights"]) == (2, pytest.approx(share, abs=0.01))
    assert seen["losses"] == pytest.approx(one.ranks[0]["losses"], abs=within)
