"""The onnxruntime-training engine."""
