#!/usr/bin/env python3
"""serve_litellm_check.py LFM2_STAGE WEIGHTS_TOOLS: LiteLLM's proxy, unchanged, before lfm2_stage serve with two replicas.

The same requests go to the server and to the proxy, by its providers "openai" and "hosted_vllm": texts, streams, choices, constrained
answers, responses and embeddings must be equal, and a prompt that is too long must raise the same class. Half a minute. Needs litellm:

    python3 -m venv /tmp/ll && /tmp/ll/bin/pip install 'litellm[proxy]'
    /tmp/ll/bin/python tests/reference/serve_litellm_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import argparse
import atexit
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version

import openai

from running_server import MODEL, Server, split, wait_for

MESSAGES = [{"role": "user", "content": "And God said,"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
PROVIDERS = ("openai", "hosted_vllm")


def start_proxy(folder, server_url):
    """The proxy's process and address. It has a model for each of PROVIDERS."""
    models = [{"model_name": name, "litellm_params": {"model": f"{name}/kjv", "api_base": server_url + "/v1", "api_key": "none"}} for name in PROVIDERS]
    (folder / "config.yaml").write_text(json.dumps({"model_list": models}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = dict(os.environ, LITELLM_MASTER_KEY="sk-check", NO_PROXY="127.0.0.1")
    with open(folder / "proxy.log", "wb") as log:
        process = subprocess.Popen([pathlib.Path(sys.executable).with_name("litellm"), "--config", folder / "config.yaml", "--host", "127.0.0.1",
                                    "--port", str(port)], cwd=folder, env=environment, stdout=log, stderr=log)
    atexit.register(process.kill)
    url = f"http://127.0.0.1:{port}"

    def answers():
        assert process.poll() is None, (folder / "proxy.log").read_text()
        try:
            return urllib.request.urlopen(url + "/health/liveliness", timeout=10) is not None
        except OSError:
            return False

    wait_for(answers)
    return process, url


def texts(client, model):
    """What a client is told, by the kind of request."""
    chat = lambda **fields: client.chat.completions.create(model=model, **{"messages": MESSAGES, "max_tokens": 16, "temperature": 0, **fields})
    stream = "".join(part.choices[0].delta.content or "" for part in chat(stream=True) if part.choices)
    try:
        chat(messages=[{"role": "user", "content": "x" * 20000}])
        refusal = None
    except openai.OpenAIError as error:
        refusal = type(error).__name__
    return {"chat": chat().choices[0].message.content, "tokens": chat().usage.total_tokens, "stream": stream,
            "choices": [choice.message.content for choice in chat(n=2, seed=3, temperature=0.8).choices],
            "constrained": json.loads(chat(max_tokens=60, response_format=FORMAT).choices[0].message.content),
            "text": client.completions.create(model=model, prompt="In the beginning", max_tokens=9, temperature=0).choices[0].text,
            "response": client.responses.create(model=model, input="And God said,", max_output_tokens=16, temperature=0).output_text,
            "embeddings": [item.embedding for item in client.embeddings.create(model=model, input=["a", "b"]).data], "too long": refusal}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=os.path.abspath)
    parser.add_argument("weights_tools", type=os.path.abspath)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        split(arguments.weights_tools, MODEL, folder / "shards")
        server = Server(arguments.stage, folder / "shards", folder, "server", "--model-name", "kjv", "--replicas", "2")
        process, url = start_proxy(folder, server.url)
        expected = texts(openai.OpenAI(base_url=server.url + "/v1", api_key="none"), "kjv")
        assert all(expected.values()), expected
        different = {}
        for provider in PROVIDERS:
            found = texts(openai.OpenAI(base_url=url + "/v1", api_key="sk-check"), provider)
            different |= {f"{provider}: {kind}": (found[kind], expected[kind]) for kind in expected if found[kind] != expected[kind]}
        process.kill()
        assert server.end() == 0
    print(f"litellm {version('litellm')}: {len(expected)} kinds by {len(PROVIDERS)} providers, {len(different)} differ {different or ''}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
