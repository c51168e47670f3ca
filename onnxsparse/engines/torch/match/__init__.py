"""Which tensor of an ONNX file is which parameter of the torch module that it was exported from."""
