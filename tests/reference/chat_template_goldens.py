#!/usr/bin/env python3
"""chat_template_goldens.py: renders the templates of tests/golden/chat-templates with Python's Jinja, in the environment of transformers, and
writes tests/golden/chat-templates/cases.jsonl, with which tests/unit/text/chat_template_test.cpp compares. Needs jinja2 (package
python3-jinja2). The templates are our own, in the style of published ones and harder.
"""
import json, os, pathlib, random, sys, time

from chat_conversations import conversation
from chat_environment import NOW, environment, render

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "golden" / "chat-templates"
CONVERSATIONS = {"plain": 40, "thinking": 40, "strict": 40}
FIXED = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"größe": {"type": "number"}}}}}],
    "add_generation_prompt": True,
    "tokens": {"bos": "<|first|>", "eos": "<|last|>"},
    "variables": {"given": "by the caller", "s": "aé🌍d", "l": [3, 1, 2], "w": ["b", "a", "C", "a"], "d": {"b": [1, None], "a": "x"}, "f": 2.5,
                  "reals": [0.1 + 0.2, 1.0, 1e16, 1e15, 1e-5, 0.0001, 123456789.125, 1e100, -0.0, 5e-324],
                  "r": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "x", "v": 3}]},
}


def main():
    os.environ["TZ"] = "UTC"
    time.tzset()
    env, lines, refused = environment(), [], 0
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        random_ = random.Random(path.stem)
        for _ in range(CONVERSATIONS.get(path.stem, 1)):
            case = conversation(random_) if path.stem in CONVERSATIONS else FIXED
            answer = render(env, source, case)
            if "error" in answer:
                refused += 1
                if path.stem not in CONVERSATIONS:
                    sys.exit(f"{path}: {answer['error']}")
            # Why something is refused is told in other words here and there.
            lines.append(json.dumps({"template": path.name, **case, "now": NOW} | ({"text": answer["text"]} if "text" in answer else {}), ensure_ascii=False))
    (FOLDER / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} cases, of which {refused} are refused")


if __name__ == "__main__":
    main()
