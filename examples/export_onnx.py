"""Export an encoder to ONNX and use it in a program without fedssl.

Trains briefly on digits and writes one ONNX file. A second Python process, which imports neither fedssl nor
PyTorch, loads it with onnxruntime and fits a classifier on the features of 100 labeled digits.

    python examples/export_onnx.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import fedssl
from fedssl.use.export import export

CONSUMER = """
import sys

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

session = onnxruntime.InferenceSession("digits.onnx")
(expected,) = session.get_inputs()
print(f"digits.onnx takes {expected.name} {expected.shape} and runs on {session.get_providers()[0]}")

digits = load_digits()
pixels = (digits.images[:, None] / 16).astype(np.float32)  # [N, 1, 8, 8], in [0, 1]
(features,) = session.run(None, {"pixels": pixels})
train, test = slice(0, 100), slice(1000, 1797)
for name, x in (("pixels", pixels.reshape(len(pixels), -1)), ("features", features)):
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(x[train], digits.target[train])
    print(f"{classifier.score(x[test], digits.target[test]):.1%} right by {x.shape[1]} {name}")
assert not {"fedssl", "torch"} & sys.modules.keys()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = fedssl.run(
            data="digits",
            rounds=options.rounds,
            probe={"every": 0, "protocol": "none"},
            engine={"threads": 1},  # small networks are slower with several threads
            out=Path(name) / "run",
            quiet=True,
        )
        for file in export(run.path, "onnx", Path(name) / "digits.onnx"):
            print(f"wrote {file.name}, {file.stat().st_size:,} bytes")
        subprocess.run([sys.executable, "-c", CONSUMER], cwd=name, check=True)


if __name__ == "__main__":
    main()
