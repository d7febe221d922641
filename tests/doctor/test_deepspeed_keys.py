"""The committed table of DeepSpeed's keys is that of the installed release."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from hf_efficient.checks import deepspeed_keys as keys
from hf_efficient.reading.installed import fields, folder, tree

BLOCKS = {
    "DeepSpeedZeroConfig": ("runtime/zero/config.py", keys.ZERO),
    "DeepSpeedZeroOffloadParamConfig": ("runtime/zero/offload_config.py", keys.OFFLOAD_PARAM),
    "DeepSpeedZeroOffloadOptimizerConfig": ("runtime/zero/offload_config.py", keys.OFFLOAD_OPTIMIZER),
    "DeepSpeedFP16Config": ("runtime/precision_config.py", keys.FP16),
    "DeepSpeedBF16Config": ("runtime/precision_config.py", keys.BF16),
}
TOPS: tuple[dict[str, Any], ...] = (
    {},
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    {"zero_optimization": {"stage": 3}, "fp16": {"enabled": True}},
    {"zero_optimization": True},  # the format of 2020, with keys of its own
)
"""What a file is read with: each may lead to keys that others do not."""
ELSEWHERE = {
    "sequence_parallel_size": ("deepspeed", "__init__.py"),
    "data_parallel_size": ("deepspeed", "__init__.py"),
    "msamp": ("accelerate", "utils/dataclasses.py"),
}
"""Keys that are read by others than DeepSpeedConfig -> the file that does."""
HERE = folder("deepspeed")
pytestmark = pytest.mark.skipif(HERE is None, reason="deepspeed is not installed")


def _aliases(path: str, name: str) -> set[str]:
    module = tree("deepspeed", path)
    found = (
        [node for node in ast.walk(module) if isinstance(node, ast.ClassDef) and node.name == name] if module else []
    )
    words = [word for node in found for call in ast.walk(node) if isinstance(call, ast.Call) for word in call.keywords]
    return {word.value.value for word in words if word.arg == "alias" and isinstance(word.value, ast.Constant)}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_keys_are_those_of_the_installed_release(name: str) -> None:
    """Every field of a block, and every alias, is in the table, and nothing else."""
    path, known = BLOCKS[name]
    assert set(fields("deepspeed", path, name)) | _aliases(path, name) == known


def test_removed_keys_are_those_of_the_installed_release() -> None:
    """What DeepSpeed refuses as removed is in the table."""
    module = tree("deepspeed", "runtime/config.py")
    assert module is not None
    tables = {
        node.targets[0].id: {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    assert tables["_REMOVED_TOP_LEVEL_CONFIG_KEYS"] == set(keys.REMOVED)
    assert tables["_REMOVED_ZERO_CONFIG_KEYS"] == set(keys.REMOVED_ZERO)


def test_deprecated_keys_are_those_of_the_installed_release() -> None:
    """What DeepSpeed's classes mark as deprecated is in the table, under the name that a file has for it."""
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    assert _deprecated(DeepSpeedZeroConfig) == set(keys.DEPRECATED_ZERO)
    for block in (
        DeepSpeedBF16Config, DeepSpeedFP16Config, DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig,
    ):  # fmt: skip
        assert not _deprecated(block)


def _deprecated(block: Any) -> set[str]:
    marked = {name: field for name, field in block.model_fields.items() if field.json_schema_extra}
    return {field.alias or name for name, field in marked.items() if field.json_schema_extra.get("deprecated")}


def test_top_level_keys_are_those_that_the_installed_release_reads(asked: set[str]) -> None:
    """The table is what DeepSpeedConfig asks a file for, removed keys aside, and what is read before and beside it."""
    assert asked - set(keys.REMOVED) == keys.TOP - set(ELSEWHERE)
    assert asked >= set(keys.REMOVED)
    for key, (package, path) in ELSEWHERE.items():
        module = tree(package, path)
        assert module is not None
        read = [ast.unparse(node) for node in ast.walk(module) if isinstance(node, ast.Compare | ast.Subscript)]
        assert any(repr(key) in text for text in read), key


@pytest.fixture
def asked() -> set[str]:
    """The keys for which the installed DeepSpeedConfig asks the top of a file."""
    from deepspeed.runtime.config import DeepSpeedConfig

    seen: set[str] = set()
    for beside in TOPS:
        DeepSpeedConfig(_Asked({"train_micro_batch_size_per_gpu": 1, **beside}, seen=seen))
    return seen


class _Asked(dict[str, Any]):
    """A file that notes which keys it is asked for; a copy of it does too."""

    def __init__(self, content: dict[str, Any], *, seen: set[str]) -> None:
        super().__init__(content)
        self.seen = seen

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        return self  # for `key in param_dict.keys()`

    def __copy__(self) -> _Asked:
        return _Asked(dict(self.items()), seen=self.seen)
