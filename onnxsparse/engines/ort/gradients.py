"""Which operators onnxruntime-training 1.19.2 differentiates, and what stands in the way of a gradient.

1. `FACTS` says of each operator whether its gradient is right, and under which condition. It speaks of the CPU and of
   float32; it was measured one node at a time against finite differences.
2. Where an operator has a rewrite, the rewrite knows the condition: it leaves a node alone exactly when the engine is
   right about it, and says why when it can neither leave it nor rewrite it.
3. An operator that is not in the table counts as blocked: some kill the process, and some are silently wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto

from onnxsparse.engines.ort import rewrites, value_shapes
from onnxsparse.engines.ort.rewrites.rewrite import View, operator
from onnxsparse.engines.ort.writer import Writer

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
    value_shapes.infer(model)
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
