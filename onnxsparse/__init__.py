"""Makes ONNX models sparse."""
