"""DeepSeek: R1 (and V3, and the distilled models), V3.1, and V3.2 with its own markup."""

from __future__ import annotations

from agentspec.chat.formats.base import Tags, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["DEEPSEEK_R1", "DEEPSEEK_V31", "DEEPSEEK_V32"]

DEEPSEEK_R1 = explained(
    WireFormat(
        name="deepseek-r1",
        opening="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        end="\n```<｜tool▁call▁end｜>",
        between="\n",
        closing="<｜tool▁calls▁end｜>",
        marker="<｜tool▁calls▁begin｜>",
        after_name=("\n```json\n",),
        bare_objects=False,
    )
)

DEEPSEEK_V31 = explained(
    WireFormat(
        name="deepseek-v3.1",
        opening="<｜tool▁calls▁begin｜>",
        begin="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        between="",
        closing="<｜tool▁calls▁end｜>",
        marker="<｜tool▁calls▁begin｜>",
        after_name=("<｜tool▁sep｜>",),
        bare_objects=False,
    )
)

DEEPSEEK_V32 = explained(
    WireFormat(
        name="deepseek-v3.2",
        opening="<｜DSML｜function_calls>",
        begin='\n<｜DSML｜invoke name="',
        end="",
        between="",
        closing="\n</｜DSML｜function_calls>",
        marker="<｜DSML｜function_calls>",
        after_name=('">',),
        tags=Tags(
            begin='\n<｜DSML｜parameter name="',
            after_key='" string="true">',
            end="</｜DSML｜parameter>",
            close="\n</｜DSML｜invoke>",
            after_json_key='" string="false">',
        ),
        bare_objects=False,
    )
)
