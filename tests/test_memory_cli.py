"""`hf-efficient memory`: what it asks for, and how it shows estimates; the estimates themselves are made up here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from estimates import estimate, on_card, step

from hf_efficient.cli import main
from hf_efficient.memory import cases
from hf_efficient.memory.results import PARTS, Batch, CardFit, Estimate
from hf_efficient.memory.words import amount, apart, digits, verdict, wrapped
from hf_efficient.merge import make_plan

BASE = ["memory", "--model", "Qwen/Qwen3-0.6B", "--seq-len", "2048"]
CARDS = [CardFit(f"card {number}", fits=number > 1) for number in range(7)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command asks for; the answers grow with the batch, and batch 8 is over 11.2 GiB."""
    calls: list[dict[str, Any]] = []

    def fake(plan: Any, model: str, *, batch: Batch, machine: Any = None, gpus: int = 1) -> Estimate:
        calls.append({"plan": plan, "model": model, "batch": batch, "machine": machine, "gpus": gpus})
        names = ", ".join(trick.name for trick in plan.tricks)
        made = estimate(
            timeline=step(scale=batch.size / 8), model=model, batch=batch, plan=names, cards=CARDS, gpus=gpus
        )
        return on_card(made, gpu=machine.gpu, capacity=11.2) if machine else made

    def shared(plan: Any, model: str, **asked: Any) -> Any:
        found = fake(plan, model, **asked)
        kinds = [_stage("none", found, None), _stage("zero(1)", None), _stage("zero(3)", found, 0.062)]
        least = kinds[2] if found.fits else None
        row = {"least": least and least.plan, "stages": []}
        return SimpleNamespace(asked=found, stages=kinds, least=least, row=lambda: row)

    monkeypatch.setitem(sys.modules, "hf_efficient.memory.estimate", SimpleNamespace(estimate=fake))
    monkeypatch.setitem(sys.modules, "hf_efficient.memory.stages", SimpleNamespace(stages=shared))
    return calls


def _stage(plan: str, found: Estimate | None, costs: float | None = None) -> Any:
    fits, rate = (found.fits, 4 * (found.tokens_per_s or 0)) if found else (None, None)
    why = "" if found else f"{plan} wants another model."
    return SimpleNamespace(plan=plan, estimate=found, fits=fits, costs=costs, why=why, tokens_per_s=rate)


def _run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    assert main([*BASE, *argv]) == code
    return capsys.readouterr().out


def test_one_estimate_is_itself_and_several_are_a_list(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """--json has an Estimate, or `estimates` with one each; the timeline is for pictures."""
    one = json.loads(_run(capsys, "lean", "--batch-size", "8", "--json"))
    assert {"params", "allocated_gib", "breakdown", "peak_at", "fits", "cards", "assumptions"} <= one.keys()
    assert set(one["breakdown"]) == set(PARTS)
    assert sum(one["breakdown"].values()) == pytest.approx(one["allocated_gib"])
    assert one["fits"] is None
    assert one["cards"][0] == {"gpu": "card 0", "fits": False}
    assert "timeline" not in one
    several = json.loads(_run(capsys, "lean", "/", "safe", "--batch-size", "1,2", "--json"))
    assert [row["batch"]["size"] for row in several["estimates"]] == [1, 2, 1, 2]


def test_plans_stand_side_by_side(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A / parts plans, each is merged by itself, and --without holds for each."""
    _run(capsys, "lean", "/", "lean", "zero(3)", "--batch-size", "4", "--without", "tf32")
    first, second = ({trick.name for trick in call["plan"].tricks} for call in asked)
    assert second - first == {"zero(3)"}
    assert "tf32" not in first


def test_what_is_asked_arrives(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Card, cards, lengths and evaluation reach the estimate; without --gpu there is no machine."""
    options = ["--target-len", "64", "--padding", "--eval-batch-size", "3", "--eval-rows", "500", "--gpus", "4"]
    _run(capsys, "lean", "--batch-size", "1", *options, "--gpu", "rtx4090")
    assert asked[0]["batch"] == Batch(size=1, seq_len=2048, target_len=64, eval_size=3, eval_rows=500, padding=True)
    assert (asked[0]["machine"].gpu, asked[0]["machine"].gpus, asked[0]["gpus"]) == ("RTX 4090", 4, 4)
    _run(capsys, "lean", "--batch-size", "1")
    assert (asked[1]["machine"], asked[1]["gpus"]) == (None, 1)


@pytest.mark.parametrize(
    ("names", "options", "size"),
    [
        (["safe"], {}, None),
        (["safe"], {"evaluate": True}, 8),
        (["safe", "evaluation(2)"], {"evaluate": True}, 2),
        (["safe", "evaluation(2)"], {"eval_rows": 100}, 2),
        (["safe", "evaluation(2)"], {"evaluate": True, "eval_size": 16}, 16),
        (["safe"], {"eval_size": 16}, 16),
    ],
)
def test_the_evaluation_batch(names: list[str], options: dict[str, Any], size: int | None) -> None:
    """Yours, else the plan's, else Trainer's own 8; none where evaluation is not asked about."""
    assert cases.batches(make_plan(*names), "4", **options)[0].eval_size == size


def test_the_plans_own_batch_serves() -> None:
    """Without --batch-size, a plan with batch_size is asked about with that."""
    assert [batch.size for batch in cases.batches(make_plan("safe", "batch_size(6)"), None)] == [6]


def test_the_text_of_one_estimate(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Parts, peak, phases, assumptions and the three smallest cards that would do, no line cut or padded."""
    text = _run(capsys, "lean", "--batch-size", "8")
    assert all(part in text for part in PARTS)
    assert "peak: the fp32 logits of the loss" in text
    assert "fits on card 2, card 3, card 4 and 2 larger" in text
    assert "assumed: the CUDA context takes 0.50 GiB" in text
    assert "highest of each phase: forward" in text
    assert "596 million parameters, all trained" in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert "…" not in text


@pytest.mark.parametrize("size", ["4", "8"])
def test_the_exit_code_says_whether_it_fits(size: str, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With --gpu: 0 and what is left, or 1, what is missing and the changes that would help."""
    text = _run(capsys, "lean", "--batch-size", size, "--gpu", "rtx4090", code=int(size == "8"))
    assert "RTX 4090: 11.2 GiB usable of 24" in text
    assert ("fits with 4.21 GiB to spare" in text) == (size == "4")
    assert ("does not fit: 2.29 GiB over" in text) == (size == "8")
    assert ("to make it fit: halve the batch" in text) == (size == "8")


def test_the_text_of_several(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A row each within 80 letters; what all share is said once, what differs under its number."""
    text = _run(capsys, "lean", "--batch-size", "2,4,8", "--gpu", "T4", code=1)
    lines = text.splitlines()
    assert lines[0].startswith("Qwen3-0.6B, bf16, tf32")
    assert lines[2:5] == [
        "1: batch 2 x 2048: fits with 7.45 GiB to spare",
        "2: batch 4 x 2048: fits with 4.21 GiB to spare",
        "3: batch 8 x 2048: does not fit: 2.29 GiB over",
    ]
    header = next(number for number, line in enumerate(lines) if line.startswith("GiB"))
    assert all(len(line) <= 80 for line in lines[header : header + 4])
    assert text.count("assumed: the CUDA context") == 1
    assert text.count("T4: 11.2 GiB usable of 1") == 1
    assert "3: to make it fit: halve" in text
    assert "1: to make it fit" not in text


def test_the_card_and_the_speed_of_one(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With --gpu: what nvidia-smi shows, the time of a step, and its parts as shares, those of nothing left out."""
    text = _run(capsys, "lean", "--batch-size", "4", "--gpu", "rtx4090")
    assert "reserved        6.49  with what PyTorch's allocator keeps" in text
    assert "\nneeded " in text
    assert "nvidia-smi      7.99  shows up to that: with some drivers 0.65 GiB of their own" in text
    assert "a step takes 2 s: 4,096 tokens/s, 40 % of the card's peak (MFU)" in text
    spent = "products 50 %, attention 10 %, moving data 25 %, waiting for Python 5 %, update 10 %"
    assert f"its time goes into {spent}\n" in text
    alone = _run(capsys, "lean", "--batch-size", "4")
    assert "nvidia-smi" not in alone
    assert "\nneeded" not in alone
    assert "tokens/s" not in alone


def test_the_cards_and_speeds_of_several(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A row each of what it takes in all and how fast it is; without a card there is no speed."""
    lines = _run(capsys, "lean", "--batch-size", "2,4", "--gpu", "T4").splitlines()
    head = next(number for number, line in enumerate(lines) if "reserved" in line)
    assert lines[head] == "GiB   allocated  reserved  on the card  s/step  tokens/s"
    assert lines[head + 2] == "2          6.24      6.49         7.99       2     4,096"
    assert "GiB   allocated  reserved\n" in _run(capsys, "lean", "--batch-size", "2,4")


def test_each_sharding_has_a_row(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With --gpus: what each takes, tokens/s of all GPUs, a reason where it cannot be, and the least that fits."""
    options = ["lean", "--batch-size", "4", "--gpus", "4"]
    text = _run(capsys, *options, "--gpu", "T4")
    assert len(asked) == 1
    assert "of each of 4 GPUs, by sharding (tokens/s of all):" in text
    assert "\nnone          6.24      6.49         7.99   yes       2    16,384\n" in text
    assert "\nzero(1)  zero(1) wants another model.\n" in text
    assert "least sharding that fits: zero(3), costs 6 % of the speed of none" in text
    assert "4,096 tokens/s per GPU, 16,384 over 4 GPUs" in text
    assert "no sharding fits on 4 x T4" in _run(
        capsys, "lean", "--batch-size", "8", *options[3:], "--gpu", "T4", code=1
    )
    assert "\nnone          6.24      6.49   card 2\n" in _run(capsys, *options)


def test_json_has_the_shardings(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """One plan at one batch on several GPUs has `sharding` beside the estimate; several estimates have none."""
    options = ["--gpus", "4", "--gpu", "T4", "--json"]
    one = json.loads(_run(capsys, "lean", "--batch-size", "4", *options))
    assert one["sharding"]["least"] == "zero(3)"
    assert one["fits"] is True
    several = json.loads(_run(capsys, "lean", "--batch-size", "2,4", *options))
    assert not any("sharding" in row for row in several["estimates"])
    assert "sharding" not in json.loads(_run(capsys, "lean", "--batch-size", "4", "--gpu", "T4", "--json"))


@pytest.mark.parametrize(
    ("margin", "fits", "tight", "text"),
    [
        (2.0, True, False, "fits with 2.00 GiB to spare"),
        (0.25, True, True, "fits, but only just: 256 MiB to spare, and it costs speed to find room"),
        (0.125, False, False, "does not fit: no more than 128 MiB left"),
        (-2.0, False, False, "does not fit: 2.00 GiB over"),
    ],
)
def test_the_verdict_says_how_near_the_limit_is(margin: float, fits: bool, tight: bool, text: str) -> None:
    """What fits by luck of the allocator is told from what fits, and no amount is negative."""
    assert verdict(estimate(capacity_gib=24.0, margin_gib=margin, fits=fits, tight=tight)) == text


@pytest.mark.parametrize(("value", "text"), [(0.8258, "0.826"), (12.34, "12.3"), (999.4, "999"), (39680.4, "39,680")])
def test_speeds_have_three_digits_or_are_whole(value: float, text: str) -> None:
    """Seconds and tokens are written without exponents."""
    assert digits(value) == text


def test_pictures_are_written_and_told(asked: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--plot may be repeated and takes a comma list; stdout stays the answer."""
    names = [str(tmp_path / name) for name in ("a.png", "b.svg", "c.png")]
    argv = [*BASE, "lean", "--batch-size", "8", "--json", "--plot", f"{names[0]},{names[1]}", "--plot", names[2]]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["fits"] is None
    assert all(Path(name).stat().st_size > 1000 for name in names)
    assert [line.removeprefix("wrote ") for line in err.splitlines()] == names


def test_what_was_replaced_and_is_unmet_goes_to_stderr(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate is made all the same, since plans are made for other machines."""
    assert main([*BASE, "lean", "adafactor", "--batch-size", "1", "--gpu", "T4"]) == 0
    err = capsys.readouterr().err
    assert "adafactor replaces lean's adamw_8bit." in err
    assert "unmet: bf16 needs" in err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["lean"], "add --batch-size"),
        (["lean", "--batch-size", "0"], "--batch-size 0 is no batch"),
        (["lean", "--batch-size", "1,,2"], "a comma list, such as 1,2,4"),
        (["lean", "--batch-size=-4"], "at least on one"),
        (["lean", "--batch-size", "8", "--seq-len", "-1"], "--seq-len"),
        (["lean", "--batch-size", "8", "--gpus", "0"], "--gpus"),
        (["lean", "--batch-size", "8", "--gpu", "rtx4091"], "RTX 4090"),
        (["lean", "/", "--batch-size", "8"], "nothing stands on one side of a /"),
        (["lena", "--batch-size", "8"], "did you mean lean?"),
        (["lean", "--batch-size", "8", "--plot", "memory.pdf"], "write memory.png or memory.svg"),
        (["lean", "--batch-size", "8", "--plot", "/nowhere/a.png"], "Cannot draw /nowhere/a.png"),
    ],
)
def test_a_mistake_is_one_sentence(
    argv: list[str], sentence: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line on stderr that says what would be right."""
    assert main([*BASE, *argv]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_names_say_what_is_shared_once() -> None:
    """Model, tricks and batch stand in the shared name where they agree, else in each one's own."""
    wide, narrow = (estimate(batch=Batch(size=8, seq_len=length), plan="bf16, lora(8, 16)") for length in (2048, 512))
    assert apart([wide, narrow]) == ("Qwen3-0.6B, bf16, lora(8, 16)", ("batch 8 x 2048", "batch 8 x 512"))
    assert apart([wide, estimate(plan="bf16")]) == (
        "Qwen3-0.6B, bf16, batch 8 x 2048",
        ("lora(8, 16)", "as above"),
    )
    assert apart([wide]).own == ("",)


@pytest.mark.parametrize(
    ("gib", "text"), [(3.1, "3.10 GiB"), (22.46, "22.5 GiB"), (140.4, "140 GiB"), (0.5, "512 MiB"), (0.01, "10.2 MiB")]
)
def test_amounts_have_three_digits(gib: float, text: str) -> None:
    """Below one GiB they are in MiB, as nvidia-smi has them."""
    assert amount(gib) == text


def test_figures_stay_with_their_units() -> None:
    """A line breaks before `8 x 2048` and `3.10 GiB`, never within."""
    assert wrapped("batch 8 x 2048 takes 3.10 GiB", 24) == ["batch 8 x 2048 takes", "3.10 GiB"]
    assert wrapped("of plan lean, batch 8 x 2048", 20) == ["of plan lean,", "batch 8 x 2048"]
