"""Fine-tuning in onnxruntime-training."""
