"""LFM2's tokens of tool calls for the trained model of the tests, which has none."""

import json

BEGIN_CALLS, END_CALLS = "<|tool_call_start|>", "<|tool_call_end|>"
TEMPLATE = (
    "{{ bos_token }}{% if tools %}Tools.\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def add_tool_tokens(folder):
    """The last two tokens of the folder's tokenizer begin and end calls afterwards, and its template shows that there are tools."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, last = tokenizer["model"]["vocab"], max(tokenizer["model"]["vocab"].values())
    for number, text in ((last - 1, BEGIN_CALLS), (last, END_CALLS)):
        old = next(one for one, own in vocab.items() if own == number)
        del vocab[old]
        tokenizer["model"]["merges"] = [merge for merge in tokenizer["model"]["merges"] if "".join(merge) != old]
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": number, "content": text})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
