"""A model that is loaded: its engine, its prompts, and the grammars compiled for it.

It must not know messages or LangChain, nor how models are loaded (`agentspec.engine.loading`).
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from agentspec.calibration.traces import ReplyTrace, recorded
from agentspec.chat.formats import WireFormat, special_names
from agentspec.chat.literal import BREAK, LiteralText
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning
from agentspec.chat.template import ChatTemplate
from agentspec.engine.engine import Engine
from agentspec.engine.request import Request, Result
from agentspec.errors import TemplateError
from agentspec.grammar.matcher import Grammar
from agentspec.grammar.reply import compile_json, compile_reply, follow_json, follow_reply
from agentspec.grammar.text import Pattern, compile_pattern, follow_pattern
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.prefix import common_prefix
from agentspec.types import (
    BoundTool,
    Json,
    Matcher,
    SystemTurn,
    ToolChoice,
    Turn,
    UserTurn,
    Vocabulary,
)

__all__ = ["Runtime"]

G = TypeVar("G")

_GRAMMARS_KEPT = 64

_OTHER_WORDS = "\N{REFERENCE MARK}"
"""What a user says whose words begin like nobody else's."""


class Runtime:
    """An engine, its target's vocabulary and template, and the grammars compiled for it.

    template: the error that a chat is answered with where the model has none that works: completions go on
    """

    def __init__(
        self,
        *,
        name: str,
        engine: Engine,
        vocab: Vocabulary,
        template: ChatTemplate | TemplateError,
        wire_format: WireFormat | None,
        n_ctx: int,
        bos_id: int | None = None,
        turn_end_id: int | None = None,
        draft: str | None = None,
        fingerprint: str = "",
    ) -> None:
        self.name = name
        self._draft_name = draft
        self._fingerprint = fingerprint  # of the vocabulary
        self.engine = engine
        self.vocab = vocab
        self.n_ctx = n_ctx
        self.shown = frozenset() if isinstance(template, TemplateError) else _control_tokens(vocab, template)
        self._template = template
        self._format = wire_format
        self._bos_id = bos_id
        self._turn_end_id = turn_end_id
        self._grammars: OrderedDict[str, object] = OrderedDict()
        self._heads: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # prompts that end in other words
        self._tokenizer: GrammarTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def template(self) -> ChatTemplate:
        """How messages become a prompt. Raises TemplateError where the model cannot chat."""
        if isinstance(self._template, TemplateError):
            raise TemplateError(self._template.message, hint=self._template.hint) from self._template
        return self._template

    @property
    def format(self) -> WireFormat:
        """How calls are written. Raises TemplateError as `template`."""
        return self.template.wire_format if self._format is None else self._format

    @property
    def add_bos(self) -> bool:
        """Whether a prompt begins with the model's BOS token."""
        return self._bos_id is not None

    def render(self, turns: Sequence[Turn], tools: Sequence[BoundTool]) -> str:
        """The prompt of a conversation, for `tokenize_prompt`. Control tokens in it are the template's own:
        text of the conversation that spells one stays text. Raises TemplateError as `ChatTemplate.render`."""
        literal = self._literal_text
        return self.template.render([*map(literal.turn, turns)], [*map(literal.tool, tools)])

    @functools.cached_property
    def _literal_text(self) -> LiteralText:
        pieces, vocab = self.vocab.pieces(), self.vocab
        control = (i for i in range(len(pieces)) if not vocab.token_bytes(i) and vocab.is_special(i))
        return LiteralText({pieces[token].decode(errors="replace") for token in control})

    def tokenize_prompt(self, text: str) -> tuple[int, ...]:
        """A rendered prompt's token ids, with BOS where the model wants one and the text has none."""
        parts = text.split(BREAK)  # tokenized apart, they spell no control token
        tokens = [token for part in parts for token in self.vocab.tokenize(part.encode(), special=True)]
        if self._bos_id is not None and tokens[:1] != [self._bos_id]:
            tokens.insert(0, self._bos_id)
        return tuple(tokens)

    def tokenize_reply(self, data: bytes) -> list[int]:
        """Token ids of text as it is within a reply, without special tokens."""
        with self._lock:
            tokenizer = self._grammar_tokenizer()
        return tokenizer.tokenize(data)

    def stable_prefix(self, turns: Sequence[Turn], tools: Sequence[BoundTool], prompt: Sequence[int]) -> int:
        """How many of a prompt's first tokens other conversations with the same instructions and tools begin
        with too; 0 where it has neither.

        turns: those the prompt was made of
        """
        head = list(itertools.takewhile(lambda turn: isinstance(turn, SystemTurn), turns))
        if not head and not tools:
            return 0
        key = repr((head, [(tool.name, tool.description, tool.parameters) for tool in tools]))
        with self._lock:
            other = self._heads.get(key)
        if other is None:
            try:
                text = self.render([*head, UserTurn(_OTHER_WORDS)], tools)
            except TemplateError:
                other = ()  # it has no room for a conversation of one turn
            else:
                other = self.tokenize_prompt(text)
            with self._lock:
                self._heads[key] = other
                while len(self._heads) > _GRAMMARS_KEPT:
                    self._heads.popitem(last=False)
        return common_prefix(other, prompt)

    def reply_matcher(
        self,
        tools: Sequence[BoundTool],
        choice: ToolChoice,
        *,
        spelling: str,
        parallel: bool,
        reasoning: Reasoning = NO_THOUGHT,
        answer: Mapping[str, Json] | None = None,
    ) -> Matcher | None:
        """A matcher that binds a whole reply; None where every text is legal.

        answer: the schema of the document that a reply without calls has to be

        Raises SchemaError naming the tool whose schema cannot be enforced.
        """
        return self._start_any(
            ["reply", _shown(tools), repr(choice), parallel, spelling, reasoning.opening, answer],
            lambda tokenizer: compile_reply(
                tokenizer,
                self.format,
                tools,
                choice,
                spelling=spelling,
                parallel=parallel,
                reasoning=reasoning,
                answer=answer,
            ),
        )

    def reply_follower(
        self,
        tools: Sequence[BoundTool],
        choice: ToolChoice,
        *,
        parallel: bool,
        reasoning: Reasoning = NO_THOUGHT,
        answer: Mapping[str, Json] | None = None,
    ) -> Matcher | None:
        """A matcher that goes along with a reply and only proposes. None, and raises, as `reply_matcher`."""
        return self._start_any(
            ["follow reply", _shown(tools), repr(choice), parallel, reasoning.opening, answer],
            lambda tokenizer: follow_reply(
                tokenizer,
                self.format,
                tools,
                choice,
                end=self._turn_end_id,
                parallel=parallel,
                reasoning=reasoning,
                answer=answer,
            ),
        )

    def schema_matcher(
        self, schema: Mapping[str, Json], *, spelling: str, reasoning: Reasoning = NO_THOUGHT
    ) -> Matcher:
        """A matcher for a reply that is one JSON document fitting the schema. Raises SchemaError."""
        return self._start(
            ["schema", schema, spelling, reasoning.opening],
            lambda tokenizer: compile_json(
                tokenizer, schema, spelling=spelling, reasoning=reasoning, channels=self.format.channels
            ),
        )

    def schema_follower(self, schema: Mapping[str, Json], *, reasoning: Reasoning = NO_THOUGHT) -> Matcher:
        """A matcher that goes along with such a reply and only proposes. Raises SchemaError."""
        return self._start(
            ["follow schema", schema, reasoning.opening],
            lambda tokenizer: follow_json(tokenizer, schema, end=self._turn_end_id, reasoning=reasoning),
        )

    def document_matcher(self, schema: Mapping[str, Json], *, spelling: str) -> Matcher:
        """As `schema_matcher`, for a completion, which has no reasoning and no channels."""
        return self._start(
            ["document", schema, spelling],
            lambda tokenizer: compile_json(tokenizer, schema, spelling=spelling),
        )

    def pattern_matcher(self, pattern: Pattern, *, spelling: str) -> Matcher:
        """A matcher for a reply that matches a pattern. Raises ConfigError for one that is not sound."""
        return self._start(
            [pattern.kind, pattern.text, spelling],
            lambda tokenizer: compile_pattern(tokenizer, pattern, spelling=spelling),
        )

    def pattern_follower(self, pattern: Pattern) -> Matcher:
        """A matcher that goes along with such a reply and only proposes. Raises ConfigError likewise."""
        return self._start(
            ["follow", pattern.kind, pattern.text],
            lambda tokenizer: follow_pattern(tokenizer, pattern, end=self._turn_end_id),
        )

    def trace_of(self, request: Request, result: Result) -> ReplyTrace:
        """What a trace file holds of a reply that was recorded."""
        assert result.recording is not None
        return ReplyTrace(
            model=self.name,
            draft=self._draft_name,
            vocab=self._fingerprint,
            law=request.law,
            sampling=request.sampling.model_dump(mode="json", exclude_defaults=True),
            draft_temperature=request.draft.draft_temperature,
            tool_set=request.tool_set,
            agent=request.draft.agent,
            prompt=list(request.prompt),
            finish_reason=result.finish_reason,
            **recorded(result.recording),
        )

    def close(self) -> None:
        """Ends the engine and frees both models. Replies under way fail with EngineClosedError."""
        self.engine.close()

    def _start(self, key: Sequence[Json], compiled: Callable[[GrammarTokenizer], Grammar]) -> Matcher:
        """A matcher of the grammar that is kept under `key`, or of the one compiled now."""
        return self._kept(key, compiled).start()

    def _start_any(
        self, key: Sequence[Json], compiled: Callable[[GrammarTokenizer], Grammar | None]
    ) -> Matcher | None:
        """As `_start`; None where there is nothing to match."""
        grammar = self._kept(key, compiled)
        return None if grammar is None else grammar.start()

    def _kept(self, key: Sequence[Json], compiled: Callable[[GrammarTokenizer], G]) -> G:
        name = json.dumps(key)
        with self._lock:
            if name not in self._grammars:
                self._grammars[name] = compiled(self._grammar_tokenizer())
                while len(self._grammars) > _GRAMMARS_KEPT:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(name)
            return cast(G, self._grammars[name])  # a key says which of the methods above it is of

    def _grammar_tokenizer(self) -> GrammarTokenizer:
        if self._tokenizer is None:
            self._tokenizer = GrammarTokenizer(self.vocab)
        return self._tokenizer


def _shown(tools: Sequence[BoundTool]) -> list[Json]:
    """What a grammar depends on in tools."""
    return [{"name": tool.name, "parameters": tool.parameters} for tool in tools]


def _control_tokens(vocab: Vocabulary, template: ChatTemplate) -> frozenset[int]:
    """Those that mark calls and reasoning: what parses a reply looks for their spelling."""
    texts = template.wire_format.texts
    if template.marks is not None:
        texts = (*texts, template.marks.begin, template.marks.end)
    found = {vocab.special_id(name) for text in texts for name in special_names(text)}
    return frozenset(token for token in found if token is not None and token not in vocab.end_ids)
