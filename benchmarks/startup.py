"""Start-up of the commands that plan, against typer and one rich table, alternating in one run.

    python benchmarks/startup.py [repeats]

Prints medians and the spread in milliseconds, and each command as a multiple of the reference. Exit code 1 when a
multiple is above 4.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from statistics import median

REFERENCE = [sys.executable, "-c", "import typer, rich.table"]
COMMANDS = {
    "list": ["list"],
    "explain": ["explain", "zero"],
    "plan": ["plan", "fast"],
    "emit": ["emit", "training-args", "fast"],
}
LIMIT = 4.0


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main(repeats: int) -> int:
    arms = {"reference": REFERENCE} | {name: [sys.executable, "-m", "hf_efficient", *c] for name, c in COMMANDS.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats + 1):
        for name, command in arms.items():
            times[name].append(seconds(command))
    base = median(times["reference"][1:])
    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {repeats} repeats")
    worst = 0.0
    for name, taken in times.items():
        taken = sorted(taken[1:])  # the first round fills the caches
        multiple = median(taken) / base
        worst = max(worst, multiple)
        low, middle, high = (value * 1e3 for value in (taken[0], median(taken), taken[-1]))
        print(f"{name:<10} {middle:6.0f} ms ({low:.0f} to {high:.0f})  {multiple:.2f} x")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
