"""How many processes a launcher's options start, on all nodes together."""

from __future__ import annotations

from hf_efficient.reading.arguments import literal
from hf_efficient.reading.launch_flags import Option
from hf_efficient.reading.settings import Settings
from hf_efficient.reading.shell import Word


def processes_of(launcher: str, options: dict[str, Option], env: Settings) -> int | None:
    """Return the processes, or None where a file or the machine decides."""
    if launcher == "accelerate":
        return _number(options.get("num_processes"), None)
    return _of_torchrun(options) if launcher == "torchrun" else _of_deepspeed(options, env)


def _number(option: Option | None, default: int | None) -> int | None:
    value = default if option is None else literal(option[1]) if option[1] is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _of_torchrun(options: dict[str, Option]) -> int | None:
    """Return processes per node times nodes; argparse takes the beginnings of options there as well."""
    per_node = next((option for name, option in options.items() if name.startswith("nproc")), None)
    nodes = next((option for name, option in options.items() if name.startswith("nnode")), None)
    each, count = _number(per_node, 1), _number(nodes, 1)
    return each * count if each and count else None


def _of_deepspeed(options: dict[str, Option], env: Settings) -> int | None:
    """Return the slots that are included, or GPUs times nodes, or the cards that CUDA_VISIBLE_DEVICES leaves."""
    included = options.get("include", (Word(""), None))[1]
    if included is not None:
        hosts = [host.partition(":")[2] for host in included.text.split("@")]
        return sum(len(slots.split(",")) for slots in hosts) if included.known and all(hosts) else None
    gpus = _number(options.get("num_gpus", options.get("num_accelerators")), None)
    nodes = _number(options.get("num_nodes"), 1 if "hostfile" not in options else None)
    if gpus and nodes:
        return gpus * nodes
    visible = env.text("CUDA_VISIBLE_DEVICES")
    alone = not options.keys() & {"num_gpus", "num_accelerators", "num_nodes", "exclude", "hostfile"}
    return len(visible.split(",")) if visible and alone else None
