"""One completion: a prompt and options to a request, its steps to text, and an error for what does not fit.

It must not know the fields of the model, nor load models.
"""

from __future__ import annotations

import codecs
import itertools
from typing import TYPE_CHECKING

from langchain_core.outputs import Generation, GenerationChunk
from typing_extensions import override

from agentspec.chat.schema import title_of
from agentspec.engine.request import Request, Result, Step
from agentspec.errors import ConfigError
from agentspec.grammar.enforce import check_enforced, enforceable_document
from agentspec.grammar.text import Pattern, matches
from agentspec.langchain.constraint import Constraint, Document
from agentspec.langchain.convert import RECENT_CHARACTERS
from agentspec.langchain.driving import Call, digest
from agentspec.langchain.errors import UnfitReplyError
from agentspec.langchain.metadata import PROVIDER, logprob_entries, statistics_of, usage_of
from agentspec.langchain.options import CallOptions
from agentspec.types import Matcher

if TYPE_CHECKING:
    from agentspec.engine.runtime import Runtime

__all__ = ["TextCall", "prepare_completion"]


class TextCall(Call[GenerationChunk]):
    """A call of the completion model.

    matcher: of a pattern, before the first token
    """

    def __init__(
        self,
        runtime: Runtime,
        request: Request,
        constraint: Constraint | None,
        matcher: Matcher | None,
        *,
        max_resamples: int,
        trace_path: str | None,
    ) -> None:
        super().__init__(runtime, request, max_resamples=max_resamples, trace_path=trace_path)
        self._constraint = constraint
        self._matcher = matcher
        self.begin(0)

    @override
    def begin(self, resampled: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._thrown_away = resampled
        self._steps: list[Step] = []
        self._text = ""
        self._result: Result | None = None

    @override
    def take(self, step: Step) -> list[GenerationChunk]:
        self._steps.append(step)
        text = self._decoder.decode(step.data)
        self._text += text
        return [GenerationChunk(text=text)] if text else []

    @override
    def end(self, result: Result) -> list[GenerationChunk]:
        rest = self._decoder.decode(b"", final=True)
        self._text += rest
        self._result = result
        return [GenerationChunk(text=rest, generation_info=self._info(result))]

    @override
    def misfits(self) -> bool:
        return self._fault() is not None

    def generation(self) -> Generation:
        """The whole reply, after its end. Raises UnfitReplyError as `check`."""
        self.check()
        return Generation(text=self._text, generation_info=self._info(self._ended))

    def check(self) -> None:
        """After the end: raises UnfitReplyError where the reply is not what it was to be, and so is not to be
        taken for it."""
        fault = self._fault()
        if fault is not None:
            reason = self._ended.finish_reason
            hint = "raise max_tokens, or n_ctx" if reason == "length" else ""
            raise UnfitReplyError(fault, text=self._text, finish_reason=reason, hint=hint)

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def n_reply(self) -> int:
        """Tokens of the reply, after its end."""
        return self._ended.trace.tokens

    @property
    def _ended(self) -> Result:
        if self._result is None:
            raise RuntimeError("the reply has not finished")
        return self._result

    def _fault(self) -> str | None:
        constraint = self._constraint
        if constraint is None:
            return None
        reason = self._ended.finish_reason
        if reason != "stop":
            return f"the reply ended early (finish_reason {reason!r}), and is not complete"
        if isinstance(constraint, Document):
            return constraint.fault(self._text)
        if self._matcher is not None and matches(self._matcher, self._tokens()):
            return None
        return f"the reply does not match the {constraint.kind}"

    def _tokens(self) -> list[int]:
        """Those of the text: what a stop string cut off is not part of it."""
        vocab = self.runtime.vocab
        tokens = [token for step in self._steps for token in step.tokens if token not in vocab.end_ids]
        data = b"".join(step.data for step in self._steps)
        if data == b"".join(map(vocab.token_bytes, tokens)):
            return tokens
        return self.runtime.tokenize_reply(data)

    def _info(self, result: Result) -> dict[str, object]:
        info: dict[str, object] = {
            "model_provider": PROVIDER,
            "model_name": self.runtime.name,
            "finish_reason": result.finish_reason,
            "usage_metadata": usage_of(result, self.n_prompt),
            PROVIDER: statistics_of(result, self._thrown_away),
        }
        pieces = self.runtime.vocab.pieces()
        entries = [
            logprob_entries([pieces[token] for token in step.tokens], step.logprobs)
            for step in self._steps
            if step.logprobs
        ]
        if entries:
            info["logprobs"] = {"content": list(itertools.chain.from_iterable(entries))}
        return info


def prepare_completion(
    runtime: Runtime, prompt: str, options: CallOptions, constraint: Constraint | None
) -> TextCall:
    """Builds the request.

    Spellings of control tokens in the prompt are those tokens, as in llama.cpp's own completion.

    Raises ConfigError for a prompt or a pattern that cannot be used, SchemaError.
    """
    try:
        tokens = runtime.tokenize_prompt(prompt)
    except ValueError as error:
        raise ConfigError(f"the prompt cannot be tokenized: {error}") from error
    if not tokens:
        raise ConfigError("the prompt is empty", hint="this model has no token that begins a text by itself")
    whole = None
    if isinstance(constraint, Pattern):
        whole = runtime.pattern_matcher(constraint, spelling=options.law.spelling)
    law, matcher = _law(runtime, options, constraint, whole)
    request = Request(
        prompt=tokens,
        matcher=matcher,
        law=law,
        sampling=options.sampling,
        generation=options.generation,
        draft=options.draft,
        tool_set=_name_of(constraint, options.draft.agent),
        texts=(prompt[-RECENT_CHARACTERS:],),
        recorded=options.traces.recorded,
    )
    enforced = law.startswith("enforce")
    resamples = options.law.max_resamples if enforced else 0
    return TextCall(
        runtime,
        request,
        constraint,
        whole,
        max_resamples=resamples,
        trace_path=options.traces.trace_path,
    )


def _law(
    runtime: Runtime, options: CallOptions, constraint: Constraint | None, whole: Matcher | None
) -> tuple[str, Matcher | None]:
    """The law of the reply, by name, and the grammar that takes part in it. whole: that of a pattern"""
    grammar, spelling = options.law.grammar, options.law.spelling
    if constraint is None or grammar == "off":
        return "off", None
    if grammar == "propose":
        if "grammar" not in options.draft.sources:
            return grammar, None  # nobody would ask it
        if isinstance(constraint, Document):
            return grammar, runtime.schema_follower(constraint.schema)
        return grammar, runtime.pattern_follower(constraint)
    law = f"enforce:{spelling}"
    if not isinstance(constraint, Document):
        return law, whole
    if options.law.unsupported == "error":
        check_enforced(title_of(constraint.schema), enforceable_document(constraint.schema))
    return law, runtime.document_matcher(constraint.schema, spelling=spelling)


def _name_of(constraint: Constraint | None, agent: str) -> str:
    """Names what the reply is to be, and the agent it is for."""
    match constraint:
        case None:
            return digest([agent]) if agent else ""
        case Document(schema=schema):
            return digest([agent, "json_schema", schema])
        case pattern:
            return digest([agent, pattern.kind, pattern.text])
