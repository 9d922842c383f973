"""The LangChain models, for chats and for completions.

The only package that imports `langchain_core`; it knows no C call.
"""
