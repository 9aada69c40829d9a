"""Runs all speed benchmarks and collects them on one page: `make bench`.

    python benchmarks/collect.py [--only throughput,peers] [--page docs/results/speed.md]

Earlier measurements stay on the page until they are measured again; each part has its date. Keep the machine
idle meanwhile: all parts take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from ratios import HEAD, Ratio

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"

# Files with their arguments, in the order of the page.
PARTS: dict[str, tuple[str, list[str]]] = {
    "throughput": ("A run against its bare steps", ["throughput.py --encoders resnet8:16"]),
    "wide": (
        "The same, with a wide network",
        ["throughput.py --encoders resnet18:64 --batch 32 --clients 2 --steps 12 --rounds 2"],
    ),
    "longer": (
        "The same, with longer rounds",
        ["throughput.py --encoders resnet8:16 --objectives simclr,moco-v2 --steps 24 --rounds 3"],
    ),
    "bf16": (
        "A run with bfloat16 against bare steps without",
        [
            "throughput.py --encoders resnet8:16 --set train.precision=bf16",
            "throughput.py --encoders resnet18:64 --batch 32 --clients 2 --steps 12 --rounds 2 "
            "--objectives simclr,byol --set train.precision=bf16",
        ],
    ),
    "peers": (
        "Against other frameworks",
        ["peers.py", "peers.py --set train.precision=bf16 --flower 1:0:quickstart,1:0"],
    ),
    "paired-peers": (
        "Other frameworks, with two clients at once",
        [
            "peers.py --peers flower --workers 2 --flower 1:0:quickstart,2:0",
        ],
    ),
    "wide-peers": (
        "Other frameworks, with a wide network",
        [
            "peers.py --encoder resnet18 --width 64 --clients 2 --images 256 --repeat 1 "
            "--flower 1:0:quickstart,1:0",
            "peers.py --encoder resnet18 --width 64 --clients 2 --images 256 --repeat 1 "
            "--peers flower --flower 1:0:quickstart,1:0 --set train.precision=bf16",
        ],
    ),
    "methods": ("Cost of methods", ["methods.py --against fedavg"]),
    "passes": ("Cost of methods relative to their passes", ["methods.py --against passes --rounds 2"]),
    "clients": ("Many clients", ["clients.py"]),
    "workers": (
        "Two worker processes",
        ["workers.py --rounds 10", "workers.py --rounds 10 --clients 5,6 --partitions dirichlet"],
    ),
    "alone": ("Two worker processes, one client a round: longer", ["workers.py --rounds 40 --clients 1"]),
    "busy": (
        "Beside busy processes",
        ["busy.py --pieces 10 --turn 4", "busy.py --pieces 10 --turn 4 --side 8"],
    ),
    "probe": ("Probes", ["probe.py"]),
    "views": ("Views", ["views.py"]),
    "embed": (
        "Embeddings",
        ["embed.py --encoder resnet8 --width 16 --side 32 --images 4096", "embed.py"],
    ),
    "large-folder": ("A folder larger than memory", ["large_folder.py"]),
}


def measured(name: str) -> list[Ratio]:
    """Run a benchmark in a separate process and return its ratios."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ratios.jsonl"
        for call in PARTS[name][1]:
            script, *arguments = call.split()
            command = [sys.executable, str(HERE / script), *arguments]
            print("==", " ".join(command[1:]), flush=True)
            subprocess.run(command, check=True, env=os.environ | {"FEDSSL_RATIOS": str(file)})
        return [Ratio(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def section(name: str) -> str:
    title, calls = PARTS[name]
    commands = ", ".join(f"`python benchmarks/{call}`" for call in calls)
    rows = [ratio.row() for ratio in measured(name)]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    about = f"{commands} on {today}, {machine()}."
    return "\n".join([f"## {title}", "", about, "", HEAD, *rows])


def machine() -> str:
    """Describe the machine."""
    model = "an unknown processor"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), model)
    return f"{os.cpu_count()} cores ({model}), {platform.system()}, PyTorch {torch.__version__}"


def put(page: str, name: str, text: str) -> str:
    """The page with a part replaced, or added at its end."""
    begin, end = BEGIN.format(name), END.format(name)
    block = f"{begin}\n{text}\n{end}"
    if begin not in page:
        return f"{page.rstrip()}\n\n{block}\n"
    return page[: page.index(begin)] + block + page[page.index(end) + len(end) :]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "results" / "speed.md")
    options = parser.parse_args()
    for name in options.only.split(","):
        if name not in PARTS:
            parser.error(f"no part {name!r}; there are: {', '.join(PARTS)}")
    failed = []
    for name in options.only.split(","):
        try:
            text = section(name)
        except (subprocess.CalledProcessError, FileNotFoundError):  # the others can still be measured
            failed.append(name)
            continue
        page = options.page.read_text(encoding="utf-8") if options.page.exists() else "# Speed\n"
        options.page.write_text(put(page, name, text), encoding="utf-8")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
