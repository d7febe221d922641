"""Pictures of estimates: whole files, all the words, and no peak lost on the way."""

from __future__ import annotations

import re
import struct
import time
from pathlib import Path

import pytest
from estimates import LABEL, estimate, on_card, step

from hf_efficient.memory import picture
from hf_efficient.memory.bars import COLOURS
from hf_efficient.memory.curve import POINTS, curve
from hf_efficient.memory.results import PARTS, Batch, Timeline

pytestmark = pytest.mark.launch  # seconds in all: not in `make test-fast`

pytest.importorskip("matplotlib")


def _words(path: Path) -> str:
    """Return the text of an SVG file, its lines joined."""
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))


@pytest.mark.parametrize("many", [1, 3, 6])
def test_a_png_is_one_and_large_enough_to_read(many: int, tmp_path: Path) -> None:
    """The file is a PNG 1200 pixels wide, and higher with timelines; beyond four estimates there are bars alone."""
    made = [estimate(timeline=step(scale=size / 4), batch=Batch(size=size)) for size in range(1, many + 1)]
    picture.draw(made, tmp_path / "memory.png")
    data = (tmp_path / "memory.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1200
    assert {1: 1000, 3: 2000, 6: 1000}[many] < height < {1: 1500, 3: 3500, 6: 2000}[many]


def test_an_svg_names_everything(tmp_path: Path) -> None:
    """Title, parts with amounts, phases, peak, card and verdict are words that can be searched."""
    picture.draw([on_card(estimate(), capacity=11.2)], tmp_path / "memory.svg")
    words = _words(tmp_path / "memory.svg")
    assert all(part in words for part in PARTS)
    for text in (
        "GPU memory of one training step",
        "batch 8 x 2048",
        "logits 4.60",
        f"peak: 12.5 GiB, {LABEL}",
        "12.5 GiB of tensors, 13.5 GiB with PyTorch's cache and CUDA itself",
        "RTX 4090 (11.2 GiB): does not fit: 2.29 GiB over",
        "RTX 4090: 11.2 GiB",
        "PyTorch's cache and CUDA itself",
    ):
        assert text in words
    assert all(phase in words for phase in ("forward", "backward", "clipping", "optimizer"))
    assert "recompute" not in words


def test_the_same_estimate_is_the_same_file(tmp_path: Path) -> None:
    """An SVG holds neither dates nor random names."""
    for name in ("a.svg", "b.svg"):
        picture.draw([estimate()], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_small_memory_is_in_mib(tmp_path: Path) -> None:
    """Below one GiB the axes are in MiB, and CUDA's own half GiB is told but not drawn."""
    picture.draw([on_card(estimate(timeline=step(scale=0.002)))], tmp_path / "tiny.svg")
    words = _words(tmp_path / "tiny.svg")
    assert "MiB on one GPU" in words
    assert "25.6 MiB of tensors" in words


@pytest.mark.parametrize("peak", ["first", "loss", "last"])
@pytest.mark.parametrize("layers", [1, 28, 1250])
def test_few_points_keep_the_peak(layers: int, peak: str) -> None:
    """Of 20 thousand moments a picture shows some hundreds, in order, with the highest among them."""
    timeline = step(layers=layers, peak=peak)
    shown = curve(timeline)
    assert len(shown.x) <= min(len(timeline.phases), 2 * POINTS) + len(shown.bands)
    assert sum(sizes[shown.peak] for sizes in shown.parts.values()) == max(timeline.live())
    assert shown.x == sorted(shown.x)
    assert shown.x[0] < 0.005
    assert shown.x[-1] <= 1 + 1e-9


def test_each_phase_has_room_for_its_name() -> None:
    """Clipping takes a handful of the moments and a seventh of the axis; recomputing is part of backward."""
    bands = curve(step(layers=1250)).bands
    assert [band.phase for band in bands] == ["forward", "backward", "clipping", "optimizer"]
    assert min(band.end - band.start for band in bands) > 0.13
    assert (bands[0].start, bands[-1].end) == (0, pytest.approx(1))


def test_one_moment_is_a_timeline() -> None:
    """A single moment is drawn from end to end, and is the peak."""
    shown = curve(Timeline(parts={part: [1] for part in PARTS}, phases=["forward"], peak=0, label="all"))
    assert (shown.peak, shown.x) == (0, [0, 1])


def test_a_long_step_is_drawn_quickly(tmp_path: Path) -> None:
    """20 thousand moments take no longer than a few."""
    made = estimate(timeline=step(layers=1250))
    assert len(made.timeline.phases) > 20_000
    start = time.perf_counter()
    picture.draw([made], tmp_path / "long.png")
    assert time.perf_counter() - start < 5


def test_every_part_has_a_colour_of_its_own() -> None:
    """Six parts, six colours."""
    assert tuple(COLOURS) == PARTS
    assert len(set(COLOURS.values())) == len(PARTS)


@pytest.mark.parametrize("name", ["memory.pdf", "memory", ".png"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    """The sentence names the two that there are, and nothing is written."""
    with pytest.raises(ValueError, match=r"PNG or SVG .* write .+\.png or .+\.svg\."):
        picture.draw([estimate()], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_missing_matplotlib_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It names the extra to install."""
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'hf-efficient\[plot\]'"):
        picture.draw([estimate()], tmp_path / "memory.png")


def test_a_failure_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where drawing or writing fails, there is the file of before and no other."""
    path = tmp_path / "memory.png"
    path.write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_efficient.emit.files.os.replace", fail)
    with pytest.raises(ValueError, match="no space left"):
        picture.draw([estimate()], path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_the_bar_ends_where_the_verdict_counts(tmp_path: Path) -> None:
    """What a card is judged by is drawn, so that a bar over the line does not fit: capacity less margin."""
    known = on_card(estimate(), gpu="RTX 4070", capacity=11.2)
    assert known.taken_gib == pytest.approx((known.capacity_gib or 0) - (known.margin_gib or 0))
    picture.draw([known], tmp_path / "over.svg")
    assert "13.5 GiB with PyTorch's cache and CUDA itself" in _words(tmp_path / "over.svg")


def test_without_a_card_only_the_cache_is_added(tmp_path: Path) -> None:
    """CUDA's own memory differs from card to card, and is drawn where one is named."""
    picture.draw([estimate()], tmp_path / "any.svg")
    words = _words(tmp_path / "any.svg")
    assert "13.0 GiB with PyTorch's cache" in words
    assert "CUDA" not in words
