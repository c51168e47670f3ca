"""Front doors for those who come from other tools: their names and their order of calls, our engine."""
