"""Operators that onnxruntime-training 1.19.2 differentiates, and cuts in the graph where no gradient can pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto
from onnx.helper import make_tensor_value_info

from onnxsparse.engines.distillation import DistillationTarget
from onnxsparse.engines.engine import NO_GRADIENT
from onnxsparse.engines.ort import rewrites
from onnxsparse.engines.ort.numerics import random_as_inputs
from onnxsparse.engines.ort.prepare import Prepared, inputs_of
from onnxsparse.engines.ort.rewrites.rewrite import View, operator
from onnxsparse.engines.ort.shapes import infer_shapes, shapes_of
from onnxsparse.engines.ort.targets import Moving, frontier, reached
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import CONTROL_FLOW, RANDOM, SIZES, Writer, called, downstream, keep, reads, reduce_to

# -- Which operators onnxruntime-training 1.19.2 differentiates, and what stands in the way of a gradient.
#
# 1. `FACTS` says of each operator whether its gradient is right, and under which condition. It speaks of the CPU and of
#    float32; it was measured one node at a time against finite differences.
# 2. Where an operator has a rewrite, the rewrite knows the condition: it leaves a node alone exactly when the engine is
#    right about it, and says why when it can neither leave it nor rewrite it.
# 3. An operator that is not in the table counts as blocked: some kill the process, and some are silently wrong.

GOOD, WRONG, NONE, NO_KERNEL, DEADLY = "good", "wrong", "none", "no kernel", "deadly"


@dataclass(frozen=True)
class Fact:
    """What the engine makes of an operator."""

    verdict: str
    condition: str = ""
    """What has to hold for it to be good, or why it is not."""


_ALWAYS_GOOD = """
    Abs Add Concat Cos Div Erf Exp Expand Flatten Gather GatherElements GatherND Gelu GlobalAveragePool Identity
    LeakyRelu Log LogSoftmax Max Min Mul Neg Reciprocal Relu Reshape Sigmoid Sin Softmax Sqrt Squeeze Sub Tanh
    Tile TopK Trilu Unsqueeze com.microsoft:BiasGelu com.microsoft:FastGelu com.microsoft:Gelu com.microsoft:Pad
    com.microsoft:QuickGelu com.microsoft:Trilu
"""

_WITHOUT_GRADIENT = """
    Acos Acosh AffineGrid Asin Asinh Atan Atanh CastLike Ceil Celu CenterCropPad Col2Im Compress
    ConcatFromSequence Cosh CumSum DFT DepthToSpace DequantizeLinear Det DynamicQuantizeLinear Einsum Elu Floor
    GlobalLpPool GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Hardmax InstanceNormalization
    LRN LpNormalization LpPool MaxRoiPool MaxUnpool Mean MeanVarianceNormalization Mish Mod
    NegativeLogLikelihoodLoss PRelu QuantizeLinear RNN ReduceL1 ReduceLogSum
    ReduceMax ReduceMin ReduceProd ReduceSumSquare ReverseSequence RoiAlign Round STFT Selu SequenceAt
    SequenceConstruct SequenceInsert Shrink Sign Sinh Softplus Softsign SpaceToDepth SplitToSequence Sum Swish
    Tan ThresholdedRelu com.microsoft:Attention com.microsoft:DequantizeLinear com.microsoft:DynamicQuantizeLSTM
    com.microsoft:DynamicQuantizeMatMul com.microsoft:EmbedLayerNormalization com.microsoft:FusedConv
    com.microsoft:FusedGemm com.microsoft:FusedMatMul com.microsoft:GroupQueryAttention com.microsoft:Inverse
    com.microsoft:MatMulNBits com.microsoft:MultiHeadAttention com.microsoft:QuantizeLinear
    com.microsoft:RotaryEmbedding com.microsoft:SkipLayerNormalization
    com.microsoft:SkipSimplifiedLayerNormalization com.microsoft:TransposeMatMul
"""

FACTS: dict[str, Fact] = {
    **{name: Fact(GOOD) for name in _ALWAYS_GOOD.split()},
    **{name: Fact(NONE) for name in _WITHOUT_GRADIENT.split()},
    **{name: Fact(NONE, "it draws random numbers") for name in ("Bernoulli", "RandomNormalLike", "RandomUniformLike")},
    "AveragePool": Fact(GOOD, "no automatic SAME pads, no dilation: silently wrong with them"),
    "BatchNormalization": Fact(WRONG, "silently takes the statistics of the batch"),
    "Cast": Fact(GOOD, "between floats"),
    "Clip": Fact(GOOD, "its limits need no gradient"),
    "Conv": Fact(GOOD, "no automatic SAME pads: silently wrong with them"),
    "ConvTranspose": Fact(NO_KERNEL),
    "DeformConv": Fact(NO_KERNEL),
    "Dropout": Fact(GOOD, "its mask is an output; its random numbers do not resume"),
    "GRU": Fact(GOOD, "forward, usual activations, one length; W and R need a gradient: deadly without"),
    "Gemm": Fact(GOOD, "beta is not zero where there is a third input"),
    "If": Fact(DEADLY),
    "LSTM": Fact(GOOD, "as GRU; no peepholes, no clipping"),
    "LayerNormalization": Fact(GOOD, "three outputs, of which the first is read, and a bias; from opset 17 on"),
    "Loop": Fact(NONE),
    "MatMul": Fact(GOOD, "no input is a vector: silently wrong on some"),
    "MaxPool": Fact(GOOD, "places in row order: silently wrong in column order"),
    "Pad": Fact(GOOD, "constant mode, all axes"),
    "Pow": Fact(GOOD, "a constant exponent that does not widen the base"),
    "ReduceL2": Fact(GOOD, "reduced axes are kept, before opset 18 and where the axes are not named"),
    "ReduceLogSumExp": Fact(GOOD, "reduced axes are kept, before opset 18 and where the axes are not named"),
    "ReduceMean": Fact(GOOD),
    "ReduceSum": Fact(GOOD),
    "Resize": Fact(NO_KERNEL),
    "Scan": Fact(NONE),
    "ScatterElements": Fact(GOOD, "no reduction: silently wrong with one"),
    "ScatterND": Fact(GOOD, "no reduction: silently wrong with one"),
    "SimplifiedLayerNormalization": Fact(NONE, "ONNX's checker does not know it"),
    "Slice": Fact(GOOD, "fixed positive steps"),
    "SoftmaxCrossEntropyLoss": Fact(GOOD, "the logarithms are an output that is not read"),
    "Split": Fact(GOOD, "a gradient comes back from every part"),
    "Transpose": Fact(GOOD, "`perm` is written out"),
    "Where": Fact(GOOD, "branches that need a gradient have the shape of the result: silently wrong without"),
    "com.microsoft:ExpandDims": Fact(DEADLY),
    "com.microsoft:FakeQuant": Fact(GOOD, "straight through"),
}

_REASONS = {
    WRONG: "its gradient is wrong",
    NONE: "the engine has no gradient for it",
    NO_KERNEL: "the engine has no kernel for its gradient",
    DEADLY: "its gradient ends the process",
}


def blocked(model: ModelProto, trained: set[str]) -> list[tuple[NodeProto, str]]:
    """The nodes of a rewritten graph that a gradient would have to pass and cannot, each with the reason."""
    infer_shapes(model)
    view = View.of(model, trained)
    found = [(node, _obstacle(node, view)) for node in model.graph.node if view.flows(node)]
    return [(node, reason) for node, reason in found if reason is not None]


def _obstacle(node: NodeProto, view: View) -> str | None:
    name = operator(node)
    fact, rewrite = FACTS.get(name), rewrites.known().get(name)
    if rewrite is not None:
        writer = Writer(GraphProto(), view.opset)
        refusal = rewrite.write(node, view, writer)
        if refusal is not None or writer.nodes:
            return refusal or "it has not been rewritten"
    if fact is None:
        return "it is not known whether the engine has a right gradient for it"
    if fact.verdict == GOOD:
        return None
    return _REASONS[fact.verdict] + (f" ({fact.condition})" if fact.condition else "")


def must_train(model: ModelProto) -> set[str]:
    """Stored weights of LSTM and GRU layers: the engine dies where these need no gradient.

    A rewritten layer copes with frozen ones, too, by adding a trained tensor times zero.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    stored = {tensor.name for tensor in model.graph.initializer}
    weights = [name for node in model.graph.node if operator(node) in ("LSTM", "GRU") for name in node.input[1:3]]
    return {root for name in weights for root in _roots(name, makers, stored)}


_HANDED_ON = {"Slice", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Cast", "Concat", "Identity", "Split", "Gather"}
_JOINING = {"Concat"}


def _roots(name: str, makers: dict[str, NodeProto], stored: set[str]) -> set[str]:
    """The stored tensors whose elements a value holds."""
    if name in stored:
        return {name}
    node = makers.get(name)
    if node is None or operator(node) not in _HANDED_ON:
        return set()
    sources = list(node.input) if node.op_type in _JOINING else [node.input[0]]
    return {root for source in sources for root in _roots(source, makers, stored)}


# -- Where the gradient cannot pass, the graph is cut, and both sides train on.
#
# 1. A node is cut out if trained weights have a say in what it reads, and it is blocked (the caller knows which
#    operators have no gradient) or is control flow.
# 2. What it reads becomes a distillation target of kind 'cut', matched to the dense model's; where that is no float of
#    fixed shape, the nearest values before it that are.
# 3. What it gives is fed, as the dense model computes it. Nodes that read something else than a tensor of fixed shape
#    from it (a sequence, or as many rows as data say) are cut out with it.
# 4. Random numbers are fed too: the dense model's are the ones to train with. So is what is rounded to whole numbers
#    and back: the engine cannot build a graph with such nodes.
# 5. Outputs that only what is fed has a say in are no targets any more. Weights that no target is left for have a
#    reason.

FED = {*RANDOM, "QuantizeLinear", "DequantizeLinear"}
"""What is never part of the graph to train."""


def cut(prepared: Prepared, blocked: Sequence[str] = ()) -> Prepared:
    """The graph without the nodes named in `blocked`, and without control flow; itself where there are none."""
    graph = prepared.model.graph
    if not blocked and not any(node.op_type in (*CONTROL_FLOW, *FED) for node in graph.node):
        return prepared
    model = ModelProto()
    model.CopyFrom(prepared.model)
    made = _Cut(prepared, model, set(blocked))
    made.walk()
    return made.result() if made.stops else prepared


def teacher(before: Prepared, after: Prepared) -> ModelProto:
    """The dense model: gives all targets of `after`, then what is fed to it. `before` is the graph it was cut from;
    values that were only written into the later graph are computed as they are there. Its random numbers are fed."""
    model = ModelProto()
    model.CopyFrom(before.model)
    _graft(model.graph, after)
    wanted = [*(signal.name for signal in after.signals), *after.fed]
    reduce_to(model, wanted)
    random_as_inputs(model)
    missing = set(wanted) - {name for node in model.graph.node for name in node.output}
    if missing:
        raise ModelError(f"the dense model does not compute '{min(missing)}', which the graph to train is fed")
    return model


def _graft(graph: GraphProto, after: Prepared) -> None:
    """Nodes of the later graph that its targets need and the earlier one does not have."""
    known = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    stored = {tensor.name for tensor in graph.initializer}
    wanted = {signal.name for signal in after.signals} - known
    nodes: list[NodeProto] = []
    for node in reversed(after.model.graph.node):
        if wanted & set(node.output):
            nodes.insert(0, node)
            wanted |= set(reads(node)) - known - stored
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in after.model.graph.initializer if tensor.name in wanted - stored)


@dataclass
class _Cut:
    prepared: Prepared
    model: ModelProto
    blocked: set[str]
    stops: list[NodeProto] = field(default_factory=list)
    kept: list[NodeProto] = field(default_factory=list)
    signals: dict[str, DistillationTarget] = field(default_factory=dict)
    given: dict[str, None] = field(default_factory=dict)
    partial: bool = False

    def __post_init__(self) -> None:
        graph = self.model.graph
        zeros = {name: np.zeros(shape, dtype) for name, dtype, shape in inputs_of(self.model)}
        self.shapes = shapes_of(self.model, [zeros])  # declared, inferred, or as they come out for zeros
        self.moving = Moving(graph, self.prepared.weights, self.shapes)
        self.alive = set(self.prepared.weights)

    def walk(self) -> None:
        """Each node in order: kept, or cut out."""
        for node in self.model.graph.node:
            moved = [name for name in reads(node) if name in self.alive]
            handed = any(name in self.given and not self._is_fixed(name) for name in reads(node))
            if node.op_type in FED or handed or (moved and (node.name in self.blocked or node.op_type in CONTROL_FLOW)):
                self._stop(node, moved)
                continue
            self.kept.append(node)
            if moved and node.op_type not in SIZES:
                self.alive |= {name for name in node.output if name}

    def _is_fixed(self, name: str) -> bool:
        return name in self.shapes and self.shapes[name].sizes is not None

    def _stop(self, node: NodeProto, moved: Collection[str]) -> None:
        self.stops.append(node)
        self.given.update(dict.fromkeys(name for name in node.output if name))
        known = {signal.name for signal in self.prepared.signals}
        original = self._belongs_to(node)
        self.partial |= bool(moved) and node.op_type not in RANDOM
        for name in moved:
            for value in frontier(self.model.graph, name, self.moving, self.shapes):
                if value in self.alive and value not in known and node.op_type not in RANDOM:
                    self.signals.setdefault(value, DistillationTarget(value, original, "cut", stated=False))

    def _belongs_to(self, node: NodeProto) -> str:
        after = downstream(self.model.graph, [name for name in node.output if name])
        named = [signal.original for signal in self.prepared.signals if signal.name in after]
        return (named or [signal.original for signal in self.prepared.signals] or [""])[0]

    def result(self) -> Prepared:
        graph = self.model.graph
        signals = [signal for signal in self.prepared.signals if signal.name in self.alive]
        signals += self.signals.values()
        keep(graph.node, self.kept)
        for name in self.given:
            if self._is_fixed(name):
                shaped = self.shapes[name]
                graph.input.append(make_tensor_value_info(name, shaped.kind, shaped.sizes))
        reduce_to(self.model, [signal.name for signal in signals])
        weights = reached(graph, signals, self.prepared.weights, self.shapes)
        inputs, stops = inputs_of(self.model), ", ".join(called(node) for node in self.stops[:5])
        return replace(
            self.prepared,
            model=self.model,
            weights={name: tag for name, tag in self.prepared.weights.items() if name in weights},
            signals=signals,
            inputs=inputs,
            fed=[*self.prepared.fed, *(name for name, _, _ in inputs if name in self.given)],
            notes=[*self.prepared.notes, f"cut at {stops}{' and others' if len(self.stops) > 5 else ''}"],
            unreached={**self.prepared.unreached, **self._lost(weights)},
            partial=self.prepared.partial or self.partial,
        )

    def _lost(self, weights: set[str]) -> dict[str, str]:
        reasons = {}
        for name, tag in self.prepared.weights.items():
            if name not in weights:
                after = downstream(self.prepared.model.graph, [name])
                stop = next((node for node in self.stops if any(one in after for one in reads(node))), self.stops[0])
                reasons[tag] = f"{NO_GRADIENT} {called(stop)}, and nothing before it can be matched"
        return reasons
