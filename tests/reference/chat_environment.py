"""The Jinja environment in which transformers renders chat templates (5.x, utils/chat_template_utils.py), with jinja2 alone."""
import json
from datetime import datetime

import jinja2.ext
import jinja2.nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1754300000  # 4 August 2025


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the model writes, and changes nothing in the text."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.fromtimestamp(NOW).strftime(format)


def environment():
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = strftime_now
    return result


_compiled = {}


def render(env, source, case):
    """{"text": …} or {"error": …}, as the program render_chat answers."""
    if source not in _compiled:
        if len(_compiled) > 10:
            _compiled.clear()
        try:
            _compiled[source] = env.from_string(source)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
    tokens = {f"{name}_token": text for name, text in case.get("tokens", {}).items()}
    try:
        text = _compiled[source].render(messages=case.get("messages"), tools=case.get("tools"), documents=None,
                                        add_generation_prompt=case.get("add_generation_prompt", False),
                                        **{**tokens, **case.get("variables", {})})
        text.encode()
        return {"text": text}
    except Exception as error:  # whatever Python or Jinja raises is a refusal
        return {"error": f"{type(error).__name__}: {error}"}
