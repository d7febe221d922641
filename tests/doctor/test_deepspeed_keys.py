"""The committed table of DeepSpeed's keys is that of the installed release."""

from __future__ import annotations

import ast
from pathlib import Path

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


def test_top_level_keys_are_read_by_the_installed_release() -> None:
    """Every key of the table occurs as a string in DeepSpeed's own code (msamp: in accelerate's)."""
    assert HERE is not None
    files = [path for path in Path(HERE).rglob("*.py") if "inference/v2" not in str(path)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    missing = {key for key in keys.TOP if f'"{key}"' not in text and f"'{key}'" not in text}
    assert missing <= {"msamp"}


def test_every_constant_that_the_configuration_asks_for_is_known() -> None:
    """The keys that runtime/config.py reads by get_scalar_param or param_dict.get are in the table."""
    module, constants = tree("deepspeed", "runtime/config.py"), tree("deepspeed", "runtime/constants.py")
    assert module is not None
    assert constants is not None
    values = {
        node.targets[0].id: node.value.value
        for node in constants.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    asked = set()
    for call in (node for node in ast.walk(module) if isinstance(node, ast.Call) and node.args):
        name = ast.unparse(call.func)
        if name == "get_scalar_param" and ast.unparse(call.args[0]) == "param_dict":
            asked.add(values.get(ast.unparse(call.args[1]), ""))
        if name == "param_dict.get":
            asked.add(ast.literal_eval(call.args[0]) if isinstance(call.args[0], ast.Constant) else "")
    assert asked - {""} <= keys.TOP
