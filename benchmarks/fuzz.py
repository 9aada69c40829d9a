"""Generates bad input: configs, images, archives, tables, answers of sites, and runs with damaged files.

Each must be refused with a clear error: no other exception, no hang (30 seconds of a core, or 300 by the
clock), no more than 4 GB of memory. Any other input is minimized and stored in tests/fuzz/corpus, which the
tests replay.

    python benchmarks/fuzz.py [--examples 10000] [--seed 0] [--targets image,archive]

Exits with 1 if anything was found. Split long runs by seeds or targets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hypothesis import HealthCheck, given, seed, settings  # noqa: E402
from tests.fuzz.targets import TARGETS, Target, limited  # noqa: E402

MEMORY = 4 << 30  # bytes beyond what is taken when the first input comes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default=",".join(TARGETS))
    options = parser.parse_args()
    limit_memory()
    print("| input | examples | refused wrongly | seconds |\n|---|---|---|---|", flush=True)
    found = 0
    for name in options.targets.split(","):
        examples = max(1, round(TARGETS[name].share * options.examples))
        began = time.monotonic()
        count, error = generate(name, TARGETS[name], examples, options.seed)
        found += error is not None
        said = "none" if error is None else f"{type(error).__name__}: {error}"[:200]
        print(f"| {name} | {count:,} | {said} | {time.monotonic() - began:.0f} |", flush=True)
    sys.exit(bool(found))


def limit_memory() -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def generate(name: str, target: Target, examples: int, number: int) -> tuple[int, BaseException | None]:
    """Run a target; returns the number of inputs and the problems."""
    count, last = Counter[str](), {"input": None}

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(target.strategy())
    def check(value: Any) -> None:
        count["all"] += 1
        try:
            with limited():
                target.check(value)
        except BaseException:
            last["input"] = value
            raise

    try:
        check()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        store(name, last["input"], error)
        traceback.print_exception(error, limit=-4)
        return count["all"], error
    return count["all"], None


def store(name: str, value: Any, error: BaseException) -> None:
    text = json.dumps({"target": name, "input": value, "was": f"{type(error).__name__}: {error}"[:300]})
    key = hashlib.sha256(text.encode()).hexdigest()[:8]
    (ROOT / "tests" / "fuzz" / "corpus" / f"{name}-{key}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
