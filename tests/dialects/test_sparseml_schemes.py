"""Names and options of QuantizationModifier around a user's loop: layers by path and class, and what is warned of."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from onnxsparse.engines.torch import library

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")
torch = pytest.importorskip("torch")

from torch import nn

from onnxsparse.dialects.sparseml import ScheduledModifierManager
from onnxsparse.engines.torch.quantized_module import rounded_weights, roundings_of
from onnxsparse.errors import OptionError

STEPS = 2
GMP = """
    - !GMPruningModifier {start_epoch: 0, end_epoch: 2, update_frequency: 0.5, init_sparsity: 0.5, final_sparsity: 0.75,
        params: __ALL_PRUNABLE__}
"""
ACDC = """
    - !ACDCPruningModifier {start_epoch: 0, end_epoch: 4, update_frequency: 1, compression_sparsity: 0.75,
        params: __ALL_PRUNABLE__}
"""
RANGE = "\n    - !EpochRangeModifier {start_epoch: 0, end_epoch: 4}\n"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.act = nn.Linear(8, 8), nn.SiLU()

    def forward(self, x: Any) -> Any:
        return x + self.act(self.query(x))


class Bert(nn.Module):
    """Eleven layers, so that one begins as another does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.Embedding(10, 8)
        self.layer = nn.ModuleList(Block() for _ in range(11))
        self.classifier = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        hidden = self.embeddings(x)
        for layer in self.layer:
            hidden = layer(hidden)
        return self.classifier(hidden.mean(1))


def trained(options: str, more: str = RANGE, epochs: int = 1, start: float = 0) -> Any:
    """The module, and the manager before `finalize`."""
    manager = ScheduledModifierManager.from_yaml(
        f"modifiers:{more}    - !QuantizationModifier {{start_epoch: {start}, {options}}}\n"
    )
    net = Bert()
    optimizer = manager.modify(net, torch.optim.SGD(net.parameters(), 0.01), STEPS)
    batch = torch.randint(0, 10, (4, 3), generator=torch.Generator().manual_seed(0))
    for _ in range(epochs * STEPS):
        optimizer.zero_grad()
        net(batch).square().sum().backward()
        optimizer.step()
    return net, manager


def rounded(net: Any) -> tuple[set[str], set[str]]:
    """The weights and the activations that are on grids."""
    return {path for path, *_ in rounded_weights(net)}, {path for path, _ in roundings_of(net)}


QUERIES = {f"layer.{place}.query.weight" for place in range(11)}


@pytest.mark.parametrize(
    ("options", "weights", "activations"),
    [
        ("ignore: [classifier, Embedding, layer.1]", QUERIES - {"layer.1.query.weight"}, 10),
        ("ignore: [Linear]", {"embeddings.weight"}, 0),
        ("submodules: [layer.10, classifier]", {"layer.10.query.weight", "classifier.weight"}, 4),
        ("submodules: [layer.10], quantize_linear_activations: false", {"layer.10.query.weight"}, 1),
        ("scheme: {input_activations: null}", QUERIES | {"classifier.weight", "embeddings.weight"}, 0),
        ("scheme: {weights: null}, ignore: [layer]", set(), 1),
        ("ignore: [layer], scheme_overrides: {classifier: {output_activations: {num_bits: 8}}}",
         {"classifier.weight", "embeddings.weight"}, 2),
        ("scheme: W8A16", QUERIES | {"classifier.weight"}, 0),
    ],
)  # fmt: skip
def test_layers_by_path_and_class(options: str, weights: set[str], activations: int) -> None:
    net, _ = trained(options)
    found = rounded(net)
    assert found[0] == weights
    assert len(found[1]) == activations


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("ignore: [clasifier]", r"!QuantizationModifier.*ignore: 'clasifier' is no layer .*did you mean classifier"),
        ("ignore: [LayerNorm]", r"ignore: 'LayerNorm' is no layer and no module type"),
        ("scheme_overrides: {Conv2d: default}", r"scheme_overrides: 'Conv2d' is no layer"),
        ("submodules: [layer.11]", r"submodules: 'layer\.11' is no layer .*layer\.10"),
    ],
)
def test_names_that_mean_nothing_are_refused_before_anything_changes(options: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        trained(options)
    if "submodules" not in options:
        with pytest.warns(UserWarning, match="is no layer and no module type"):
            trained(f"{options}, strict: false")


@pytest.mark.parametrize("more", [GMP + RANGE, ACDC], ids=["gradual", "alternating"])
def test_what_is_masked_is_zero_while_it_is_rounded(more: str) -> None:
    net, manager = trained("ignore: [embeddings]", more, epochs=4, start=1)
    assert (manager.qat_active(0), manager.qat_active(0.5)) == (False, True)
    zeros = [sum(int((layer.query.weight == 0).sum()) for layer in net.layer)]
    manager.finalize(net)
    zeros.append(sum(int((layer.query.weight == 0).sum()) for layer in net.layer))
    assert min(zeros) >= 0.74 * 11 * 64


def test_a_loop_that_ends_before_it_is_warned_of() -> None:
    net, manager = trained("ignore: [embeddings]", start=3)
    with pytest.warns(
        UserWarning, match=r"ended at epoch 0\.5, and !QuantizationModifier begins at 3: nothing is quan"
    ):
        manager.finalize(net)
    assert rounded(net) == (set(), set())


def test_a_state_fits_the_plain_module_whatever_is_rounded() -> None:
    net, manager = trained("ignore: [embeddings]")
    plain = Bert()
    again = ScheduledModifierManager.from_yaml(str(manager))
    again.apply_structure(plain, math.inf)
    plain.load_state_dict(copy.deepcopy(net.state_dict()))
    assert set(plain.state_dict()) == set(net.state_dict())


def test_what_means_nothing_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="averaging_constant of activations: it means nothing here"):
        trained("activation_qconfig_kwargs: {averaging_constant: 0.5}")
    with pytest.warns(UserWarning, match="the recipe asks for one for each token"):
        trained("scheme: W8A8")
