"""Random graphs whose layers use every operator that has a rule for channels; shapes are valid by construction.

A graph is a walk: each step takes a value that was made before and makes another one. Values are images (N, C, H, W),
tokens (N, T, C) or vectors (N, C). What is read by nobody at the end becomes an output, behind one more layer or as it
is. Weights are shared, moved and cast on their way to the operator now and then.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tests.channels import random_layers  # noqa: F401 - its steps register themselves
from tests.channels.net import Trap
from tests.channels.random_steps import STEPS, RandomNet, Val, conv, gemm, linear


def make(seed: str, steps: int = 9) -> tuple[Trap, list[str]]:
    """The graph of a seed, and the names of its steps."""
    net, values, done = drawn(seed, steps)
    return dataclasses.replace(net.trap(*_outputs(net, values)), name=seed), done


def drawn(seed: str, steps: int = 9) -> tuple[RandomNet, list[Val], list[str]]:
    """The nodes of a seed, the values that they make, and the names of the steps."""
    net = RandomNet(seed)
    values = [_start(net)]
    done: list[str] = []
    while len(done) < steps:
        x = values[int(net.dice.integers(max(0, len(values) - 3), len(values)))]
        name = _chosen(net, x)
        before = len(net.nodes), len(net.initializers)
        made = STEPS[name][1](net, x, values)
        if made is None or math.prod(made.shape) > 6000 or not 1 < made.channels <= 64:
            assert made is not None or before == (len(net.nodes), len(net.initializers)), name
            continue
        values.append(made)
        done.append(name)
    return net, values, done


def _start(net: RandomNet) -> Val:
    """The first layer, a table that is looked up, or the input as it is."""
    if net.one_of(0, 0, 0, 0, 1):
        ids = net.feed("x", np.arange(12).reshape(2, 6) * 5 % 11)
        return Val(net("Gather", net.weight("words", 11, 16), ids), (2, 6, 16))
    shape = ((2, 8, 4, 4), (2, 8, 6, 6), (2, 6, 8), (2, 8))[net.one_of(0, 0, 1, 2, 2, 3)]
    dims: list[int | str] = list(shape)
    for at, name in enumerate("NCHW" if len(shape) == 4 else "NTC"[: len(shape)]):
        if name in "NHWT" and net.dice.random() < 0.25:
            dims[at] = name
    x = Val(net.input("x", *shape, dims=dims), shape)
    first = {"image": conv, "tokens": linear, "vector": gemm}[x.kind]
    return first(net, x, ()) or x


NEW_CHANNELS = ("conv", "linear", "gemm", "residual", "residual_of_convs", "attention")


def _chosen(net: RandomNet, x: Val) -> str:
    """Any step that takes such a value; those that write new channels more often, or all would be frozen soon."""
    fitting = [name for name, (kinds, _) in STEPS.items() if x.kind in kinds]
    if net.dice.random() < 0.3:
        fitting = [name for name in fitting if name in NEW_CHANNELS]
    return fitting[int(net.dice.integers(len(fitting)))]


def _outputs(net: RandomNet, values: Sequence[Val]) -> list[str]:
    """What nobody reads: mostly behind one more layer, sometimes with its channels in sight."""
    read = {name for node in net.nodes for name in node.input}
    for node in net.nodes:
        for attribute in node.attribute:
            read |= {name for inner in attribute.g.node for name in inner.input}
    outputs = []
    for x in values:
        if x.name not in read:
            seen = net.dice.random() < 0.1
            last = {"image": lambda v: net.conv(v.name, "last", v.channels, 6),
                    "tokens": lambda v: net.linear(v.name, "last", v.channels, 6),
                    "vector": lambda v: net.gemm(v.name, "last", v.channels, 6)}[x.kind]  # fmt: skip
            outputs.append(x.name if seen else last(x))
    return outputs
