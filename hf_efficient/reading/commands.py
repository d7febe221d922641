"""Commands that start a training: through accelerate, torchrun, deepspeed, TRL's own, or plain python."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hf_efficient.finding import Finding, Place, info
from hf_efficient.reading.arguments import arguments, flag_name, grouped, is_flag
from hf_efficient.reading.installed import folder, trainer_fields
from hf_efficient.reading.launch_flags import BARE, Option, launch_settings
from hf_efficient.reading.parts import Command, Part
from hf_efficient.reading.process_count import processes_of
from hf_efficient.reading.settings import NOTHING, UNKNOWN, Settings
from hf_efficient.reading.shell import ASSIGNMENT, Statement, Word, statements

PREFIXES = frozenset({
    "nohup", "time", "sudo", "env", "nice", "ionice", "stdbuf", "srun", "taskset", "numactl", "timeout", "exec",
    "command", "uv", "poetry", "pipenv", "pdm", "rye", "hatch", "conda", "mamba", "micromamba", "apptainer",
    "singularity", "docker", "podman", "nsys", "ncu", "mpirun", "mpiexec", "unbuffer", "setsid", "script",
    "caffeinate", "xvfb-run", "ipython",
})  # fmt: skip
SPAWNING = frozenset({"srun", "mpirun", "mpiexec"})
"""Programs that start a command several times."""
PYTHON = re.compile(r"python(?:[23](?:\.\d+)?)?t?$")
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed", "deepspeed": "deepspeed",
}  # fmt: skip
TOOLS = frozenset({
    "pip", "venv", "pytest", "unittest", "http", "json", "build", "twine", "ensurepip", "virtualenv", "conda", "site",
    "compileall", "ipykernel", "jupyter", "notebook", "nltk", "spacy", "ruff", "black", "mypy", "pdb", "debugpy",
    "cProfile", "timeit", "this", "zipfile", "tarfile", "tensorboard", "huggingface_hub", "coverage", "pre_commit",
    "uv", "poetry", "playwright", "doctest",
})  # fmt: skip
TRL = frozenset({"sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation", "gkd", "orpo", "cpo", "ppo"})
PROMPT = re.compile(
    r"^\s*(?:[$>%]\s+)?(?=(?:export\s+)?[A-Za-z_]\w*=\S|(?:accelerate(?:-launch)?|torchrun|deepspeed|python[\d.]*|trl|"
    + "|".join(sorted(PREFIXES)) + r")\s(?!\s*=))"
)  # fmt: skip


def read_shell(text: str, file: str, *, prose: bool = False) -> Part:
    """Return the commands of a shell script, or of `prose` those of its lines that begin as a command does."""
    found: list[Command] = []
    told: list[str] = []
    exported: dict[str, Word] = {}
    for statement in statements(_lines(text) if prose else text):
        exported = statement.env
        command = _command(statement, file, told)
        if command:
            found.append(command)
    commands = tuple(found)
    findings = tuple(_idle(name, file) for name in dict.fromkeys(told))
    return Part(kind="shell", file=file, settings=_env(exported, file), commands=commands, findings=findings)


def _lines(text: str) -> str:
    """Return the text with those lines emptied that are no commands, so that the others keep their numbers."""
    kept, going = list[str](), False
    for line in text.splitlines():
        begins = PROMPT.match(line)
        kept.append(line[begins.end() :] if begins and not going else line if going else "")
        going = (going or begins is not None) and line.endswith("\\")
        if not going and kept[-1] and (kept[-1].count("'") % 2 or kept[-1].count('"') % 2):
            kept[-1] = kept[-1].replace("'", "").replace('"', "")
    return "\n".join(kept)


def _command(statement: Statement, file: str, told: list[str]) -> Command | None:
    words, env, prefix = _unwrapped(statement)
    if not words:
        return None
    name, place = words[0].text.rpartition("/")[2], Place(file, words[0].line)
    environment = _env(env, file)
    if name == "trl":
        return _trl(words[1:], place, environment, told)
    if PYTHON.match(name):
        return _python(words[1:], place, environment, told, once=not SPAWNING & prefix)
    if name == "accelerate" and len(words) > 1 and words[1].text == "launch":
        return _launched("accelerate", words[2:], place, environment, told)
    launcher = {
        "accelerate-launch": "accelerate",
        "torchrun": "torchrun",
        "deepspeed": "deepspeed",
        "ds": "deepspeed",
    }.get(name)
    return _launched(launcher, words[1:], place, environment, told) if launcher else None


def _unwrapped(statement: Statement) -> tuple[Sequence[Word], dict[str, Word], set[str]]:
    """Return the command behind `nohup`, `env`, `srun` and the like, with the variables that these give it."""
    words, env, prefix = statement.words, dict(statement.env), set[str]()
    while words and words[0].text.rpartition("/")[2] in PREFIXES:
        prefix.add(words[0].text)
        words = words[1:]
        while words and not _begins(words[0].text.rpartition("/")[2]):
            given = ASSIGNMENT.fullmatch(words[0].text)
            if given and not is_flag(words[0]):
                env[given.group(1)] = words[0]._replace(text=given.group(3))
            words = words[1:]
    return words, env, prefix


def _begins(name: str) -> bool:
    launchers = ("accelerate", "accelerate-launch", "torchrun", "deepspeed", "trl")
    return name in launchers or name in PREFIXES or PYTHON.match(name) is not None


def _env(variables: dict[str, Word], file: str) -> Settings:
    values = {name: word.text if word.known else UNKNOWN for name, word in variables.items()}
    places = {name: Place(file, word.line) for name, word in variables.items()}
    return Settings(values, place=Place(file), places=places)


def _options(words: Sequence[Word], launcher: str) -> tuple[dict[str, Option], Sequence[Word]]:
    """Return a launcher's options, and the words from the script on."""
    options: dict[str, Option] = {}
    while words and is_flag(words[0]):
        option, words = words[0], words[1:]
        name, value = flag_name(option), None
        if "=" in option.text:
            value = option._replace(text=option.text.partition("=")[2])
        elif launcher == "python" and option.text[1:2] in "XW" and len(option.text) > 2:
            name = option.text[1]
        elif name not in BARE[launcher] and words and not is_flag(words[0]) and not words[0].text.endswith(".py"):
            value, words = words[0], words[1:]
        options[name] = option, value
        if launcher == "python" and name in ("m", "c"):
            break
    return options, words


def _python(words: Sequence[Word], place: Place, env: Settings, told: list[str], *, once: bool) -> Command | None:
    options, rest = _options(words, "python")
    module = options["m"][1] if "m" in options else None
    if module is not None:
        launcher = MODULES.get(module.text)
        if launcher:
            return _launched(launcher, rest, place, env, told)
        if module.text == "accelerate.commands.accelerate_cli" and rest and rest[0].text == "launch":
            return _launched("accelerate", rest[1:], place, env, told)
        if module.text.partition(".")[0] in TOOLS or not module.text:
            return None
        rest = (module, *rest)
    elif "c" in options or not rest or not (rest[0].text.endswith(".py") or not rest[0].known):
        return None
    return _made("python", rest, place, env, NOTHING, processes=1 if once else None)


def _launched(launcher: str, words: Sequence[Word], place: Place, env: Settings, told: list[str]) -> Command | None:
    options, rest = _options(words, launcher)
    if {"h", "help"} & options.keys():
        return None
    if "no_python" in options and rest and PYTHON.match(rest[0].text):
        rest = _options(rest[1:], "python")[1]
    launch, config = NOTHING, _path(options.get("config_file"))
    if launcher == "accelerate":
        launch, idle = launch_settings(options, place, whole=not config)
        told.extend(idle)
    elif any(name.startswith(("nnode", "num_nodes", "hostfile", "include")) for name in options):
        launch = Settings({"num_machines": UNKNOWN}, place=place)
    processes = processes_of(launcher, options, env)
    return _made(launcher, rest, place, env, launch, processes=processes, config_file=config)


def _trl(words: Sequence[Word], place: Place, env: Settings, told: list[str]) -> Command | None:
    """Return a command of TRL: options that its trainer does not know go to `accelerate launch`."""
    if not words or words[0].text not in TRL:
        return None
    ours: list[Word] = []
    options: dict[str, Option] = {}
    fields = trainer_fields(sft=True)
    for option, values in grouped(words[1:]):
        name = flag_name(option)
        known = launch_settings({name: (option, None)}, place, whole=False)[0].values or name == "config_file"
        if option.text and (known or name == "accelerate_config") and name not in fields:
            options["config_file" if name == "accelerate_config" else name] = option, values[0] if values else None
        else:
            flag = [option._replace(text=option.text.partition("=")[0])] if option.text else []
            ours += flag + values
    config = _path(options.get("config_file"))
    launch, idle = launch_settings(options, place, whole=False)
    told.extend(idle)
    script = Word(f"trl {words[0].text}", words[0].line, raw=f"trl {words[0].text}")
    processes = processes_of("accelerate", options, env)
    return _made("accelerate", (script, *ours), place, env, launch, processes=processes, config_file=_shipped(config))


def _made(
    launcher: str, words: Sequence[Word], place: Place, env: Settings, launch: Settings, *,
    processes: int | None, config_file: str = "",
) -> Command:  # fmt: skip
    script = words[0] if words else Word("")
    given = arguments(words[1:], place)
    named = [
        launch.get("deepspeed_config.deepspeed_config_file"),
        *map(given.get, ("config", "deepspeed", "deepspeed_config")),
    ]
    lone = words[1:2] if len(words) > 1 and not is_flag(words[1]) else ()
    named += [word.raw or word.text for word in lone if word.text.endswith((".json", ".yaml", ".yml"))]
    return Command(
        launcher=launcher,
        script=script.text if script.known else script.raw if script.text.endswith(".py") else "",
        launch=launch,
        env=env,
        arguments=given,
        processes=processes,
        config_file=config_file,
        files=tuple(dict.fromkeys(name for name in named if isinstance(name, str) and name)),
        place=place,
    )


def _path(option: Option | None) -> str:
    """Return a path as it is written; with variables that cannot be known its end still tells which file it is."""
    word = option[1] if option else None
    return "" if word is None else word.text if word.known else word.raw or word.text


def _shipped(config: str) -> str:
    """Return the file that TRL ships under a name (`--accelerate_config zero2`), else the path as it is."""
    here = folder("trl")
    shipped = here / "accelerate_configs" / f"{config}.yaml" if here and config.isidentifier() else None
    return str(shipped) if shipped and shipped.is_file() else config


def _idle(name: str, file: str) -> Finding:
    engine = "--use_fsdp" if name.lstrip("-").startswith("fsdp") else "--use_deepspeed"
    return info(
        f"{name} without {engine}",
        why=f"accelerate listens to it under {engine} only, or where its default file on that machine says so.",
        fix=f"Add {engine}, or take {name} out.",
        at=Place(file),
    ).coded("launch-option-ignored")
