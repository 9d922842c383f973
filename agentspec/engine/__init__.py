"""The loop that makes replies: planning, one target pass for all sequences, verification, commit."""
