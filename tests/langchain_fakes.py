"""A runtime without a model: it answers with replies written in advance, through the real stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, cast

from agentspec.chat.formats import HERMES
from agentspec.chat.reasoning import Reasoning
from agentspec.chat.template import BUILTIN_TEMPLATES, ChatTemplate
from agentspec.engine.request import Request, Result, Step
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import AgentSpecError, ContextLengthError
from agentspec.grammar.text import Pattern, compile_pattern, follow_pattern
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.langchain.fields import ConfiguredModel
from agentspec.langchain.llm import AgentSpecLLM
from agentspec.trace import Trace
from agentspec.types import BoundTool, FinishReason, Json, Matcher, ToolChoice, Turn

if TYPE_CHECKING:
    from agentspec.engine.runtime import Runtime


@dataclass(frozen=True)
class Reply:
    """What the model writes. `cut` bytes a step, so that characters and marks are split as in life."""

    text: str
    finish_reason: FinishReason = "stop"
    complete: bool = True
    cut: int = 3


def call_text(name: str, arguments: str) -> str:
    """A call as the Hermes family writes it; `arguments` is JSON, or what is there of it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Bytes:
    """A vocabulary of one token a byte."""

    n_tokens = 257
    end_ids = frozenset({256})

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def pieces(self) -> Sequence[bytes]:
        return [*(bytes([token]) for token in range(256)), b"<end>"]

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:  # noqa: ARG002 - it has no special ones
        return list(text)

    def is_special(self, token: int) -> bool:
        return token in self.end_ids

    def special_id(self, spelling: str) -> int | None:  # noqa: ARG002
        return None


@cache
def _bytes_of_grammars() -> GrammarTokenizer:
    return GrammarTokenizer(Bytes())


@dataclass
class FakeEngine:
    """Answers each request with the next reply; a reply of None is left for the test to write, or fails with
    `failure`."""

    n_ctx: int
    replies: list[Reply | None]
    requests: list[Request] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    failure: AgentSpecError | None = None

    def submit(self, request: Request) -> Stream:
        if len(request.prompt) >= self.n_ctx:
            raise ContextLengthError("too long", prompt_tokens=len(request.prompt), n_ctx=self.n_ctx)
        self.requests.append(request)
        channel = Channel()
        self.channels.append(channel)
        reply = self.replies.pop(0)
        if reply is not None:
            data = reply.text.encode()
            for start in range(0, len(data), reply.cut):
                piece = data[start : start + reply.cut]
                wanted = request.generation.logprobs
                channel.put(Step(tuple(piece), piece, (-0.5,) * len(piece) if wanted else ()))
            channel.finish(result(reply, request))
        elif self.failure is not None:
            channel.fail(self.failure)
        return Stream(channel)

    def close(self) -> None:
        pass


def result(reply: Reply, request: Request) -> Result:
    trace = Trace(law=request.law, tokens=len(reply.text.encode()), target_passes=2, prefill_reused=5)
    trace.add_seconds("target", 0.25)
    return Result(reply.finish_reason, reply.complete, trace)


class FakeRuntime:
    """Stands where `agentspec.engine.runtime.Runtime` does. It records which grammars were asked for."""

    def __init__(
        self, *replies: Reply | str | None, n_ctx: int = 100_000, chat_template: str | None = None
    ) -> None:
        self.name = "fake-model"
        self.n_ctx = n_ctx
        self.add_bos = False
        self.shown: frozenset[int] = frozenset()
        self.vocab = Bytes()
        self.format = HERMES
        self.template = ChatTemplate(chat_template or BUILTIN_TEMPLATES["chatml"], wire_format=HERMES)
        self.engine = FakeEngine(
            n_ctx, [Reply(reply) if isinstance(reply, str) else reply for reply in replies]
        )
        self.asked: list[tuple[tuple[str, ...], ToolChoice, bool]] = []
        self.answers: list[Mapping[str, Json] | None] = []  # that replies may be instead of calls
        self.schemas: list[Mapping[str, Json]] = []
        self.matcher: Matcher | None = None  # says that a grammar is enforced; replies are what they are

    def render(self, turns: Sequence[Turn], tools: Sequence[BoundTool]) -> str:
        return self.template.render(turns, tools)

    def tokenize_prompt(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def stable_prefix(
        self,
        turns: Sequence[Turn],  # noqa: ARG002 - the contract's
        tools: Sequence[BoundTool],  # noqa: ARG002
        prompt: Sequence[int],  # noqa: ARG002
    ) -> int:
        return 0

    def reply_matcher(
        self,
        tools: Sequence[BoundTool],
        choice: ToolChoice,
        *,
        spelling: str,  # noqa: ARG002 - the contract's
        parallel: bool,
        reasoning: Reasoning,  # noqa: ARG002
        answer: Mapping[str, Json] | None,
    ) -> Matcher | None:
        self.asked.append((tuple(tool.name for tool in tools), choice, parallel))
        self.answers.append(answer)
        return self.matcher

    def schema_matcher(
        self,
        schema: Mapping[str, Json],
        *,
        spelling: str,  # noqa: ARG002 - the contract's
        reasoning: Reasoning,  # noqa: ARG002
    ) -> Matcher | None:
        self.schemas.append(schema)
        return self.matcher

    def document_matcher(
        self,
        schema: Mapping[str, Json],
        *,
        spelling: str,  # noqa: ARG002
    ) -> Matcher | None:
        self.schemas.append(schema)
        return self.matcher

    def pattern_matcher(self, pattern: Pattern, *, spelling: str) -> Matcher:
        return compile_pattern(_bytes_of_grammars(), pattern, spelling=spelling).start()

    def pattern_follower(self, pattern: Pattern) -> Matcher:
        return follow_pattern(_bytes_of_grammars(), pattern, end=256).start()

    def tokenize_reply(self, data: bytes) -> list[int]:
        return list(data)

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return bytes(self.engine.requests[-1].prompt).decode()

    def close(self) -> None:
        pass


def fake_model(
    *replies: Reply | str | None, n_ctx: int = 100_000, chat_template: str | None = None, **options: object
) -> ChatAgentSpec:
    """A chat model that gives these replies, one a call."""
    runtime = FakeRuntime(*replies, n_ctx=n_ctx, chat_template=chat_template)
    return ChatAgentSpec.from_runtime(cast("Runtime", runtime), **options)


def fake_llm(*replies: Reply | str | None, n_ctx: int = 100_000, **options: object) -> AgentSpecLLM:
    """A completion model that gives these replies, one a prompt."""
    return AgentSpecLLM.from_runtime(cast("Runtime", FakeRuntime(*replies, n_ctx=n_ctx)), **options)


def runtime_of(model: ConfiguredModel) -> FakeRuntime:
    """The fake behind a model."""
    return cast(FakeRuntime, model._runtimes.given)
