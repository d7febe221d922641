"""Merging tricks: authors, families, conflicts, what is left out, and the effective batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_efficient.effective_batch import at_processes, effective_batch
from hf_efficient.machine import Machine
from hf_efficient.merge import make_plan, preset
from hf_efficient.plan import Conflict, flatten, nest
from hf_efficient.presets import PRESETS
from hf_efficient.tricks import bf16, fp16, zero

OLD_CPU, NEW_CPU = Machine(cpu="old"), Machine(cpu="new", cpu_bf16=True)


def test_every_setting_has_its_author() -> None:
    """A setting names the trick that made it, arguments included."""
    plan = make_plan("gradient_accumulation(4)")
    assert plan.author("trainer", "gradient_accumulation_steps") == "gradient_accumulation(4)"
    assert plan.author("trainer", "bf16") == ""


def test_a_trick_object_and_its_spelling_are_the_same() -> None:
    """`zero(3)` called in Python or spelled on a command line gives one plan."""
    assert make_plan(zero(3), bf16()) == make_plan("zero(3)", "bf16")


def test_your_trick_replaces_the_presets_of_its_family() -> None:
    """A trick named beside a preset wins, and that is said."""
    plan = make_plan("lean", "adafactor")
    assert plan["trainer"]["optim"] == "adafactor"
    assert plan.replaced == ("adafactor replaces lean's adamw_8bit.",)


def test_the_same_trick_named_again_replaces_nothing() -> None:
    """Naming what the preset has already is no replacement."""
    assert make_plan("lean", "adamw_8bit").replaced == ()


@pytest.mark.parametrize(
    ("names", "both"),
    [
        (("bf16", "fp16"), ("bf16", "fp16", "precision")),
        (("zero(2)", "zero(3)"), ("zero", "zero(3)", "sharding")),
        (("lean", "turing"), ("lean's bf16", "turing's fp16")),
        (("safe", "lean"), ("safe's adamw_fused", "lean's adamw_8bit")),
    ],
)
def test_two_of_one_family_conflict_and_both_are_named(names: tuple[str, ...], both: tuple[str, ...]) -> None:
    """Two tricks of one family, or two presets that disagree, stop with both names."""
    with pytest.raises(Conflict) as error:
        make_plan(*names)
    assert all(name in str(error.value) for name in both)


def test_naming_the_trick_settles_two_presets_that_disagree() -> None:
    """What two presets disagree about is no conflict once you have decided it, and both are said to be replaced."""
    plan = make_plan("safe", "lean", "adafactor")
    assert plan["trainer"]["optim"] == "adafactor"
    assert plan.replaced == ("adafactor replaces safe's adamw_fused.", "adafactor replaces lean's adamw_8bit.")


def test_two_presets_that_agree_are_merged() -> None:
    """Presets may share tricks; the plan has each once."""
    assert len(make_plan("zero2", "safe").tricks) == len(make_plan("zero2").tricks)


def test_two_values_for_one_key_conflict_across_families() -> None:
    """Tricks of different families that want one key differently are a conflict that names key and both."""
    other = replace(fp16(), name="other", family="else")
    with pytest.raises(
        Conflict, match=r"bf16 sets mixed_precision='bf16' for the accelerator, other sets it to 'fp16'"
    ):
        make_plan(bf16(), other)


@pytest.mark.parametrize("out", ["compile", "compile('inductor')", "compile()"])
def test_without_takes_a_trick_out(out: str) -> None:
    """`without` removes by function name or by spelling, and says so."""
    plan = make_plan("fast", without=(out,))
    assert "torch_compile" not in plan["trainer"]
    assert plan.replaced == ("fast's compile is left out, as you ask.",)


def test_without_takes_any_call_of_a_bare_name_but_only_the_one_spelled() -> None:
    """`zero` removes zero(3); `zero(2)` does not."""
    assert make_plan("zero3", without=["zero"]).engine == "NO"
    with pytest.raises(ValueError, match=r"no zero\(2\) to leave out"):
        make_plan("zero3", without=["zero(2)"])


@pytest.mark.parametrize(
    ("out", "sentence"), [("fp16", "has no fp16"), ("lean", "is a preset"), ("bf61", "did you mean bf16")]
)
def test_without_refuses_what_is_not_there(out: str, sentence: str) -> None:
    """Leaving out what the plan has not is a mistake worth a sentence."""
    with pytest.raises(ValueError, match=sentence):
        make_plan("lean", without=(out,))


def test_without_settles_two_presets_that_disagree() -> None:
    """Leaving one of the two out is a way to decide."""
    assert make_plan("lean", "fast", without="adamw_8bit")["trainer"]["optim"] == "adamw_torch_fused"


def test_what_is_left_out_is_not_said_to_be_taken() -> None:
    """The preset `cpu` does not say that it takes bf16 when you leave it out."""
    plan = make_plan("cpu", without=["bf16"], machine=NEW_CPU)
    assert plan.notes == ()
    assert plan.replaced == ("cpu's bf16 is left out, as you ask.",)


def test_presets_are_as_documented() -> None:
    """The presets hold the tricks that the README promises."""
    safe = {"adamw_fused", "gradient_clipping", "data_loading"}
    sharded = safe | {"bf16", "activation_checkpointing"}
    lean = {"activation_checkpointing", "adamw_8bit", "gradient_clipping", "data_loading"}
    expected = {
        "safe": safe, "fast": safe | {"bf16", "tf32", "compile"}, "lean": lean | {"bf16", "tf32"},
        "turing": lean | {"fp16"}, "cpu": safe, "zero1": sharded | {"zero(1)"}, "zero2": sharded | {"zero"},
        "zero3": sharded | {"zero(3)"}, "zero2_offload": sharded | {"zero(offload='optimizer')"},
        "zero3_offload": sharded | {"zero(3, 'optimizer')"}, "lora_finetune": sharded | {"lora"},
        "zero3_offload_params": sharded | {"zero(3, 'all')"},
        "qlora_finetune": sharded - {"adamw_fused"} | {"qlora", "adamw_8bit(paged=True)"}, "sft": sharded | {"packing"},
        "fsdp2": sharded | {"fsdp"},
    }  # fmt: skip
    assert {name: {trick.name for trick in p.tricks} for name, p in PRESETS.items()} == expected
    assert all(preset(name)["loop"]["max_grad_norm"] == 1.0 for name in PRESETS)


def test_cpu_takes_bf16_only_where_the_cpu_has_it() -> None:
    """The preset `cpu` asks the machine, and says what it decided and why."""
    assert make_plan("cpu", machine=NEW_CPU)["trainer"]["bf16"] is True
    plan = make_plan("cpu", machine=OLD_CPU)
    assert "bf16" not in plan["trainer"]
    assert "bf16 instructions" in plan.notes[0]


@pytest.mark.parametrize(
    ("names", "gpu", "sentence"),
    [
        (("bf16",), "T4", "bf16 needs a GPU of compute capability 8.0, and T4 has 7.5. Use fp16"),
        (("tf32",), "V100-16GB", "tf32 needs a GPU of compute capability 8.0"),
        (("fast",), "rtx4090", ""),
        (("turing",), "t4", ""),
    ],
)
def test_unmet_needs_name_trick_card_and_remedy(names: tuple[str, ...], gpu: str, sentence: str) -> None:
    """A need that a card does not meet is one sentence; a plan that fits the card has none."""
    packages = {"bitsandbytes": "1", "deepspeed": "1"}
    unmet = make_plan(*names).unmet(replace(Machine.named(gpu), packages=packages))
    assert " ".join(unmet).startswith(sentence)
    assert bool(unmet) == bool(sentence)


def test_a_cpu_meets_bf16_but_not_tf32_fp16_or_missing_packages() -> None:
    """bf16 is for Ampere or a CPU; tf32 and fp16 are for GPUs; a package must be installed."""
    unmet = [make_plan(name).unmet(NEW_CPU) for name in ("bf16", "tf32", "fp16", "adamw_8bit", "compile")]
    assert [bool(sentences) for sentences in unmet] == [False, True, True, True, False]
    assert "pip install" in unmet[3][0]


@pytest.mark.parametrize(("processes", "steps"), [(1, 8), (2, 4), (8, 1)])
def test_accumulation_follows_from_the_effective_batch(processes: int, steps: int) -> None:
    """Accumulation is effective / (per device x processes), through both doors."""
    plan = make_plan("batch_size(8, effective=64)")
    assert at_processes(plan, processes)["trainer"]["gradient_accumulation_steps"] == steps
    assert at_processes(plan, processes, "loop")["accelerator"]["gradient_accumulation_steps"] == steps
    assert effective_batch(plan, processes) == 64


@pytest.mark.parametrize(
    ("spelling", "processes", "remedies"),
    [
        ("batch_size(24, effective=64)", 1, ("per_device 16 or 32", "effective 48 or 72")),
        ("batch_size(8, effective=64)", 3, ("effective 48 or 72",)),
        ("batch_size(8, effective=4)", 1, ("per_device 4", "effective 8")),
    ],
)
def test_an_effective_batch_that_is_not_whole_is_refused(
    spelling: str, processes: int, remedies: tuple[str, ...]
) -> None:
    """Nothing is rounded: the sentence names the nearest numbers that are exact."""
    with pytest.raises(ValueError, match="cannot be exact") as error:
        at_processes(make_plan(spelling), processes)
    assert all(remedy in str(error.value) for remedy in remedies)


def test_a_named_accumulation_must_give_the_product() -> None:
    """An accumulation that contradicts the effective batch is a conflict, one that agrees is not."""
    agreed = make_plan("batch_size(8, effective=64)", "gradient_accumulation(8)")
    assert at_processes(agreed, 1)["trainer"]["gradient_accumulation_steps"] == 8
    with pytest.raises(
        Conflict, match=r"takes 4 accumulation steps on 2 processes, but 8 is set by gradient_accumulation"
    ):
        at_processes(agreed, 2)


def test_without_an_effective_batch_it_is_the_product() -> None:
    """per device x accumulation x processes, where nobody states the effective batch; None without a batch size."""
    assert effective_batch(make_plan("batch_size(4)", "gradient_accumulation(3)"), 2) == 24
    assert effective_batch(make_plan("bf16"), 2) is None


def test_deepspeed_counts_only_in_a_plan_with_that_engine() -> None:
    """Only zero makes the engine DeepSpeed."""
    assert make_plan("lean").engine == "NO"
    assert make_plan("zero").engine == "DEEPSPEED"


def test_override_replaces_all_that_lies_below_a_key() -> None:
    """Your mapping takes the place of the plan's whole mapping, not of single leaves."""
    plan = make_plan("activation_checkpointing(2)").override(
        "trainer", {"activation_checkpointing_kwargs": {"use_reentrant": False}}, by="you"
    )
    assert plan["trainer"]["activation_checkpointing_kwargs"] == {"use_reentrant": False}


def test_nest_undoes_flatten() -> None:
    """Settings are flat, targets take nested mappings."""
    tree = {"a": {"b": 1, "c": {"d": [1]}}, "e": None}
    assert nest(dict(flatten(tree))) == tree
