"""ONNX models: files, stored tensors, their uses, and edits. The only room that knows ONNX protobufs."""
