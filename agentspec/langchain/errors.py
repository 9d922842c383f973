"""Errors that are LangChain's and agentspec's at once, so that code written for either catches them.

LangChain's own code catches `ContextOverflowError`, `ModelTimeoutError` and `OutputParserException`;
agentspec's own callers catch `AgentSpecError`. It must not know what raises them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.exceptions import ContextOverflowError, ModelTimeoutError, OutputParserException

from agentspec.errors import ContextLengthError, DeadlineExceededError, ReplyError

__all__ = ["PromptTooLongError", "ReplyTimeoutError", "UnfitReplyError", "translated"]


class PromptTooLongError(ContextLengthError, ContextOverflowError):
    """The prompt does not fit the context. LangChain's fallbacks catch it, and its summarising middleware
    where the summary's own prompt is too long."""


class ReplyTimeoutError(DeadlineExceededError, ModelTimeoutError):
    """The reply was not done within `timeout` seconds, and was cancelled."""


class UnfitReplyError(ReplyError, OutputParserException):
    """The reply was cut, or does not fit what it was held to. LangChain's retrying parsers catch it."""

    def __init__(self, message: str, *, text: str, finish_reason: str, hint: str = "") -> None:
        super().__init__(message, text=text, finish_reason=finish_reason, hint=hint)
        self.llm_output = text


@contextmanager
def translated() -> Iterator[None]:
    """Raises agentspec's errors as the class above that LangChain knows, where there is one."""
    try:
        yield
    except (PromptTooLongError, ReplyTimeoutError):
        raise
    except DeadlineExceededError as error:
        raise ReplyTimeoutError(error.message, hint=error.hint) from error
    except ContextLengthError as error:
        raise PromptTooLongError(
            error.message, prompt_tokens=error.prompt_tokens, n_ctx=error.n_ctx, hint=error.hint
        ) from error
