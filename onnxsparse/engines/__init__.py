"""How a sparse model is trained: one engine for each training library, behind the same verbs."""
