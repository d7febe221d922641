"""What a script trains and evaluates on: datasets, collators, DataLoaders."""

from __future__ import annotations

import ast
from typing import Any

from hf_efficient.reading.flow import Around
from hf_efficient.reading.follow import dotted
from hf_efficient.reading.lineage import Lineage, inside, lineage, possible, words
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_classes import ancestors
from hf_efficient.reading.script_values import agreed, put
from hf_efficient.reading.settings import UNKNOWN, Settings

SAME = words(
    """map shuffle filter select with_format set_format take skip rename_column rename_columns remove_columns cast batch
    cast_column train_test_split shard flatten_indices sort with_transform add_column flatten repeat __getitem__
    select_columns class_encode_column rename"""
)
"""Methods of a dataset that give one of the same kind."""
MAPS = words(
    "load_from_disk TensorDataset ConcatDataset Subset from_list from_dict from_pandas from_csv from_json list"
)
PADS = ("DataCollatorWithPadding", "DataCollatorForTokenClassification", "DataCollatorForSeq2Seq",
        "DataCollatorForMultipleChoice")  # fmt: skip
LANGUAGE = ("DataCollatorForLanguageModeling", "DataCollatorForWholeWordMask", "DataCollatorForCompletionOnlyLM")
BARE = ("default_data_collator", "DefaultDataCollator", "torch_default_data_collator", "default_collate")
SPLITS_ROWS = ("get_worker_info", "split_dataset_by_node")


def read_dataset(script: Script, node: ast.expr | None, around: Around, data: Settings) -> None:
    """Write kind, streaming, num_shards and sharded_by_worker of the dataset that an expression is."""
    if node is None:
        return
    found = lineage(script, node, around, methods=SAME)
    kinds = [_kind(script, call, data) for call in _parts(script, found)]
    kinds += ["map" for one, _ in found.literals if isinstance(one, ast.List | ast.ListComp | ast.Dict)]
    literals = [one for one, _ in found.literals if not isinstance(one, ast.Constant)]
    iterable = [call for call in found.ends if call.method == "to_iterable_dataset"]
    if iterable:
        shards = iterable[0].keywords.get("num_shards", iterable[0].args[0] if iterable[0].args else 1)
        put(data, "num_shards", shards, iterable[0].place)
    if kinds:
        unsure = found.unknown or len(literals) != len(kinds) - len(_parts(script, found))
        put(data, "kind", UNKNOWN if unsure else agreed(kinds), script.place(node))
    if any(call.method == "split_dataset_by_node" for call in found.calls):
        put(data, "sharded_by_worker", True, script.place(node))


KEEPS_ROWS = words(
    "map with_format set_format shuffle rename_column rename_columns remove_columns cast cast_column sort"
)


def rows_of(script: Script, node: ast.expr | None, around: Around) -> Any:
    """Return how many rows an expression chooses (`.select(range(500))`), or None where it says nothing of that."""
    for call in lineage(script, node, around, methods=SAME).calls:
        if call.method in KEEPS_ROWS:
            continue
        chosen = call.node.args[0] if call.method == "select" and call.node.args else None
        plain = isinstance(chosen, ast.Call) and dotted(chosen.func) == "range" and len(chosen.args) == 1
        value = script.value(chosen.args[0], inside(call)) if plain and isinstance(chosen, ast.Call) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return None


def _parts(script: Script, found: Lineage) -> list[Call]:
    """Return the calls that make the dataset, those of an interleaved one in its place."""
    every: list[Call] = []
    for call in found.ends:
        first = call.node.args[0] if call.node.args else None
        if (
            call.method in ("interleave_datasets", "concatenate_datasets", "split_dataset_by_node")
            and first is not None
        ):
            parts = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
            every += [end for part in parts for end in lineage(script, part, inside(call), methods=SAME).ends]
        else:
            every.append(call)
    return every


def _kind(script: Script, call: Call, data: Settings) -> Any:
    if call.method == "load_dataset":
        return _loaded(script, call, data)
    if call.method == "to_iterable_dataset":
        return "iterable"
    if "IterableDataset" in call.name:
        _generated(call, data)
        return "iterable"
    if call.name in script.classes:
        return _own(script, call, data)
    return "map" if call.method in MAPS or call.receiver.endswith("Dataset") else UNKNOWN


def _loaded(script: Script, call: Call, data: Settings) -> Any:
    streaming = call.keywords.get("streaming", UNKNOWN if call.open else False)
    if streaming is UNKNOWN:
        put(data, "streaming", UNKNOWN, call.place)
        return UNKNOWN
    if streaming:
        put(data, "streaming", True, call.place)
        put(data, "num_shards", _files(call), call.place)
    return "iterable" if streaming else "map"


def _files(call: Call) -> Any:
    """Return how many files a streamed dataset reads, where a list names them."""
    files = call.keywords.get("data_files", UNKNOWN)
    if isinstance(files, dict):
        split = call.keywords.get("split", "train")
        files = files.get(split, UNKNOWN) if isinstance(split, str) else UNKNOWN
    every = [files] if isinstance(files, str) else files
    plain = isinstance(every, list) and all(isinstance(f, str) and not set("*?[") & set(f) for f in every)
    return len(every) if plain and every else UNKNOWN


def _generated(call: Call, data: Settings) -> None:
    if call.method != "from_generator":
        return
    held = call.keywords.get("gen_kwargs", UNKNOWN if call.open else {})
    lists = [len(v) for v in held.values() if isinstance(v, list)] if isinstance(held, dict) else []
    known = isinstance(held, dict) and not any(value is UNKNOWN for value in held.values())
    put(data, "num_shards", max(lists, default=1) if known else UNKNOWN, call.place)


def _own(script: Script, call: Call, data: Settings) -> Any:
    """Return the kind of a dataset whose class the script defines."""
    kinds = [name.rpartition(".")[2] for name in ancestors(script, call.name)]
    if "IterableDataset" in kinds or "IterDataPipe" in kinds:
        put(data, "sharded_by_worker", splits_rows(script, call.name), call.place)
        put(data, "class", call.name, call.place)
        return "iterable"
    return "map" if kinds[-1].endswith("Dataset") or f"{call.name}.__getitem__" in script.functions else UNKNOWN


def splits_rows(script: Script, name: str) -> bool:
    """Does a class of the script, or what it calls there, ask which worker it is in?"""
    waiting: list[ast.AST] = [script.classes[one] for one in ancestors(script, name) if one in script.classes]
    seen: list[ast.AST] = []
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.append(one)
        for node in ast.walk(one):
            called = dotted(node.func) if isinstance(node, ast.Call) else ""
            if called.rpartition(".")[2] in SPLITS_ROWS:
                return True
            inner = script.functions.get(called) or script.classes.get(called)
            waiting += [inner] if inner is not None else []
    return False


def read_collator(script: Script, node: ast.expr | None, around: Around, data: Settings) -> None:
    """Write padding, pad_to_multiple_of and flattening of the collator that an expression is."""
    found = lineage(script, node, around)
    for one, _ in found.literals:
        if isinstance(one, ast.Lambda):
            _from_calls(script, one, data)
    for name in found.names & script.functions.keys():
        _from_calls(script, script.functions[name], data)
    if found.names & set(BARE) or any(dotted(one) in BARE for one, _ in found.literals):
        put(data, "padding", "none", script.place(node) if node is not None else data.place)
    if len(found.ends) == 1:
        _collator(script, found.ends[0], data)


def _collator(script: Script, call: Call, data: Settings) -> None:
    name = call.method
    put(data, "collator", name, call.place)
    if name in PADS:
        padding = call.keywords.get("padding", UNKNOWN if call.open else True)
        put(data, "padding", _padding(padding), call.place)
    elif name in LANGUAGE:
        put(data, "padding", "longest", call.place)
    elif name in BARE:
        put(data, "padding", "none", call.place)
    elif name == "DataCollatorWithFlattening":
        put(data, "flattening", True, call.place)
        put(data, "padding", "none", call.place)
    elif call.name in script.classes:
        _from_calls(script, script.classes[call.name], data)
    for key in ("pad_to_multiple_of", "max_length", "padding_free"):
        if key in call.keywords:
            put(data, key, call.keywords[key], call.place)


def _padding(value: Any) -> Any:
    if value is True or value == "longest":
        return "longest"
    if value is False or value == "do_not_pad":
        return "none"
    return value if isinstance(value, str) else UNKNOWN


def _from_calls(script: Script, node: ast.AST, data: Settings) -> None:
    """Write the padding that calls within a function of the script ask for."""
    for call in script.inside(node):
        if call.method == "pad_sequence":
            put(data, "padding", "longest", call.place)
        elif "padding" in call.keywords or call.method == "pad":
            put(data, "padding", _padding(call.keywords.get("padding", True)), call.place)
            for key in ("max_length", "pad_to_multiple_of"):
                if key in call.keywords:
                    put(data, key, call.keywords[key], call.place)


def padded_before(script: Script, data: Settings) -> None:
    """Write `max_length` where rows are padded to one length before a collator sees them."""
    for call in script.calls:
        if call.method == "map":
            names = [one.id for one in call.node.args[:1] if isinstance(one, ast.Name)]
            nodes: list[ast.AST] = [script.functions[name] for name in names if name in script.functions]
            nodes += [one for one in call.node.args[:1] if isinstance(one, ast.Lambda)]
            for inner in (one for node in nodes for one in script.inside(node)):
                if inner.keywords.get("padding") == "max_length":
                    put(data, "padding", "max_length", inner.place)
                    put(data, "max_length", inner.keywords.get("max_length"), inner.place)


def read_dataloader(script: Script) -> Call | None:
    """Return the DataLoader to train with: of a loop with backward, shuffled, named train, or the first."""
    made = [call for call in script.named("DataLoader") if possible(script, call.around, call.node)]
    lines = {id(call.node) for loop in script.training_loops for call in _looped(script, loop)}
    orders = (
        [call for call in made if id(call.node) in lines],
        [call for call in made if call.keywords.get("shuffle") is True],
        [call for call in made if "train" in call.target],
        [call for call in made if not any(word in call.target for word in ("eval", "val", "test", "dev"))],
    )
    return next((calls[0] for calls in orders if calls), None)


def _looped(script: Script, loop: ast.AST) -> list[Call]:
    """Return the DataLoaders that a loop goes over, through enumerate and tqdm."""
    if not isinstance(loop, ast.For):
        return []
    node: ast.expr = loop.iter
    while isinstance(node, ast.Call) and node.args and not dotted(node.func).endswith("DataLoader"):
        node = node.args[0]
    around = next((where for one, where in script.nodes if one is loop), ())
    return lineage(script, node, (*around, loop)).ends
