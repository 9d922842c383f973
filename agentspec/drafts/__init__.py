"""Draft sources: what proposes tokens for the target to verify. Knows no engine and no LangChain."""
