"""What LangChain wraps around the chat model, where its own wrapping loses something.

`RunnableBinding` forwards `bind_tools` and `with_structured_output` to the bare model, without what was
bound before: `model.bind(seed=1).bind_tools(tools)` has no seed. And a model whose fields are configured per
call is made anew for each, which would load its weights anew. It must not know messages or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.configurable import RunnableConfigurableFields
from langchain_core.tools import BaseTool
from typing_extensions import override

from agentspec.errors import ConfigError
from agentspec.langchain.fields import ConfiguredModel
from agentspec.langchain.options import CALL_OPTIONS, only

if TYPE_CHECKING:  # LangChain's own, which says more about types and does the same
    from langchain_core.language_models.chat_models import _ChatModelBinding as _Binding

    _Fields = RunnableConfigurableFields[LanguageModelInput, AIMessage]
else:
    _Binding = RunnableBinding[LanguageModelInput, AIMessage]
    _Fields = RunnableConfigurableFields  # with types filled in, pydantic would make its model anew

__all__ = ["BoundChatModel", "ConfigurableChatModel"]

_OF_TOOLS = frozenset({"tools", "tool_choice"})


class BoundChatModel(_Binding):  # type: ignore[no-redef]  # LangChain has a field named kwargs
    """A chat model with arguments bound, which keeps them when more is asked of it."""

    @classmethod
    @override
    def lc_id(cls) -> list[str]:
        return RunnableBinding.lc_id()  # what tracers and dumps know it as

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """As the model's own. Tools bound before, and the choice among them, are replaced."""
        bound = cast(BoundChatModel, self._model().bind_tools(tools, **kwargs))
        kept = {name: value for name, value in self.kwargs.items() if name not in _OF_TOOLS}
        return self.model_copy(update={"kwargs": {**kept, **bound.kwargs}})

    def with_structured_output(
        self, schema: dict[str, Any] | type, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """As the model's own. Raises ConfigError where tools are bound: the reply is the object alone."""
        if self.kwargs.get("tools"):
            raise ConfigError(
                "with_structured_output on a model with tools: its reply is the object, and never calls one",
                hint="leave bind_tools out, or use create_agent(model, tools, response_format=...)",
            )
        options = only(self.kwargs, CALL_OPTIONS | {"model"})
        made = self._model().with_structured_output(schema, **{**options, **kwargs})
        return made.with_config(self.config) if self.config else made

    def _model(self) -> BaseChatModel:
        return cast(BaseChatModel, self.bound)


class ConfigurableChatModel(_Fields):
    """A chat model whose fields are settled per call, on the models that it has loaded."""

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """As the model's own, and its fields are still settled per call."""
        bound = cast(BoundChatModel, cast(BaseChatModel, self.default).bind_tools(tools, **kwargs))
        return self.bind(**bound.kwargs)

    @override
    def _prepare(
        self, config: RunnableConfig | None = None
    ) -> tuple[Runnable[LanguageModelInput, AIMessage], RunnableConfig]:
        made, config = super()._prepare(config)
        model: object = made
        if isinstance(model, ConfiguredModel):
            model.share_runtimes(cast(ConfiguredModel, self.default))
        return made, config
