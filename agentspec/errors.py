"""The error tree: every error agentspec raises on purpose.

    AgentSpecError
    ├── ConfigError              an option is unknown, or its value cannot be used (also a ValueError)
    │   └── BackendError         GPU work was asked of a build without GPU support
    ├── ModelError               a model cannot be had or used
    │   ├── ModelNotFoundError   no such file or catalogue name (also a FileNotFoundError)
    │   ├── ModelFormatError     the file is not a GGUF, or it is cut short or damaged
    │   ├── UnsupportedModelError   a GGUF that cannot be decoded token by token
    │   ├── VocabMismatchError   the draft's vocabulary does not fit the target's
    │   ├── DownloadError        no source of a model file could be read
    │   └── HashMismatchError    a downloaded or local file is not the one the catalogue names
    ├── SchemaError              a tool's JSON Schema cannot be compiled; names tool, pointer, keyword
    ├── GrammarError             the grammar engine refused a grammar or a token
    ├── TemplateError            the model's chat template refused the conversation
    ├── ContextLengthError       the prompt does not fit the context
    ├── TraceError               a trace file cannot be read or written
    ├── CalibrationError         a calibration file cannot be read, written or used here
    ├── ReplyError               a text that was to fit a schema or a pattern was cut, or does not fit
    └── EngineError
        ├── DecodeError          llama.cpp refused a batch
        ├── CacheError           llama.cpp refused to remove tokens from a KV cache
        ├── QueueFullError       more requests wait than the engine takes
        ├── DeadlineExceededError   the reply was not done within its timeout
        └── EngineClosedError    the engine was closed before the reply was done

Errors of other libraries are translated at the edge of the layer that wraps them. This module knows
nothing of those libraries, and imports nothing.
"""

from __future__ import annotations

__all__ = [
    "AgentSpecError",
    "BackendError",
    "CacheError",
    "CalibrationError",
    "ConfigError",
    "ContextLengthError",
    "DeadlineExceededError",
    "DecodeError",
    "DownloadError",
    "EngineClosedError",
    "EngineError",
    "GrammarError",
    "HashMismatchError",
    "ModelError",
    "ModelFormatError",
    "ModelNotFoundError",
    "QueueFullError",
    "ReplyError",
    "SchemaError",
    "TemplateError",
    "TraceError",
    "UnsupportedModelError",
    "VocabMismatchError",
]


class AgentSpecError(Exception):
    """Base of the tree.

    `hint` says what to do about it; it is part of the message, so that a log line is enough.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class ConfigError(AgentSpecError, ValueError):
    """An option is unknown, or its value cannot be used."""


class BackendError(ConfigError):
    """GPU work was asked of a llama.cpp build that has no GPU support."""


class ModelError(AgentSpecError):
    """A model cannot be had or used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """There is no such file, or no such name in the catalogue."""


class ModelFormatError(ModelError):
    """The file is not a GGUF, or it is cut short or damaged."""


class UnsupportedModelError(ModelError):
    """The GGUF is sound, but its architecture cannot be decoded token by token."""


class VocabMismatchError(ModelError):
    """The draft's vocabulary does not fit the target's."""


class DownloadError(ModelError):
    """No source of a model file could be read; the message lists what each one answered."""


class HashMismatchError(ModelError):
    """The file's SHA-256 is not the one the catalogue names."""


class SchemaError(AgentSpecError, ValueError):
    """A tool's JSON Schema cannot be compiled.

    `tool` is the tool's name, `pointer` the JSON pointer of the part at fault ("" for the whole
    schema) and `keyword` the schema keyword, where they are known.
    """

    def __init__(
        self, message: str, *, tool: str, pointer: str = "", keyword: str = "", hint: str = ""
    ) -> None:
        super().__init__(f"tool {tool!r}: {message}", hint=hint)
        self.tool = tool
        self.pointer = pointer
        self.keyword = keyword


class GrammarError(AgentSpecError):
    """The grammar engine refused a grammar, or a token that its mask had allowed."""


class TemplateError(AgentSpecError, ValueError):
    """The model's chat template refused the conversation."""


class ContextLengthError(AgentSpecError, ValueError):
    """The prompt, with room for a reply, does not fit the context.

    `prompt_tokens` and `n_ctx` are token counts.
    """

    def __init__(self, message: str, *, prompt_tokens: int, n_ctx: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.prompt_tokens = prompt_tokens
        self.n_ctx = n_ctx


class ReplyError(AgentSpecError, ValueError):
    """A text that was to fit a schema, a regular expression or a grammar was cut, or does not fit.

    `text` is what the model wrote; `finish_reason` says how it ended.
    """

    def __init__(self, message: str, *, text: str, finish_reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.text = text
        self.finish_reason = finish_reason


class TraceError(AgentSpecError, ValueError):
    """A trace file cannot be read or written; the message names the file, and the line where there is one."""


class CalibrationError(AgentSpecError, ValueError):
    """A calibration file cannot be read or written, or is not for this target; the message names it."""


class EngineError(AgentSpecError, RuntimeError):
    """The engine could not go on with a request."""


class DecodeError(EngineError):
    """llama.cpp refused a batch; the KV cache is as it was before it."""


class CacheError(EngineError):
    """llama.cpp refused to remove tokens from a KV cache; the cache is as it was."""


class QueueFullError(EngineError):
    """More requests wait than the engine takes; this one was not begun."""


class DeadlineExceededError(EngineError):
    """The reply was not done within its timeout, and was cancelled."""


class EngineClosedError(EngineError):
    """The engine was closed before the reply was done."""
