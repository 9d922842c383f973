"""The LangChain chat model. The only package that imports `langchain_core`; it knows no C call."""
