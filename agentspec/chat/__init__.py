"""Conversations to prompts, and tokens to validated calls. Knows no model runtime and no LangChain."""
