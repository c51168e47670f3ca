"""An ONNX file as a trainable torch module, and the trained numbers back in the file."""
