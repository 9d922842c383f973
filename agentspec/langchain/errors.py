"""Errors that are LangChain's and agentspec's at once, so that code written for either catches them.

LangChain's own code catches `ContextOverflowError`, `ModelTimeoutError` and `OutputParserException`;
agentspec's own callers catch `AgentSpecError`. It must not know what raises them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from langchain_core import exceptions as langchain

from agentspec import errors

__all__ = [
    "InvalidConversationError",
    "InvalidRequestError",
    "InvalidSchemaError",
    "NoSuchModelError",
    "PromptTooLongError",
    "ReplyTimeoutError",
    "TooManyRequestsError",
    "UnfitReplyError",
    "translated",
]


class PromptTooLongError(errors.ContextLengthError, langchain.ContextOverflowError):
    """The prompt does not fit the context. LangChain's fallbacks catch it, and its summarising middleware
    where the summary's own prompt is too long."""


class ReplyTimeoutError(errors.DeadlineExceededError, langchain.ModelTimeoutError):
    """The reply was not done within `timeout` seconds, and was cancelled."""


class InvalidRequestError(errors.ConfigError, langchain.ModelInvalidRequestError):
    """An option or a message of a call cannot be used. LangChain's middleware does not try it again."""


class InvalidSchemaError(errors.SchemaError, langchain.ModelInvalidRequestError):
    """A schema of a call cannot be used. LangChain's middleware does not try it again."""


class InvalidConversationError(errors.TemplateError, langchain.ModelInvalidRequestError):
    """The chat template refused the conversation. LangChain's middleware does not try it again."""


class NoSuchModelError(errors.ModelNotFoundError, langchain.ModelNotFoundError):
    """There is no such model. LangChain's middleware does not try it again."""


class TooManyRequestsError(errors.QueueFullError, langchain.ModelRateLimitError):
    """Too many requests wait. LangChain's middleware tries it again later."""


class UnfitReplyError(errors.ReplyError, langchain.OutputParserException):
    """The reply was cut, or does not fit what it was held to. LangChain's retrying parsers catch it."""

    def __init__(self, message: str, *, text: str, finish_reason: str, hint: str = "") -> None:
        super().__init__(message, text=text, finish_reason=finish_reason, hint=hint)
        self.llm_output = text


_BOTH: Mapping[type[errors.AgentSpecError], type[errors.AgentSpecError]] = {
    errors.ContextLengthError: PromptTooLongError,
    errors.DeadlineExceededError: ReplyTimeoutError,
    errors.ConfigError: InvalidRequestError,
    errors.SchemaError: InvalidSchemaError,
    errors.TemplateError: InvalidConversationError,
    errors.ModelNotFoundError: NoSuchModelError,
    errors.QueueFullError: TooManyRequestsError,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raises agentspec's errors as the class above that LangChain knows, where there is one."""
    try:
        yield
    except errors.AgentSpecError as error:
        both = _BOTH.get(type(error))
        if both is None:
            raise
        known = both.__new__(both)
        known.args = error.args
        known.__dict__.update(error.__dict__)
        raise known from error
