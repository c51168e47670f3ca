"""Matching the tensors of an ONNX file to the parameters of the torch module that it was exported from."""
