"""Channel classes: which indices of which axes of which tensors are one channel, everywhere in a model."""
