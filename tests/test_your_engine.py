"""A DeepSpeed configuration, a plugin or a switch of yours beside a plan: taken with its numbers, or a Conflict."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_efficient.emit import launcher, loop, places
from hf_efficient.emit.loop import clip, make_accelerator, prepare_model, settle_loop
from hf_efficient.emit.process import switch_process
from hf_efficient.emit.trainer import settle, training_arguments
from hf_efficient.merge import make_plan
from hf_efficient.plan import Conflict
from hf_efficient.trick import Trick

pytest.importorskip("deepspeed")

DOORS = pytest.mark.parametrize("settled", [settle, settle_loop], ids=["trainer", "loop"])
OFFLOADED = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives this process the variables of a launcher, with those of an engine beside them."""

    def start(**variables: str) -> None:
        for name, value in ({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"} | variables).items():
            monkeypatch.setenv(name, value)

    return start


def zero_of_launcher(stage: int = 2) -> dict[str, str]:
    """Return the variables of a launch YAML with a ZeRO stage."""
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage),
        "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage",
    }


def given(door: Any, config: Any) -> dict[str, Any]:
    """Return a configuration as the door takes one of yours."""
    if door is settle:
        return {"deepspeed": config}
    from accelerate import DeepSpeedPlugin

    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=config)}


@DOORS
def test_your_configuration_is_the_plans_engine(settled: Any, started: Any) -> None:
    """Its stage is the plan's, and where it says nothing of clipping and accumulation the plan's hold, told so."""
    started()
    plan = settled(make_plan("gradient_clipping(0.3)"), yours=given(settled, {"zero_optimization": {"stage": 1}}))
    assert (plan.engine, plan["deepspeed"]["zero_optimization"]["stage"]) == ("DEEPSPEED", 1)
    assert plan.author("deepspeed", "zero_optimization.stage") == "you"
    if settled is settle:
        assert plan["trainer"]["deepspeed"]["gradient_clipping"] == "auto"
        assert any("says nothing of gradient_clipping" in note for note in plan.notes)


@DOORS
def test_your_configuration_must_not_contradict_the_plan(settled: Any, started: Any) -> None:
    """Other clipping, an optimizer that offload would replace, and a second engine stop."""
    started()
    clipping = {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}
    with pytest.raises(Conflict, match=r"gradient_clipping: 1.0, and max_grad_norm is 0.3"):
        settled(make_plan("gradient_clipping(0.3)"), yours=given(settled, clipping))
    with pytest.raises(Conflict, match="would take the place of adamw_bnb_8bit"):
        settled(make_plan("adamw_8bit"), yours=given(settled, OFFLOADED))
    with pytest.raises(Conflict, match=r"zero\(3\) makes the engine, and you pass deepspeed"):
        settled(make_plan("zero(3)"), yours=given(settled, OFFLOADED))
    yours = given(settled, OFFLOADED)  # accelerate makes no such plugin beside a YAML's words
    started(**zero_of_launcher())
    with pytest.raises(Conflict, match=r"The launch YAML says zero_stage: 2, .*says 3"):
        settled(make_plan("safe"), yours=yours)


@DOORS
@pytest.mark.parametrize("device", [{"device": "none"}, None])
def test_offload_to_nowhere_replaces_no_optimizer(settled: Any, device: Any, started: Any) -> None:
    """accelerate's own plugin writes such blocks out; the optimizer of the plan is the one that updates."""
    started()
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": device}}
    plan = settled(make_plan("adamw_8bit"), yours=given(settled, config))
    assert plan.engine == "DEEPSPEED"


def test_a_file_of_yours_is_read(started: Any, tmp_path: Path) -> None:
    """A path is a configuration too; a broken one is one sentence."""
    started()
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4}))
    plan = settle(make_plan("safe"), yours={"deepspeed": str(file)})
    assert plan["trainer"]["gradient_accumulation_steps"] == 4
    assert plan["trainer"]["deepspeed"]["gradient_clipping"] == "auto"
    file.write_text("{")
    with pytest.raises(ValueError, match=r"^Your deepspeed='.*ds.json' is no JSON"):
        settle(make_plan("safe"), yours={"deepspeed": str(file)})


@pytest.mark.parametrize(("switch", "plan"), [("deepspeed", "zero"), ("fsdp", "fsdp")])
def test_an_engine_is_not_switched_off_beside_the_plan(switch: str, plan: str, started: Any) -> None:
    """Without its switch nothing would make the plan's engine, and the plan would still say that it is there."""
    started()
    with pytest.raises(Conflict, match=f"{plan} makes the engine, and you pass {switch}=None"):
        settle(make_plan(plan), yours={switch: None})


def test_a_plugin_of_yours_is_told_the_plans_numbers(started: Any) -> None:
    """accelerate would fill its "auto" clipping with 1.0; silence of the plan is no clipping."""
    started()
    config = {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto", "gradient_accumulation_steps": "auto"}
    plugin = given(settle_loop, config)["deepspeed_plugin"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accelerate.Accelerator.__init__", lambda self, **_: None)
        patch.setattr(loop, "_check_keywords", lambda *_: None)
        patch.setattr(loop, "_require_the_launch", lambda *_: None)
        make_accelerator(make_plan("gradient_accumulation(3)"), deepspeed_plugin=plugin)
    assert (plugin.deepspeed_config["gradient_clipping"], plugin.gradient_clipping) == (0.0, 0.0)
    assert (plugin.deepspeed_config["gradient_accumulation_steps"], plugin.gradient_accumulation_steps) == (3, 3)


def test_accumulation_as_a_plugin_is_refused_under_deepspeed(started: Any) -> None:
    """The engine is not told of it: it would update after every micro-batch."""
    from accelerate.utils import GradientAccumulationPlugin

    started(**zero_of_launcher())
    yours = {"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=4)}
    with pytest.raises(Conflict, match="hides its steps from DeepSpeed's engine"):
        settle_loop(make_plan("safe"), yours=yours)


@DOORS
def test_a_cpu_launcher_drops_no_engine_in_silence(settled: Any, started: Any) -> None:
    """ACCELERATE_USE_CPU makes plain data parallelism of ZeRO, whoever asks for it."""
    started(ACCELERATE_USE_CPU="true", **zero_of_launcher())
    for plan in ("safe", "zero(2)"):
        with pytest.raises(ValueError, match=r"ACCELERATE_USE_CPU .* drops DeepSpeed without a word"):
            settled(make_plan(plan))


def test_another_engine_than_the_plans_is_told_when_it_is_built(started: Any) -> None:
    """Whatever makes Accelerate take another engine or another number of processes, the loop does not train."""
    found = SimpleNamespace(num_processes=1, distributed_type=SimpleNamespace(value="MULTI_CPU"))
    with pytest.raises(ValueError, match="trains with DEEPSPEED, and Accelerate took MULTI_CPU"):
        loop._require_the_launch(found, make_plan("zero"))
    started(WORLD_SIZE="2")
    with pytest.raises(ValueError, match=r"each would train alone. Without GPUs take recipes/launch/ddp.yaml"):
        loop._require_the_launch(found, make_plan("zero"))
    with pytest.raises(ValueError, match="Without GPUs set ACCELERATE_USE_CPU=true"):
        loop._require_the_launch(found, make_plan("safe"))


def test_zero_3_on_several_cpus_is_one_sentence(started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """zero.Init would see one process, and the model would be blamed."""
    started(WORLD_SIZE="2")
    with pytest.raises(ValueError, match="ZeRO-3 on several processes needs a GPU for each"):
        training_arguments(make_plan("zero(3)"), output_dir=str(tmp_path))
    places.require_zero_3_sees_all(make_plan("zero(2)"))
    monkeypatch.setattr("deepspeed.comm.is_initialized", lambda: True)
    places.require_zero_3_sees_all(make_plan("zero(3)"))


def test_your_accumulation_against_a_launch_yaml_is_a_conflict(started: Any) -> None:
    """The YAML's number would win in the engine, and the arguments say yours."""
    started(ACCELERATE_GRADIENT_ACCUMULATION_STEPS="2")
    with pytest.raises(Conflict, match="The launcher asks for 2 accumulation steps, you for 8"):
        settle(make_plan("safe"), yours={"gradient_accumulation_steps": 8})


def test_the_processes_of_all_machines_are_counted(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--num_processes` is that of the whole run: two machines of four cards make eight."""
    started(LOCAL_WORLD_SIZE="8", GROUP_WORLD_SIZE="2")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    with pytest.raises(ValueError, match=r"Start it with --num_processes 8\.$"):
        places.require_cards()


def test_a_launchers_two_precisions_are_a_conflict(started: Any, tmp_path: Path) -> None:
    """The file's literal decides in the engine, whatever the YAML beside it says."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    started(
        **zero_of_launcher() | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file), "ACCELERATE_MIXED_PRECISION": "fp16"}
    )
    with pytest.raises(Conflict, match="The launch YAML asks for fp16, its DeepSpeed file for bf16"):
        settle(make_plan("safe"))


def test_the_launchers_precision_is_that_before_any_plan(started: Any) -> None:
    """What an earlier plan of this process has put into the environment is no word of the launcher's."""
    started()
    variables = {launcher.PRECISION: "bf16"}
    switch_process(make_plan(Trick(name="t", family="f", saves="s", costs="c", numerics="exact", env=variables)))
    assert not settle(make_plan("adamw_fused"))["trainer"].get("bf16")


def test_the_model_of_a_launchers_fsdp_is_not_checkpointed_twice(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP's own checkpointing does it, as where the plan names fsdp."""
    called: list[Any] = []
    model = SimpleNamespace(config=SimpleNamespace(), activation_checkpointing_enable=lambda **k: called.append(k))
    monkeypatch.setattr(loop, "require", lambda *_: None)
    monkeypatch.setattr(loop, "add_adapter", lambda plan, model: model)
    prepare_model(make_plan("activation_checkpointing"), model)
    assert len(called) == 1
    started(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    prepare_model(make_plan("activation_checkpointing"), model)
    assert len(called) == 1


def test_a_limit_below_zero_clips_nothing() -> None:
    """As Trainer has it."""
    assert clip(make_plan("safe").override("loop", {"max_grad_norm": -1.0}, by="you"), None, None) is None
