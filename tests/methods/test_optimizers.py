import subprocess
import sys

import pytest
import torch
from torch import nn

from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_steps_equal_those_of_torch_optim(name):
    config = TrainConfig(optimizer=name, lr=0.1, weight_decay=0.01, momentum=0.9)
    torch.manual_seed(0)
    start, unused = torch.randn(3, 2), torch.randn(4)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    never = nn.Parameter(unused.clone())
    reference = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, foreach=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01, foreach=True),
    }[name]([theirs])
    optimizer = Optimizer([ours, never], config, 0.1)
    for step in range(5):
        target = torch.full((3, 2), float(step))
        for parameter, chosen in ((ours, optimizer), (theirs, reference)):
            chosen.zero_grad()
            ((parameter - target) ** 2).sum().backward()
            chosen.step()
    assert torch.equal(ours, theirs)
    assert torch.equal(never, unused)  # what takes no gradient is not moved, not even by weight decay


def test_the_first_step_does_not_load_the_compiler():
    code = """
import sys, torch
from fedssl.methods.options import TrainConfig
from fedssl.methods.optimizers import Optimizer
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = Optimizer([parameter], TrainConfig(), 0.1)
parameter.sum().backward()
optimizer.step()
assert 'torch._dynamo' not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
