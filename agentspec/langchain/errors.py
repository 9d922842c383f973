"""Errors that are LangChain's and agentspec's at once, so that code written for either catches them.

LangChain catches `ContextOverflowError` and `ModelTimeoutError`; agentspec's own callers
catch `AgentSpecError`. It must not know what raises them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.exceptions import ContextOverflowError, ModelTimeoutError

from agentspec.errors import ContextLengthError, DeadlineExceededError

__all__ = ["PromptTooLongError", "ReplyTimeoutError", "translated"]


class PromptTooLongError(ContextLengthError, ContextOverflowError):
    """The prompt does not fit the context. LangChain's fallbacks catch it, and its summarising middleware
    where the summary's own prompt is too long."""


class ReplyTimeoutError(DeadlineExceededError, ModelTimeoutError):
    """The reply was not done within `timeout` seconds, and was cancelled."""


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
