"""Names to GGUF files: what `model=` may say, where the files come from, and that they are the right ones.

This package reads and writes files and speaks HTTP. It must not know what a GGUF holds: `agentspec.llama`
does.
"""
