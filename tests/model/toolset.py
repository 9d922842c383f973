"""The project's own tool-call prompts, as requests to a pair of models held by the test itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.chat.detect import detect
from agentspec.chat.template import ChatTemplate, template_source
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.history import HistoryDraft
from agentspec.drafts.lookup import LookupDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.grammar.reply import compile_reply
from agentspec.grammar.tokenizer import GrammarTokenizer, ReplyTokenizer
from agentspec.langchain.convert import recent_texts
from agentspec.llama import Model
from agentspec.types import BoundTool, Matcher, Session, SystemTurn, Turn, UserTurn

_DATA = json.loads(Path(__file__).with_name("tool_prompts.json").read_text(encoding="utf-8"))

SYSTEM: str = _DATA["system"]
TOOLS = [BoundTool(tool["name"], tool["description"], tool["parameters"]) for tool in _DATA["tools"]]
PROMPTS: list[str] = _DATA["prompts"]
MORE_PROMPTS: list[str] = _DATA["more_prompts"]


@dataclass(frozen=True)
class Reply:
    """A reply's tokens, the end token included, and its text."""

    tokens: list[int]
    text: str
    complete: bool


class Requests:
    """Makes requests for a model: prompt by its template, grammar from the tools."""

    def __init__(self, model: Model) -> None:
        self.vocab = model.vocab
        source = template_source(model.chat_template)
        self._format = detect(source)
        self._template = ChatTemplate(source, wire_format=self._format)
        self._grammar = compile_reply(
            GrammarTokenizer(model.vocab), self._format, TOOLS, "required", parallel=False
        )

    def turns(self, prompt: str) -> list[Turn]:
        """The conversation that the prompt ends."""
        return [SystemTurn(SYSTEM), UserTurn(prompt)]

    def law(self, sources: tuple[str, ...]) -> tuple[str, Matcher | None]:  # noqa: ARG002 - for others to use
        """The law of the reply, and its grammar."""
        assert self._grammar is not None
        return "enforce:canonical", self._grammar.start()

    def make(
        self,
        prompt: str,
        *,
        sources: tuple[str, ...],
        temperature: float = 0.0,
        seed: int = 0,
        max_tokens: int = 128,
        verifier: str = "block",
    ) -> Request:
        text = self._template.render(self.turns(prompt), TOOLS)
        law, matcher = self.law(sources)
        return Request(
            prompt=tuple(self.vocab.tokenize(text.encode(), special=True)),
            matcher=matcher,
            law=law,
            sampling=SamplingOptions(temperature=temperature),
            generation=GenerationOptions(max_tokens=max_tokens, seed=seed),
            draft=DraftOptions.parse({"sources": sources, "verifier": verifier, "max_model_tokens": 4}),
            tool_set="tools",
            texts=recent_texts(self.turns(prompt)),
        )


def run(core: Core, request: Request) -> Reply:
    """Generates one reply on the calling thread."""
    return run_all(core, [request])[0]


def run_all(core: Core, requests: Sequence[Request]) -> list[Reply]:
    """Generates the replies on the calling thread, as many at once as the core has slots."""
    channels = [Channel() for _ in requests]
    for request, channel in zip(requests, channels, strict=True):
        core.add(request, channel)
    while core.busy():
        core.step()
    return [_reply(Stream(channel)) for channel in channels]


def _reply(stream: Stream) -> Reply:
    steps = list(stream)
    return Reply(
        [token for step in steps for token in step.tokens],
        b"".join(step.data for step in steps).decode(),
        stream.result.complete,
    )


def every_draft(target: Model, draft_session: Session) -> list[Draft]:
    """A source of each kind, as an engine has them."""
    vocab = target.vocab
    return [
        GrammarDraft(vocab.token_bytes),
        HistoryDraft(vocab.token_bytes),
        LookupDraft(vocab.token_bytes, ReplyTokenizer(vocab).tokenize),
        ModelDraft(draft_session, n_vocab=vocab.n_tokens),
    ]
