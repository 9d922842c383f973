"""Chat templates of two kinds of families: calls as an array of objects, and arguments in tags."""

from __future__ import annotations

ARRAY = """
{%- for m in messages %}
{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]
{%- elif m.role == 'system' %}[SYS]{{ m.content }}[/SYS]
{%- elif m.tool_calls %}[TOOL_CALLS][
{%- for c in m.tool_calls %}
{%- if c.id|length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif -%}
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}, "id": "{{ c.id }}"}
{{- ', ' if not loop.last }}
{%- endfor %}]</s>
{%- else %}{{ m.content }}</s>
{%- endif %}
{%- endfor %}"""

XML = """
{%- if tools %}<tools>{{ tools|tojson }}</tools>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.tool_calls %}{{ m.content }}
{%- for c in m.tool_calls %}
{{- '<tool>\n<function=' + c.function.name + '>' }}
{%- for k, v in c.function.arguments.items() %}
{{- '\n<parameter=' + k + '>\n' + (v if v is string else v|tojson) + '\n</parameter>' }}
{%- endfor %}
{{- '\n</function>\n</tool>' }}
{%- endfor %}
{%- else %}{{ m.content }}
{%- endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
