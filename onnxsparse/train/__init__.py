"""The one training room: what is trained (`trainee`), what acts on it (`acts`), and the loop that drives both."""
