#!/usr/bin/env python3
"""serve_openai_check.py LFM2_STAGE WEIGHTS_TOOLS [--no-embeddings] [--no-echo] [--only-life]: the `openai` package, unchanged, with lfm2_stage serve.

Serves the trained model of tests/golden/kjv-moe and asks it as a program of a user would: completions and chats, whole and streamed, one
after the other and many at a time while others go away, tools, embeddings, responses; then what a client does about time limits, full queues, ends
and restarts of the server, refusals and keys (serve_openai_life.py). Every answer and chunk is validated by the package's types, strictly
and with unknown keys refused, and has the texts, log-probabilities and usage of the same request in a file, without a server. Some
minutes. Needs the package (the types of 3.54.0 were used):

    python3 -m venv /tmp/openai && /tmp/openai/bin/pip install openai==3.54.0
    /tmp/openai/bin/python tests/reference/serve_openai_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import argparse
import array
import asyncio
import inspect
import json
import pathlib
import shutil
import sys
import tempfile

import openai
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import serve_openai_life
import serve_openai_responses as responses
from openai_answers import strict_copy
from running_server import MODEL, Server, offline, split, wait_for

sys.path.append(str(pathlib.Path(__file__).parents[1] / "serve"))
from tool_tokens import BEGIN_CALLS, END_CALLS, add_tool_tokens

TEXT, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
STRICT = {kind: strict_copy(kind) for kind in (Completion, ChatCompletion, ChatCompletionChunk, CreateEmbeddingResponse, Model)}
VERSE = "And the LORD visited Sarah as he had said, and the LORD did unto Sarah as he had spoken."


def bodies():
    """(url, body) of requests that a job without a server takes as well."""
    say = [{"role": "user", "content": VERSE}]
    parts = [{"role": "system", "content": "Speak."}, {"role": "user", "content": VERSE}, {"role": "assistant", "content": "And Sarah laughed."},
             {"role": "user", "content": "And God said unto Abraham,"}]
    for i in range(4):
        drawn = {"seed": 10 + i, "temperature": 0.5 + 0.5 * i, "max_tokens": 20 + 20 * i}
        yield TEXT, {"prompt": "In the beginning", **drawn, "logprobs": i}
        yield TEXT, {"prompt": [1, 400 + i, 50, 60], **drawn, "n": 1 + i, "top_k": 0, "top_p": 0.9}
        yield TEXT, {"prompt": "And it came to pass", **drawn, "stop": [", and", "."][: 1 + i % 2], "n": 2, "logprobs": 2}
        yield CHAT, {"messages": say, **drawn, "n": 1 + i, "logprobs": True, "top_logprobs": 5 * i}
        yield CHAT, {"messages": parts, **drawn, "stop": "the" if i % 2 else None, "presence_penalty": 0.5, "frequency_penalty": 0.25 * i}
    yield TEXT, {"prompt": "Thus saith the LORD", "temperature": 0, "max_tokens": 40, "logit_bias": {"63": -100, "12": 1.5}, "logprobs": 5}
    yield TEXT, {"prompt": "Thus saith the LORD", "temperature": 3.0, "top_k": 0, "max_tokens": 60, "logprobs": 20, "seed": -5}  # torn characters
    yield TEXT, {"prompt": "Thus", "max_tokens": 30, "min_tokens": 30, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 2}
    yield TEXT, {"prompt": "Thus", "max_tokens": 200, "ignore_eos": True, "seed": 2**40}
    yield CHAT, {"messages": say, "max_completion_tokens": 12, "seed": 3, "user": "me", "logprobs": True}
    yield CHAT, {"messages": say, "temperature": 0, "max_tokens": 256}  # the default of a file, which is not that of a server


def split_fields(resource, body):
    """Fields that the package knows, and the others as a user of it gives them."""
    known = inspect.signature(resource.create).parameters
    other = {name: value for name, value in body.items() if name not in known}
    return {**{name: value for name, value in body.items() if name in known}, **({"extra_body": other} if other else {})}


def resource_of(client, url):
    return {TEXT: client.completions, CHAT: client.chat.completions, EMBEDDINGS: client.embeddings}[url]


def validate(kind, text):
    """By the package's class as it stands and by a copy that refuses what it does not know; dumped again it says the same."""
    STRICT[kind].model_validate_json(text)
    assert kind.model_validate_json(text, strict=True).model_dump(exclude_unset=True) == json.loads(text), text


def without_given_nulls(body):
    """The package's types have no null where OpenAI itself says null: for the first token of a prompt that is echoed."""
    body = json.loads(json.dumps(body))
    for choice in body["choices"]:
        probs = choice.get("logprobs") or {}
        for key in ("token_logprobs", "top_logprobs"):
            if probs.get(key) and probs[key][0] is None:
                del probs[key][0]
    return body


def whole(client, url, body):
    answer = resource_of(client, url).with_raw_response.create(**split_fields(resource_of(client, url), body))
    text = answer.text if isinstance(answer.text, str) else answer.text()
    kind = Completion if url == TEXT else ChatCompletion
    validate(kind, json.dumps(without_given_nulls(json.loads(text)), ensure_ascii=False))
    assert json.loads(answer.parse().to_json()) == json.loads(text)
    return json.loads(text)


class Joined:
    """Chunks of a stream, as the answer that they are pieces of."""

    def __init__(self, url):
        self.chat, self.choices, self.usage, self.head = url == CHAT, {}, None, None

    def take(self, chunk):
        chunk = json.loads(chunk.to_json(exclude_unset=True))
        head = {name: chunk[name] for name in ("id", "object", "created", "model")}
        assert self.head in (None, head), (self.head, head)
        self.head = head
        self.validate(chunk)
        if not chunk["choices"]:
            assert self.usage is None
            self.usage = chunk["usage"]
        for piece in chunk["choices"]:
            self.add(piece)

    def validate(self, chunk):
        if self.chat:
            return validate(ChatCompletionChunk, json.dumps(chunk))
        chunk = without_given_nulls(chunk)
        for choice in chunk["choices"]:  # the type has no null here either, but OpenAI's streams say so until a text ends
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        validate(Completion, json.dumps(chunk))

    def add(self, piece):
        key = "message" if self.chat else "text"
        first = {"index": piece["index"], key: {"role": None, "content": "", "refusal": None} if self.chat else "", "logprobs": None,
                 "finish_reason": None}
        one = self.choices.setdefault(piece["index"], first)
        assert one["finish_reason"] is None, f"behind the end: {piece}"
        one["finish_reason"] = piece["finish_reason"]
        if self.chat:
            assert one["message"]["role"] or piece["delta"]["role"] == "assistant", piece
            one["message"]["role"] = one["message"]["role"] or piece["delta"]["role"]
            one["message"]["content"] += piece["delta"].get("content", "")
        else:
            one["text"] += piece["text"]
        for name, values in (piece["logprobs"] or {}).items():
            one["logprobs"] = one["logprobs"] or {}
            if values is not None or name not in one["logprobs"]:
                one["logprobs"][name] = (one["logprobs"].get(name) or []) + values if values is not None else None

    def body(self):
        return {"choices": [self.choices[index] for index in sorted(self.choices)], "usage": self.usage}


def streamed(client, url, body):
    resource, joined = resource_of(client, url), Joined(url)
    for chunk in resource.create(**split_fields(resource, body), stream=True, stream_options={"include_usage": True}):
        joined.take(chunk)
    return joined.body()


async def streamed_async(client, url, body):
    resource, joined = resource_of(client, url), Joined(url)
    async for chunk in await resource.create(**split_fields(resource, body), stream=True, stream_options={"include_usage": True}):
        joined.take(chunk)
    return joined.body()


def compare(found, expected, what):
    """Only a server has a prefix cache, and says how much of the prompts it had."""
    usage = {key: value for key, value in found["usage"].items() if key != "prompt_tokens_details"}
    cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= cached < found["usage"]["prompt_tokens"], f"{what}: {cached} cached tokens"
    for key, value in (("choices", found["choices"]), ("usage", usage)):
        assert value == expected[key], f"{what}: {key}:\n{json.dumps(value)}\nwithout a server:\n{json.dumps(expected[key])}"


def check_answers(client, requests, expected):
    for (url, body), answer in zip(requests, expected, strict=True):
        compare(whole(client, url, body), answer, body)
        compare(streamed(client, url, body), answer, body)
    return f"{len(requests)} requests one after the other, whole and streamed"


def check_many(server, requests, expected):
    """All at a time, while other clients begin to read and go away."""
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
            over = False

            async def come_and_go():
                gone = 0
                while not over:
                    stream = await client.completions.create(model="m", prompt="In the", max_tokens=900, n=3, stream=True, extra_body={"ignore_eos": True})
                    async for _ in stream:
                        break
                    await stream.close()
                    gone += 1
                return gone
            rude = asyncio.create_task(come_and_go())
            found = await asyncio.gather(*(streamed_async(client, url, body) for url, body in requests * 2))
            over = True
            return found, await rude

    aborted = server.metric('lfm2_requests_total{result="aborted"}')
    found, gone = asyncio.run(all_of_them())
    for (_, body), answer, right in zip(requests * 2, found, expected * 2, strict=True):
        compare(answer, right, body)
    wait_for(server.is_idle)
    assert server.metric('lfm2_requests_total{result="aborted"}') == aborted + gone > aborted
    return f"{len(found)} streams at a time, while {gone} others were broken off and cancelled"


def check_prompts(client, expected_of, echo):
    """What a line of a file does not know: many prompts, and echo."""
    prompts = ["In the beginning", "And it came to pass", "Thus saith the LORD"]
    ids = [[1, 300, 40], [1, 301]]
    fields = {"model": "m", "max_tokens": 12, "seed": 4, "n": 2}
    for several in (prompts, ids):
        found = client.completions.create(prompt=several, **fields)
        singles = expected_of([(TEXT, {"prompt": prompt, **fields}) for prompt in several])
        assert [choice.text for choice in found.choices] == [choice["text"] for single in singles for choice in single["choices"]]
        assert [choice.index for choice in found.choices] == list(range(2 * len(several)))
    plain = client.completions.create(prompt=prompts[0], **fields)
    echoed = client.completions.create(prompt=prompts[0], **fields, echo=True)
    assert [choice.text for choice in echoed.choices] == [prompts[0] + choice.text for choice in plain.choices]
    if not echo:
        return "lists of prompts, echo without log-probabilities"
    plain = whole(client, TEXT, {"prompt": prompts[0], **fields, "logprobs": 3})
    for echoed in (whole(client, TEXT, {"prompt": prompts[0], **fields, "logprobs": 3, "echo": True}),
                   streamed(client, TEXT, {"prompt": prompts[0], **fields, "logprobs": 3, "echo": True})):
        for one, other in zip(echoed["choices"], plain["choices"], strict=True):
            probs, given = one["logprobs"], len(one["logprobs"]["tokens"]) - len(other["logprobs"]["tokens"])
            assert given > 0 and probs["token_logprobs"][0] is None and all(value <= 0 for value in probs["token_logprobs"][1:])
            assert one["text"] == prompts[0] + other["text"]
            for name in ("tokens", "token_logprobs", "top_logprobs"):
                assert probs[name][given:] == other["logprobs"][name], name
            assert probs["text_offset"][given:] == [len(prompts[0]) + offset for offset in other["logprobs"]["text_offset"]]
    return "lists of prompts, echo with and without log-probabilities"


def check_embeddings(client, stage, shards, folder):
    texts = ["In the beginning", VERSE]
    inputs = [texts[0], texts, [1, 20, 30], [[1, 20, 30], [1, 5]]]
    expected = offline(stage, shards, folder, [(EMBEDDINGS, {"input": one, "model": "m"}) for one in inputs])
    for one, right in zip(inputs, expected, strict=True):
        for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):  # without, the package asks for base64 and decodes it
            answer = client.embeddings.with_raw_response.create(model="m", input=one, **more)
            parsed = answer.parse()
            values = [data.embedding for data in parsed.data]
            if more.get("encoding_format") == "base64":
                assert all(isinstance(value, str) for value in values)
                continue
            validate(CreateEmbeddingResponse, parsed.to_json())
            assert [array.array("f", value) for value in values] == [array.array("f", data["embedding"]) for data in right["data"]], one
            assert json.loads(parsed.usage.to_json()) == right["usage"]
    return f"embeddings of {len(inputs)} inputs in three forms"


TOOLS = [{"type": "function", "function": {"name": "time", "description": "The time.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]
CALL = [BEGIN_CALLS, " time", "(", "a", "=", "1", ")", END_CALLS]
BIASES = [100, 87, 74, 61, 48, 44, 18, 8]  # a token that came has a logit near 1, by the penalty, and all but these have one near -100


def ids_of_call(server):
    ids = [server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] for text in CALL]
    assert all(len(one) == 1 for one in ids), ids
    return [one for one, in ids]


def check_tools(client, server, vocab):
    """The small model knows of no tools: biases make it write the tokens of a call, each of which may come but once."""
    ids = ids_of_call(server)
    question = [{"role": "user", "content": "What is it?"}]
    assert not set(ids) & set(server.post("/tokenize", {"messages": question, "tools": TOOLS})["tokens"])
    bias = {str(token): -100 for token in range(vocab)} | dict(zip(map(str, ids), BIASES, strict=True))
    request = {"model": "m", "messages": question, "tools": TOOLS, "temperature": 0, "max_tokens": 20, "logit_bias": bias,
               "extra_body": {"repetition_penalty": 100, "stop_token_ids": [ids[-1]]}}
    answer = client.chat.completions.with_raw_response.create(**request)
    validate(ChatCompletion, answer.text if isinstance(answer.text, str) else answer.text())
    choice = answer.parse().choices[0]
    call = choice.message.tool_calls[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None), choice
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "time", {"a": 1}), call
    for chunk in client.chat.completions.create(**request, stream=True):
        validate(ChatCompletionChunk, chunk.to_json(exclude_unset=True, indent=None))
    with client.chat.completions.stream(**request) as stream:  # the package's own way to put chunks together
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert final.finish_reason == "tool_calls" and final.message.tool_calls[0].function.arguments == call.function.arguments, final
    messages = [*question, choice.message.model_dump(exclude_unset=True), {"role": "tool", "tool_call_id": call.id, "content": "Noon."}]
    reply = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, tool_choice="none", max_tokens=5, seed=1)
    assert reply.choices[0].message.tool_calls is None and reply.choices[0].message.content
    return "a call of a tool, whole and streamed, and its result"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage")
    parser.add_argument("tools")
    parser.add_argument("--no-embeddings", action="store_true", help="for servers that have no /v1/embeddings")
    parser.add_argument("--no-echo", action="store_true", help="for servers without log-probabilities of prompts")
    parser.add_argument("--only-life", action="store_true", help="only time limits, queues, restarts, refusals, keys")
    arguments = parser.parse_args()
    requests = [(url, {"model": "m", **body}) for url, body in bodies()]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shards = folder / "kjv"
        split(arguments.tools, MODEL, shards)
        if not arguments.only_life:
            expected = offline(arguments.stage, shards, folder, requests)
            server = Server(arguments.stage, shards, folder, "server")
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=600)
            models = client.models.list()
            assert [model.id for model in models] == ["kjv"] and models.data[0].object == "model", models
            assert client.models.retrieve("kjv") == models.data[0]
            print("models.list, models.retrieve", flush=True)
            print(check_answers(client, requests, expected), flush=True)
            print(check_many(server, requests, expected), flush=True)
            print(check_prompts(client, lambda some: offline(arguments.stage, shards, folder, some), not arguments.no_echo), flush=True)
            if not arguments.no_embeddings:
                print(check_embeddings(client, arguments.stage, shards, folder), flush=True)
            assert server.end() == 0
            add_tool_tokens(shutil.copytree(MODEL, folder / "with-tools"))
            split(arguments.tools, folder / "with-tools", folder / "tools")
            server = Server(arguments.stage, folder / "tools", folder, "tools")
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=600)
            print(check_tools(client, server, 1024), flush=True)
            ids = ids_of_call(server)
            print(responses.check_texts(client), flush=True)
            print(responses.check_tools(client, dict(zip(map(str, ids), BIASES, strict=True)), ids[-1], 1024), flush=True)
            print(responses.check_schemas(client), flush=True)
            print(responses.check_refusals(client), flush=True)
            assert server.end() == 0
        serve_openai_life.check(arguments.stage, shards, folder)
    print(f"openai {openai.__version__}: VALID")


if __name__ == "__main__":
    main()
