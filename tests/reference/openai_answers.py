#!/usr/bin/env python3
"""openai_answers.py LFM2_STAGE WEIGHTS_TOOLS [MPIRUN]: answers of a batch against the types of the `openai` package.

Makes a small random model with tests/golden/text/tokenizer.json, runs a batch of every kind of line on two ranks, and
validates every line of the output: bodies by ChatCompletion and Completion, in pydantic's strict mode, with every key
that the types do not name refused. So for a file of embeddings lines, by CreateEmbeddingResponse; its type of an embedding
is a list of numbers, which the package makes of base64 itself. Needs the package (the types of 3.54.0 were used):

    python3 -m venv /tmp/openai && /tmp/openai/bin/pip install openai==3.54.0
    /tmp/openai/bin/python tests/reference/openai_answers.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import array
import base64
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import pydantic
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
import openai

CONFIG = {"model_type": "lfm2", "vocab_size": 1280, "hidden_size": 32, "num_hidden_layers": 4,
          "layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_attention_heads": 2,
          "num_key_value_heads": 1, "intermediate_size": 48, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3,
          "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
          "eos_token_id": 4, "initializer_range": 0.2, "tie_word_embeddings": True}
TEMPLATE = ("{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
            "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n")
TOKENIZER = pathlib.Path(__file__).parents[1] / "golden/text/tokenizer.json"
SPECIAL = {token["content"] for token in json.loads(TOKENIZER.read_text())["added_tokens"] if token["special"]}


def batch_lines():
    """Lines as (custom_id, chat, body, whether an error is expected); more tokens than texts, so that some are torn."""
    hi = [{"role": "user", "content": "hi"}]
    for i in range(60):
        fields = {"seed": i, "temperature": 3.0, "max_tokens": 1 + i, "model": "any", "stream": False, "n": 1}
        yield f"chat-{i}", True, {"messages": hi, **fields, **({"logprobs": True, "top_logprobs": i % 21} if i % 2 else {})}, False
        yield f"text-{i}", False, {"prompt": f"Once {i}", **fields, **({"logprobs": i % 6} if i % 2 else {})}, False
        yield f"ids-{i}", False, {"prompt": [1, i], **fields, "logprobs": 5}, False
    for i in range(20):  # several draws, and texts that end before others, which may lie within a token or across two
        fields = {"seed": i, "temperature": 2.0, "max_tokens": 40, "n": 1 + i % 5, "stop": ["e", "in", "é"][: 1 + i % 3] if i % 4 else "a"}
        yield f"chat-draws-{i}", True, {"messages": hi, **fields, **({"logprobs": True, "top_logprobs": 2} if i % 2 else {})}, False
        yield f"text-draws-{i}", False, {"prompt": f"Once {i}", **fields, **({"logprobs": 3} if i % 2 else {})}, False
        yield f"text-first-{i}", False, {"prompt": f"Once {i}", **{**fields, "n": 1}}, False  # the first of those in front of it
    yield "stops", True, {"messages": hi, "stop_token_ids": list(range(1280)), "logprobs": True}, False
    yield "é\n\"", False, {"prompt": "日本", "logprobs": 0}, False
    yield "bad-1", True, {"messages": []}, True
    yield "bad-2", False, {"prompt": "x", "stream": True}, True
    yield "bad-3", True, {"messages": hi, "max_tokens": 0}, True


def strict_copy(model, made=None):
    """The model with unknown keys refused, and so are all models in its fields."""
    made = {} if made is None else made
    if model in made:
        return made[model]

    def strict_type(kind):
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            return strict_copy(kind, made)
        arguments = getattr(kind, "__args__", None)
        if not arguments or getattr(kind, "__origin__", None) is None or str(kind).startswith("typing.Literal"):
            return kind
        return kind.copy_with(tuple(strict_type(a) for a in arguments)) if hasattr(kind, "copy_with") else kind

    fields = {name: (strict_type(field.annotation), pydantic.Field(default=field.default) if not field.is_required() else ...)
              for name, field in model.model_fields.items()}
    made[model] = pydantic.create_model(model.__name__, __config__=pydantic.ConfigDict(extra="forbid", strict=True), **fields)
    return made[model]


def run_batch(folder, stage, tools, mpirun):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    subprocess.run([tools, "synth", "--config", folder / "config.json", "--dtype", "fp32", "--out", folder / "model", "-q"], check=True)
    (folder / "model/tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (folder / "model/tokenizer_config.json").write_text('{"bos_token": "<|startoftext|>"}')
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    subprocess.run([tools, "split", folder / "model", "--stages", "2", "--out", folder / "shards", "-q"], check=True)
    return run_lines(folder, stage, mpirun, [(name, "/v1/chat/completions" if chat else "/v1/completions", body) for name, chat, body, _ in batch_lines()])


def run_lines(folder, stage, mpirun, lines):
    with open(folder / "in.jsonl", "w") as file:
        for name, url, body in lines:
            file.write(json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}) + "\n")
        file.write("not JSON\n")
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    subprocess.run([mpirun, "--oversubscribe", "-np", "2", stage, "--weights", folder / "shards", "--device", "cpu", "--quiet", "--input",
                    folder / "in.jsonl", "--output", folder / "out.jsonl"], check=True, env=environment)
    return [json.loads(line, object_pairs_hook=without_twins) for line in open(folder / "out.jsonl", encoding="utf-8")]


def without_twins(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), f"a key stands twice: {pairs}"
    return dict(pairs)


def check_choice(line, choice, request):
    """Returns the number of tokens, where the choice says it."""
    is_chat = hasattr(choice, "message")
    answer = choice.message.content if is_chat else choice.text
    stops = request.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    assert not any(stop in answer for stop in stops), line
    if choice.logprobs is None:
        assert "logprobs" not in request, line
        return None
    if is_chat:
        content = choice.logprobs.content
        assert all(len(token.top_logprobs) == request.get("top_logprobs", 0) for token in content), line
        text = b"".join(bytes(t.bytes) for t in content if t.token not in SPECIAL).decode("utf-8", "replace")
        ends = [at for at in map(text.find, stops) if at >= 0]
        assert answer == text[: min(ends, default=len(text))], (text, line)
        return len(content)
    probs = choice.logprobs
    assert len(probs.tokens) == len(probs.token_logprobs) == len(probs.text_offset) == len(probs.top_logprobs), line
    assert all(len(row) <= request["logprobs"] for row in probs.top_logprobs), line
    for token, offset in zip(probs.tokens, probs.text_offset):
        plain = token not in SPECIAL and not token.startswith(("bytes:", "token_id:"))
        rest = answer[offset:]  # of a token at the end of the text a part, or nothing, may stand before a stop text
        assert not plain or rest.startswith(token) or (stops and choice.finish_reason == "stop" and token.startswith(rest)), (token, offset, line)
    return len(probs.tokens)


def check_choices(line, body, request):
    assert [choice.index for choice in body.choices] == list(range(request.get("n", 1))), line
    tokens = [check_choice(line, choice, request) for choice in body.choices]
    assert None in tokens or sum(tokens) == body.usage.completion_tokens, line


def embeddings_lines():
    """Bodies with the number of their inputs; 0: an error is expected."""
    yield {"input": "Once", "model": "any", "user": "me"}, 1
    yield {"input": ["Once", "日本", "twice"], "model": "any", "encoding_format": "float"}, 3
    yield {"input": [1, 2, 3], "model": "any", "dimensions": CONFIG["hidden_size"]}, 1
    yield {"input": [[1, 2, 3], [4]], "model": "any", "encoding_format": "base64"}, 2
    yield {"input": [], "model": "any"}, 0
    yield {"input": "Once", "model": "any", "dimensions": 8}, 0


def check_embeddings(folder, stage, mpirun):
    requests = list(embeddings_lines())
    answers = run_lines(folder, stage, mpirun, [(f"line-{i}", "/v1/embeddings", body) for i, (body, _) in enumerate(requests)])
    strict = strict_copy(CreateEmbeddingResponse)
    good = 0
    for line, (request, inputs) in zip(answers, requests + [({}, 0)], strict=True):
        response = line["response"]
        if inputs == 0:
            assert response["status_code"] == 400 and response["body"] is None and isinstance(line["error"]["message"], str), line
            continue
        body = response["body"]
        for one in body["data"]:
            if request.get("encoding_format") == "base64":  # as openai/resources/embeddings.py does it
                one["embedding"] = array.array("f", base64.b64decode(one["embedding"])).tolist()
        strict.model_validate_json(json.dumps(body))
        parsed = CreateEmbeddingResponse.model_validate_json(json.dumps(body), strict=True)
        assert parsed.model_dump(exclude_unset=True) == body, line
        assert [one.index for one in parsed.data] == list(range(inputs)), line
        for one in parsed.data:
            assert len(one.embedding) == CONFIG["hidden_size"] and abs(math.hypot(*one.embedding) - 1) < 1e-6, line
        assert parsed.usage.prompt_tokens == parsed.usage.total_tokens > 0, line
        good += 1
    return good, len(answers) - good


def main():
    stage, tools = sys.argv[1:3]
    mpirun = sys.argv[3] if len(sys.argv) > 3 else "mpirun"
    types = {True: strict_copy(ChatCompletion), False: strict_copy(Completion)}
    for chat, kind in types.items():  # the check itself must be able to fail
        try:
            kind.model_validate({"unknown": 1})
            sys.exit(f"{kind} takes anything")
        except pydantic.ValidationError as error:
            assert "extra_forbidden" in str(error), error
    with tempfile.TemporaryDirectory() as name:
        answers = run_batch(pathlib.Path(name), stage, tools, mpirun)
        embeddings = check_embeddings(pathlib.Path(name), stage, mpirun)
    requests = list(batch_lines())
    assert len(answers) == len(requests) + 1
    checked = {True: 0, False: 0, "error": 0, "stop": 0, "choices": 0}
    for line, (custom_id, chat, request, is_error) in zip(answers, requests + [(None, False, {}, True)]):
        assert set(line) == {"id", "custom_id", "response", "error"} and line["custom_id"] == custom_id, line
        assert set(line["response"]) == {"status_code", "request_id", "body"}, line
        if is_error:
            assert line["response"]["status_code"] == 400 and line["response"]["body"] is None, line
            assert isinstance(line["error"]["message"], str), line
            checked["error"] += 1
            continue
        assert line["response"]["status_code"] == 200 and line["error"] is None, line
        text = json.dumps(line["response"]["body"])
        types[chat].model_validate_json(text)
        # The package's own class, with its nested ones; dumped again it says the same.
        body = (ChatCompletion if chat else Completion).model_validate_json(text, strict=True)
        assert body.model_dump(exclude_unset=True) == line["response"]["body"], line
        assert body.usage.total_tokens == body.usage.prompt_tokens + body.usage.completion_tokens, line
        check_choices(line, body, request)
        if custom_id.startswith("text-first-"):
            assert body.choices[0].text == before.choices[0].text, line
        before = body
        checked[chat] += 1
        checked["choices"] += len(body.choices)
        checked["stop"] += sum("stop" in request and choice.finish_reason == "stop" for choice in body.choices)
    assert checked["stop"] > 50
    print(f"openai {openai.__version__}: {checked[True]} chat completions, {checked[False]} completions with {checked['choices']} choices, "
          f"{checked['stop']} of them ended by texts, and {checked['error']} errors are accepted")
    print(f"{embeddings[0]} answers with embeddings and {embeddings[1]} errors, too")


if __name__ == "__main__":
    main()
