"""What torch exports of quantization-aware training, converted: eager mode's modules and the functional forms."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxsparse.passes.quantization.qat_export import converted
from tests.quantization.fake_quantized import arrays, operators, run

torch = pytest.importorskip("torch")
INPUTS = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)


def exported(net: Any, inputs: np.ndarray, dynamo: bool = False, **options: Any) -> ModelProto:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamo": dynamo, "verbose": False}
        program = torch.onnx.export(net, (torch.from_numpy(inputs),), None if dynamo else file, **names, **options)
    return program.model_proto if dynamo else onnx.load_from_string(file.getvalue())


def compared(net: Any, model: ModelProto, inputs: np.ndarray, off: float) -> ModelProto:
    """Convert, and compare with what torch computes."""
    made, facts = converted(model)
    onnx.checker.check_model(made, full_check=True)
    with torch.no_grad():
        wanted = net(torch.from_numpy(inputs)).numpy()
    for optimized in (False, True):
        np.testing.assert_allclose(run(made, {"x": inputs}, optimized)[0], wanted, atol=off)
    read = {name for node in made.graph.node for name in node.input}
    assert arrays(made).keys() <= read
    assert facts.weights
    assert all(arrays(made)[one.name].dtype == np.int8 for one in facts.weights)
    return made


def trained(qconfig: Any, fused: bool) -> Any:
    """A residual net in eager mode, trained a little, with zeros in its weights."""
    quantization, nn = torch.ao.quantization, torch.nn

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
            self.c1, self.b1, self.r1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
            self.c2, self.b2, self.r2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
            self.sum, self.fc = torch.ao.nn.quantized.FloatFunctional(), nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            x = self.r1(self.b1(self.c1(self.quant(x))))
            x = self.r2(self.sum.add(x, self.b2(self.c2(x))))
            return self.dequant(self.fc(x.mean((2, 3))))

    torch.manual_seed(0)
    net: Any = Net().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fused:
            net = quantization.fuse_modules_qat(net, [["c1", "b1", "r1"], ["c2", "b2"]])
        net.qconfig = qconfig
        quantization.prepare_qat(net, inplace=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.randn(8, 3, 8, 8)).pow(2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for one in net.parameters():
            one[one.abs() < 0.05] = 0
    net.eval().apply(quantization.disable_observer)
    return net


@pytest.mark.parametrize(
    ("backend", "fused", "folded"), [("fbgemm", True, True), ("fbgemm", True, False), ("symmetric", False, False)]
)
def test_eager_mode(backend: str, fused: bool, folded: bool) -> None:
    """As fbgemm has it: values in 7 bits, and a division by the factor of the normalization behind each convolution."""
    quantization = torch.ao.quantization
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = quantization.FakeQuantize.with_args(
            observer=quantization.MovingAverageMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
            qscheme=torch.per_tensor_symmetric,
        )  # fmt: skip
        symmetric = quantization.QConfig(activation=values, weight=quantization.default_per_channel_weight_fake_quant)
        qconfig = symmetric if backend == "symmetric" else quantization.get_default_qat_qconfig("fbgemm", version=0)
    net = trained(qconfig, fused)
    kept: dict[str, Any] = (
        {} if folded else {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
    )
    model = exported(net, INPUTS, opset_version=17, **kept)
    # Torch divides by the scale as a product with its inverse, so a value between two steps may go to the other.
    made = compared(net, model, INPUTS, 1e-6 + float(net.fc.activation_post_process.scale))
    assert "Div" not in operators(made)
    assert ("BatchNormalization" in operators(made)) == (not fused)
    if not folded:
        layers = {"c1.weight": net.c1, "c2.weight": net.c2, "fc.weight": net.fc}
        for name, layer in layers.items():
            zeros = layer.weight.detach().numpy() == 0
            assert zeros.mean() > 0.1
            assert not arrays(made)[name][zeros].any()


class Functional(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Fake quantization in a module's own words; a scale is computed from its weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.linear = torch.nn.Conv2d(3, 6, 3), torch.nn.Linear(6, 5, bias=False)
        self.table = torch.nn.Parameter(torch.randn(6))

    def forward(self, x: Any) -> Any:
        def rounded(weight: Any) -> Any:
            scale = weight.detach().abs().amax(tuple(range(1, weight.ndim))) / 127
            zeros = torch.zeros(len(weight), dtype=torch.int32)
            return torch.fake_quantize_per_channel_affine(weight, scale, zeros, 0, -128, 127)

        x = torch.fake_quantize_per_tensor_affine(x, 0.03, 120, 0, 255)
        x = torch.relu(torch.nn.functional.conv2d(x, rounded(self.conv.weight), self.conv.bias))
        x = torch.fake_quantize_per_tensor_affine(x, 0.02, 0, 0, 255).mean((2, 3))
        x = torch.fake_quantize_per_tensor_affine(x, 0.01, 0, -128, 127)
        return x @ rounded(self.linear.weight).t()


@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_functional_forms(dynamo: bool) -> None:
    net = Functional().eval()
    made = compared(net, exported(net, INPUTS, dynamo, opset_version=18 if dynamo else 17), INPUTS, 0.02)
    assert {"conv.weight", "linear.weight"} <= arrays(made).keys()
    assert arrays(made)["conv.bias"].dtype == np.int32
