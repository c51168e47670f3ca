"""Training engines: one for each training library, behind one interface."""
