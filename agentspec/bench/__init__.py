"""Measuring: figures from traces, and comparisons within one run. Knows no LangChain."""
