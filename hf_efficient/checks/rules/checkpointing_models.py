"""What the installed transformers says of a model class: its main input, and whether it can checkpoint."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from hf_efficient.reading import installed
from hf_efficient.reading.follow import dotted, follow
from hf_efficient.reading.settings import UNKNOWN, Settings

OTHER_INPUTS = re.compile(
    r"AutoModelFor\w*(Image(Classification|Segmentation|TextRetrieval)|ImageToImage|ObjectDetection|SemanticSegmentation|"
    r"InstanceSegmentation|UniversalSegmentation|DepthEstimation|Video|Audio|CTC|Speech|MaskedImage|KeypointDetection)"
)
"""Auto classes whose models take pixels or sound, and no input_ids."""


@cache
def _types() -> Mapping[str, str]:
    """Return model classes with their model types, of transformers/models/auto/modeling_auto.py."""
    module = installed.tree("transformers", "models/auto/modeling_auto.py")
    found: dict[str, str] = {}
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            pair = [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if len(pair) == 2:
                found.setdefault(pair[1], pair[0])
    return found


def _folder(kind: str) -> str:
    """Return the folder of a model type: its name, but for types that are a part of another's model."""
    name = kind.replace("-", "_")
    known = [name, *(name.removesuffix(end) for end in ("_text", "_vision", "_vision_model", "_text_model"))]
    return next((one for one in known if installed.tree("transformers", f"models/{one}/modeling_{one}.py")), "")


def _classes(kind: str) -> Mapping[str, ast.ClassDef]:
    folder = _folder(kind)
    module = installed.tree("transformers", f"models/{folder}/modeling_{folder}.py") if folder else None
    return {node.name: node for node in (module.body if module else ()) if isinstance(node, ast.ClassDef)}


def attribute(model: Settings, name: str, *, otherwise: Any) -> Any:
    """Return a class attribute of the model's class, looked up through its bases; UNKNOWN where it cannot be known.

    `otherwise` is what PreTrainedModel has.
    """
    made = model.text("class")
    made = model.text("architecture") if made.startswith("AutoModel") or not made else made
    kind = _types().get(made) or model.text("model_type")
    classes = _classes(kind) if kind else {}
    if not made and classes:
        bases = [one for one in classes if one.endswith("PreTrainedModel")]
        made = bases[0] if len(bases) == 1 else ""
    for _ in range(10):
        node = classes.get(made)
        if node is None:
            return otherwise if made == "PreTrainedModel" else UNKNOWN
        for statement in node.body:
            value = _assigned(statement, name)
            if value is not None:
                return follow(value, lambda _: None)
        names = [dotted(base).rpartition(".")[2] for base in node.bases]
        made = next((one for one in names if one in classes or one == "PreTrainedModel"), "")
    return UNKNOWN


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
    return statement.value if named and isinstance(statement, ast.Assign | ast.AnnAssign) else None


def other_input(model: Settings) -> str:
    """Return the model's main input where that is known to be other than input_ids, else an empty string."""
    main = attribute(model, "main_input_name", otherwise="input_ids")
    if isinstance(main, str):
        return main if main != "input_ids" else ""
    if isinstance(main, list) and main:
        return str(main[0])
    return "pixels or sound" if OTHER_INPUTS.match(model.text("class")) else ""
