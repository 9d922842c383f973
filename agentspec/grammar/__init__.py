"""JSON Schemas to token masks, by llguidance. Knows no model runtime and no LangChain."""
