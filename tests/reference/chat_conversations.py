"""Random conversations for the comparisons of chat templates: system messages, tools, tool calls, thinking, arrays of parts, unicode, empty
texts, and now and then what no template expects."""
import json

WORDS = ["", " ", "\n", "Hello", "é ñ 你好 🌍", "a'b", 'say "hi"', "<think>", "</think>", "<|im_end|>", "{{ x }}", "{% if %}", "back\\slash", "tab\there",
         "two\n\nlines\n", "  padded  ", "\u200b", "\u00a0", "ß ﬁ Σς İ", "\x1f", "\x7f", "&<>'\"", "1234567", "null", "\u2028", "ÀÉ", "%s %d", "x" * 40]
NAMES = ["get_weather", "f", "search", "größe", "browser", "code_interpreter", "a.b", ""]
TYPES = ["string", "integer", "number", "boolean", "array", "object", "null"]


def text(random):
    return "".join(random.choice(WORDS) for _ in range(random.choice([0, 1, 1, 2, 3, 5])))


def scalar(random):
    return random.choice([text(random), text(random), random.randint(-10, 10 ** 6), random.random() * 10 ** random.randint(-8, 20), 0.1, 1.0, -0.0, 1e16,
                          1e-5, 2 ** 63, True, False, None])


def value(random, depth=3):
    kind = random.random()
    if depth == 0 or kind < 0.6:
        return scalar(random)
    if kind < 0.8:
        return [value(random, depth - 1) for _ in range(random.randint(0, 3))]
    return {random.choice(NAMES + WORDS[3:6]): value(random, depth - 1) for _ in range(random.randint(0, 3))}


def schema(random, depth=2):
    kind = random.choice(TYPES if depth else TYPES[:4])
    result = {"type": random.choice([kind, kind, kind, [kind, "null"]])}
    if random.random() < 0.7:
        result["description"] = text(random)
    if random.random() < 0.2:
        result["enum"] = [scalar(random) for _ in range(random.randint(1, 3))]
    if random.random() < 0.2:
        result["default"] = value(random, 1)
    if random.random() < 0.1:
        result["nullable"] = True
    if kind == "array" and random.random() < 0.9:
        result["items"] = schema(random, depth - 1) if depth else {"type": "string"}
    if kind == "object":
        result["properties"] = {random.choice(NAMES) or "p": schema(random, depth - 1) for _ in range(random.randint(0, 2))}
        if random.random() < 0.5:
            result["required"] = list(result["properties"])[:1]
    return result


def tool(random):
    function = {"name": random.choice(NAMES), "description": text(random)}
    if random.random() < 0.9:
        function["parameters"] = {"type": "object", "properties": {random.choice(NAMES) or "x": schema(random) for _ in range(random.randint(0, 3))}}
        if random.random() < 0.7:
            function["parameters"]["required"] = list(function["parameters"]["properties"])[:1]
    if random.random() < 0.1:
        function["return"] = schema(random, 1)
    kind = random.random()
    return {"type": "function", "function": function} if kind < 0.8 else function if kind < 0.95 else text(random)


def arguments(random):
    return {random.choice(NAMES) or "a": value(random) for _ in range(random.randint(0, 3))}


def tool_call(random, number):
    given = arguments(random)
    function = {"name": random.choice(NAMES), "arguments": given if random.random() < 0.8 else json.dumps(given)}
    call = {"type": "function", "function": function}
    if random.random() < 0.7:
        call["id"] = random.choice(["", "call_", "functions.f:"]) + str(number).rjust(9, "0")
    return call if random.random() < 0.95 else function


def content(random):
    kind = random.random()
    if kind < 0.7:
        return text(random)
    if kind < 0.9:
        parts = []
        for _ in range(random.randint(0, 3)):
            part = random.choice([{"type": "text", "text": text(random)}, {"type": "text", "text": text(random)}, {"type": "image"},
                                  {"type": "image_url", "image_url": {"url": "x"}}, {"type": "odd", "value": value(random, 1)}])
            parts.append(part)
        return parts
    return None if kind < 0.95 else value(random, 2)


def assistant(random, number):
    message = {"role": "assistant"}
    if random.random() < 0.9:
        message["content"] = content(random)
        if isinstance(message["content"], str) and random.random() < 0.3:
            message["content"] = f"<think>{text(random)}</think>{message['content']}"
    for key in ("thinking", "reasoning_content", "reasoning"):
        if random.random() < 0.15:
            message[key] = text(random)
    if random.random() < 0.3:
        message["tool_calls"] = [tool_call(random, number + i) for i in range(random.randint(0, 3))]
    return message


def messages(random):
    result = []
    if random.random() < 0.5:
        result.append({"role": random.choice(["system", "system", "system", "developer"]), "content": content(random)})
    tidy = random.random() < 0.7  # user and assistant in turn, as most templates demand
    for number in range(random.choice([0, 1, 1, 2, 3, 5]) if tidy else random.randint(0, 5)):
        if tidy or random.random() < 0.5:
            result.append({"role": "user", "content": content(random)})
        if random.random() < 0.8 or not tidy:
            result.append(assistant(random, 10 * number))
            for call in result[-1].get("tool_calls", []):
                if random.random() < 0.8:
                    answer = {"role": "tool", "content": content(random), "name": random.choice(NAMES)}
                    if "id" in call:
                        answer["tool_call_id"] = call["id"]
                    result.append(answer)
    if random.random() < 0.03:
        result.append({"role": random.choice(["critic", "", "ipython"]), "content": text(random)})
    if random.random() < 0.6 or not result:
        result.append({"role": "user", "content": content(random) if random.random() < 0.3 else text(random) or "Hi"})
    return result


def conversation(random):
    variables = {}
    for name in ("enable_thinking", "preserve_thinking", "keep_past_thinking", "thinking", "add_vision_id"):
        if random.random() < 0.2:
            variables[name] = random.choice([True, False])
    if random.random() < 0.5:  # what some templates of others want
        variables |= {"functions": json.dumps([tool(random)]), "datetime": "2025-08-04"}
    tokens = {"bos": "<|startoftext|>", "eos": "<|im_end|>"}
    if random.random() < 0.5:
        tokens["pad"] = "<|pad|>"
    return {"messages": messages(random), "tools": [tool(random) for _ in range(random.randint(0, 3))] if random.random() < 0.5 else None,
            "add_generation_prompt": random.random() < 0.5, "variables": variables, "tokens": tokens}
