"""What a check is: a function whose parameters say what it looks at, whose docstring is its page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from hf_efficient.finding import Finding
from hf_efficient.reading.settings import Settings
from hf_efficient.wording import listed

Function = Callable[..., Iterator[Finding]]


@dataclass(frozen=True)
class Check:
    """A function that looks for one mistake, and for which releases its answer holds."""

    code: str
    function: Function
    holds: Mapping[str, str]
    """Package to version specifier; a package whose version is unknown is taken to be the one this was written for."""
    seen: str
    """How it is known: ran on CPU, read source, arithmetic, report."""
    family: str

    @property
    def doc(self) -> str:
        """Return the check's page: what it finds, why that is wrong, what to do."""
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def releases(self) -> str:
        """Return the releases in words."""
        return listed(f"{package} {spec}" for package, spec in self.holds.items()) if self.holds else "every release"

    def findings(self, given: Mapping[str, Any]) -> Iterator[Finding]:
        """Yield what the check finds in a setup's subjects; nothing where one is missing or the releases differ."""
        parameters = _parameters(self.function)
        if any(required and name not in given for name, required in parameters.items()):
            return
        if not all(_holds(package, spec, given.get("machine")) for package, spec in self.holds.items()):
            return
        found = self.function(**{name: given[name] for name in parameters if name in given})
        yield from (finding.coded(self.code) for finding in found)


def check(holds: Mapping[str, str] | None = None, *, seen: str = "read source") -> Callable[[Function], Function]:
    """Make a generator of findings a check. Its name in hyphens is the code, its docstring the page.

    Parameters are named after the subjects of a Setup (hf_efficient/reading/setup.py) or are `setup` or `effective`;
    one without a default must be there, or the check is not asked.
    """

    def made(function: Function) -> Function:
        code = function.__name__.replace("_", "-")
        assert code not in _CHECKS, f"two checks are called {code}"
        _CHECKS[code] = Check(code, function, dict(holds or {}), seen, function.__module__.rpartition(".")[2])
        return function

    return made


_CHECKS: dict[str, Check] = {}


@cache
def _parameters(function: Function) -> Mapping[str, bool]:
    """Return a check's parameters, and whether each must be there."""
    return {name: p.default is p.empty for name, p in inspect.signature(function).parameters.items()}


@cache
def checks() -> Mapping[str, Check]:
    """Return every check under its code, as the modules in rules/ define them."""
    from hf_efficient.checks import rules

    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return dict(sorted(_CHECKS.items()))


def version(package: str, machine: Settings | None) -> Version | None:
    """Return the version that the run uses: what the setup says, else what is installed here; None: unknown."""
    said: Any = machine.get("packages") if machine else None
    text = said.get(package) if isinstance(said, Mapping) else None
    return _version(str(text)) if text else _installed(package)


@cache
def _installed(package: str) -> Version | None:
    try:
        return _version(metadata.version(package))
    except (metadata.PackageNotFoundError, OSError):
        return None


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _holds(package: str, spec: str, machine: Settings | None) -> bool:
    found = version(package, machine)
    return found is None or _contains(spec, found)


@cache
def _contains(spec: str, version: Version) -> bool:
    return SpecifierSet(spec).contains(version, prereleases=True)
