"""What one file turned out to be, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_efficient.finding import Finding, Place
from hf_efficient.reading.script import Script
from hf_efficient.reading.settings import NOTHING, Settings
from hf_efficient.reading.setup import Setup

Kind = Literal["script", "shell", "arguments", "launch", "deepspeed", "setup", "config", "checkpoint", "unreadable"]


NO_PLACE = Place()


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command that starts a training: its launcher and what it says to launcher, environment and script."""

    launcher: str
    """python, accelerate, torchrun or deepspeed."""
    script: str
    """The script's path as written; empty where it cannot be known. `-m module` is the module's dotted name."""
    launch: Settings = NOTHING
    """Keys of the accelerate YAML that the command line says (`--num_processes 4` is num_processes: 4)."""
    env: Settings = NOTHING
    """Variables that the command, or an export before it, sets."""
    arguments: Settings = NOTHING
    """What the script is told (`--learning_rate 2e-5`), typed as HfArgumentParser would; `deepspeed` is a path."""
    processes: int | None = None
    """On all nodes together; None where the command leaves it to a file or the machine."""
    config_file: str = ""
    """The accelerate YAML that the command names."""
    files: tuple[str, ...] = ()
    """Other files that it names: JSON or YAML of arguments, a DeepSpeed JSON."""
    place: Place = NO_PLACE


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file: what kind it is, recognised by its content, and what it says."""

    kind: Kind
    file: str
    """Its name as findings show it."""
    settings: Settings = NOTHING
    """Of arguments, launch, deepspeed, config and checkpoint; of a shell script the variables that it exports."""
    setup: Setup | None = None
    """Of a setup document."""
    script: Script | None = None
    commands: tuple[Command, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What reading alone shows: an unreadable file, a key twice, another encoding."""
