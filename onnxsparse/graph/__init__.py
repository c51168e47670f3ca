"""ONNX models: files, stored tensors, their uses, and edits. No other package knows ONNX protobufs."""
