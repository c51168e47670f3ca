"""What SparseML's modifiers do, by the clock of epochs: to a run on an engine, or to a torch module."""
