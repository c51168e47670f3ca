"""The torch engine: an ONNX file as a trainable torch module, and its trained parameters back in the file."""
