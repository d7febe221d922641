"""The optimizer and the scheduler that a script makes, and the mode that the model is in while the loop trains it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from hf_efficient.reading.flow import Around, start
from hf_efficient.reading.follow import Symbol
from hf_efficient.reading.lineage import argument, inside, lineage, possible, words
from hf_efficient.reading.script import Call, Script
from hf_efficient.reading.script_values import merged, put, sure
from hf_efficient.reading.settings import UNKNOWN, Settings

OPTIMIZERS = re.compile(
    r"Adam|SGD|Lion|Adafactor|RMSprop|Adagrad|Adadelta|LAMB|LARS|Muon|Prodigy|Sophia|Shampoo|SOAP|GaLore|DummyOptim"
    r"|Adan|ScheduleFree|ADOPT|CAME|LBFGS|Rprop|ASGD|Optimizer$|^create_loraplus_optimizer$|^make_optimizer$"
)
PARAMETERS = words("parameters named_parameters trainable_parameters get_parameters")
SCHEDULES = {
    "get_scheduler": ("name", "optimizer", "num_warmup_steps", "num_training_steps"),
    "DummyScheduler": ("optimizer", "num_training_steps", "num_warmup_steps"),
    "": ("optimizer", "num_warmup_steps", "num_training_steps"),
}
SCHEDULER_NAMES = {"total_num_steps": "num_training_steps", "warmup_num_steps": "num_warmup_steps"}


def optimizer_calls(script: Script) -> list[Call]:
    """Return the calls that make an optimizer."""
    return [
        call for call in script.calls if _makes_optimizer(script, call) and possible(script, call.around, call.node)
    ]


def _makes_optimizer(script: Script, call: Call) -> bool:
    name = callee(script, call)
    short = name.rpartition(".")[2]
    if "lr_scheduler" in name or short.endswith(("Accelerated", "Scheduler", "Schedule", "Config")):
        return False
    if name.startswith(("torch.optim.", "bitsandbytes.optim.", "deepspeed.ops.")) and short[:1].isupper():
        return not re.search(r"AveragedModel|SWALR|Builder", short)
    if OPTIMIZERS.search(short) and (short[:1].isupper() or short.startswith(("make_", "create_"))):
        return bool(call.node.args or call.node.keywords)
    return "optim" in call.target.lower() and "." not in call.name and parameters_of(script, call) is not None


def callee(script: Script, call: Call) -> str:
    """Return the full name of what is called, also where a name was given the class."""
    value = script.value(call.node.func, call.around) if isinstance(call.node.func, ast.Name) else None
    return str(value) if isinstance(value, Symbol) else call.name


def parameters_of(script: Script, call: Call) -> tuple[ast.expr, Around] | None:
    """Return the model whose parameters an optimizer is given, as an expression, or None."""
    node = argument(call, "params", 0)
    if callee(script, call).endswith("_optimizer"):
        node = argument(call, "model", 1 if callee(script, call).endswith("make_optimizer") else 0)
        return (node, inside(call)) if node is not None else None
    waiting: list[tuple[ast.expr, Around]] = [(node, inside(call))] if node is not None else []
    seen = 0
    while waiting and seen < 40:
        one, around = waiting.pop(0)
        seen += 1
        for part in ast.walk(one):
            if isinstance(part, ast.Attribute) and part.attr in PARAMETERS:
                return part.value, around
        names = [part for part in ast.walk(one) if isinstance(part, ast.Name)]
        for name in names:
            for given in script.flow.reaching(name.id, around, start(name)):
                if given.value is not None and given.value is not one:
                    waiting.append((given.value, (*given.around, given.node)))
    return None


def read_optimizer(script: Script, made: list[Call]) -> Settings | None:
    """Return class, full name and keywords of the optimizer, or None where the script makes none."""
    every = []
    for call in made:
        said, name = call.settings(), callee(script, call)
        said.values.pop("params", None)
        if len(call.args) > 1 and name.startswith(("torch.optim.", "bitsandbytes.optim.", "transformers.")):
            put(said, "lr", call.args[1], script.place(call.node.args[1]))
        known = "." in name or name[:1].isupper()
        made_by_function = name.rpartition(".")[2][:1].islower()
        said.open = said.open or made_by_function
        put(said, "class", name.rpartition(".")[2] if known and not made_by_function else UNKNOWN, call.place)
        put(said, "name", name if known and not made_by_function else UNKNOWN, call.place)
        every.append(said)
    return merged(every) if every else None


def scheduler_calls(script: Script) -> list[Call]:
    """Return the calls that make a learning-rate scheduler."""
    return [call for call in script.calls if _makes_scheduler(call) and possible(script, call.around, call.node)]


def _makes_scheduler(call: Call) -> bool:
    short = call.method
    if ".lr_scheduler." in call.name or short in ("DummyScheduler", "AdafactorSchedule", "get_scheduler"):
        return True
    return bool(re.fullmatch(r"get_\w+_schedule(_with_\w+)?|get_wsd_schedule", short)) and "optim" not in call.receiver


def read_scheduler(script: Script, made: list[Call]) -> Settings | None:
    """Return class, steps and `prepared` of the scheduler, or None where the script makes none."""
    every = [_schedule(script, call) for call in made]
    return merged(every) if every else None


def _schedule(script: Script, call: Call) -> Settings:
    said = call.settings()
    for old, new in SCHEDULER_NAMES.items():
        if old in said.values:
            put(said, new, said.values.pop(old), said.where(old))
    torch_own = ".lr_scheduler." in call.name and not call.method.startswith("get_")
    order = ("optimizer",) if torch_own else SCHEDULES.get(call.method, SCHEDULES[""])
    for name, value, node in zip(order, call.args, call.node.args, strict=False):
        put(said, name, value, script.place(node))
    total = argument(call, "num_training_steps", order.index("num_training_steps") if len(order) > 1 else None)
    total = total if total is not None else argument(call, "total_num_steps")
    if total is not None:
        put(said, "num_training_steps_text", expanded(script, total, inside(call)), script.place(total))
    said.values.pop("optimizer", None)
    put(said, "class", call.method, call.place)
    put(said, "prepared", prepared(script, call), call.place)
    return said


def expanded(script: Script, node: ast.expr, around: Around, depth: int = 0) -> str:
    """Return an expression's source with the names in it replaced by what they were given, where that is one thing."""
    text = ast.unparse(node)
    for name in (
        [part for part in ast.walk(node) if isinstance(part, ast.Name)] if depth < 4 and len(text) < 400 else []
    ):
        reaching = script.flow.reaching(name.id, around, start(name))
        if len(reaching) == 1 and reaching[0].value is not None and reaching[0].index is None:
            value = reaching[0].value
            if isinstance(value, ast.BinOp | ast.Name | ast.Constant | ast.Call) and not _makes(value):
                inner = expanded(script, value, (*reaching[0].around, reaching[0].node), depth + 1)
                text = _replaced(text, name.id, inner)
    return text[:2000]


def _replaced(text: str, name: str, value: str) -> str:
    return re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w(.])", lambda _: f"({value})", text)


def _makes(node: ast.expr) -> bool:
    """Is this a call of another kind than arithmetic: one that makes an object?"""
    simple = ("len", "int", "round", "max", "min", "ceil", "floor")
    called = node.func if isinstance(node, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return called is not None and name not in simple


def prepared(script: Script, made: Call) -> bool:
    """Is what a call makes given to `accelerator.prepare`?"""
    for call in script.calls:
        if call.method in ("prepare", "prepare_scheduler", "prepare_optimizer") and call.receiver:
            for node in call.node.args:
                inner = node.value if isinstance(node, ast.Starred) else node
                parts = inner.elts if isinstance(inner, ast.List | ast.Tuple) else [inner]
                if any(made in lineage(script, part, inside(call)).calls for part in parts):
                    return True
    return False


def training_mode(script: Script, names: set[str]) -> tuple[Any, Call] | None:
    """Return whether the model trains in training mode in the script's own loop, and the call that says so; or None."""
    loop = script.training_loops[0] if script.training_loops else None
    if loop is None:
        return None
    around = next((where for node, where in script.nodes if node is loop), ())
    outer = _outermost(around, loop)
    within = [event for event in _modes(script, names, around) if outer in event[1].around]
    before = [event for event in _modes(script, names, around) if event[1].node.lineno < getattr(outer, "lineno", 0)]
    if not within:
        return _last(script, before)
    first = [event for event in within if start(event[1].node) < _backward(script, loop)]
    if first:
        return first[-1][0], first[-1][1]
    mode, call = within[-1]
    stops = any(isinstance(node, ast.If) and _leaves(node) for node in call.around)
    return _last(script, before) if mode is True or stops else (mode, call)


def _last(script: Script, events: list[tuple[Any, Call]]) -> tuple[Any, Call] | None:
    """Return the last mode before the loop; one that a condition may set leaves it unknown."""
    known = [event for event in events if sure(script, event[1]) is not False]
    if not known:
        return None
    mode, call = known[-1]
    return (mode, call) if sure(script, call) else (UNKNOWN, call)


def _outermost(around: Around, loop: ast.AST) -> ast.AST:
    functions = [i for i, node in enumerate(around) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = around[functions[-1] + 1 :] if functions else around
    return next((node for node in inner if isinstance(node, ast.For | ast.While)), loop)


def _backward(script: Script, loop: ast.AST) -> tuple[int, int]:
    return next((start(call.node) for call in script.inside(loop) if call.method == "backward"), (10**9, 0))


def _leaves(node: ast.If) -> bool:
    return any(isinstance(part, ast.Return | ast.Break | ast.Raise) for stmt in node.body for part in ast.walk(stmt))


def _modes(script: Script, names: set[str], around: Around) -> list[tuple[Any, Call]]:
    """Return what sets the mode in the loop's function, in order, also what functions called there leave behind."""
    scope = next((node for node in reversed(around) if isinstance(node, ast.FunctionDef)), None)
    found: list[tuple[Any, Call]] = []
    for call in script.calls:
        own = next((node for node in reversed(call.around) if isinstance(node, ast.FunctionDef)), None)
        if own is not scope:
            continue
        if (mode := _mode(call, names)) is not None:
            found.append((mode, call))
        elif call.name in script.functions:
            found += list(_left_by(script, call, names))
    return found


def _left_by(script: Script, call: Call, names: set[str]) -> Iterator[tuple[Any, Call]]:
    """Yield the mode that a function of the script leaves the model in."""
    inner = [
        (mode, one) for one in script.inside(script.functions[call.name]) if (mode := _mode(one, names)) is not None
    ]
    if inner:
        yield inner[-1][0], call


def _mode(call: Call, names: set[str]) -> Any:
    if call.receiver not in names or call.method not in ("eval", "train"):
        return None
    if call.method == "eval":
        return False
    value = call.args[0] if call.args else call.keywords.get("mode", True)
    return value if isinstance(value, bool) else UNKNOWN
