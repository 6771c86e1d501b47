#!/usr/bin/env python3
"""structured_clients.py LFM2_STAGE MPIRUN SHARDS [CLIENT...]: unchanged clients get valid objects from lfm2_stage serve.

    openai       response_format from a pydantic model, tools by pydantic_function_tool, any JSON object; whole and streamed
    vllm         the openai package with vLLM's fields: structured_outputs and guided_...; whole and streamed
    langchain    ChatOpenAI.with_structured_output by its three methods, and bind_tools; whole and streamed
    instructor   create and create_partial in the modes TOOLS, TOOLS_STRICT and JSON_SCHEMA; create in the mode JSON
    llamaindex   OpenAILike by calls and by schema: structured_predict and as_structured_llm; by schema also streamed

Without CLIENT all of them; those whose package is missing are skipped. SHARDS are those of the trained model of the tests (kjv-moe).
It writes verses, not JSON, so only the constraint makes an answer valid. The clients validate each answer by their own code. Each
method has a line with its requests and valid answers. Ends with 1 if an answer is not valid, with 77 if all clients are skipped.

    python3 -m venv /tmp/clients
    /tmp/clients/bin/pip install openai langchain-openai instructor llama-index-llms-openai-like
    /tmp/clients/bin/python tests/serve/structured_clients.py build/cpu/bin/lfm2_stage mpirun build/cpu/golden-shards/kjv-moe-4
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import shutil
import sys
import tempfile

from server import Server
from tool_tokens import add_tool_tokens

try:
    import openai  # noqa: F401
except ImportError:
    print("skipped: openai is not installed, which all clients need")
    sys.exit(77)

from structured_methods import METHODS
from structured_models import Address, AnyObject

PACKAGES = {"openai": "openai", "vllm": "openai", "langchain": "langchain-openai", "instructor": "instructor", "llamaindex": "llama-index-llms-openai-like"}


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def fault_of(ask, model, fields):
    """None if the client returned objects of the model, or of the second tool."""
    try:
        found = ask(model, fields)
        objects = found if isinstance(found, list) else [found]
        return None if objects and all(isinstance(one, (model, Address)) for one in objects) else f"{objects} instead of {model.__name__}"
    except Exception as fault:  # whatever a client raises is its verdict
        return f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}"


def run_method(models, ask, rounds, bias):
    """The number of requests, and the faults of failed ones: each model at temperature 0 and above."""
    requests, faults = 0, []
    for model in models:
        for seed in range(rounds):
            temperature = (0, 1, 1.3)[seed % 3]
            fields = {"model": "kjv", "temperature": temperature, "seed": seed, "max_tokens": 900, "logit_bias": bias}
            requests += 1
            if (fault := fault_of(ask, model, fields)) is not None:
                faults.append(f"{model.__name__}, temperature {temperature}, seed {seed}: {fault}")
    return requests, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=os.path.abspath)
    parser.add_argument("mpirun")
    parser.add_argument("shards", type=os.path.abspath)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(METHODS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="requests of each model by each method, at temperatures 0, 1 and 1.3 in turn")
    args = parser.parse_intermixed_args()  # options may stand before the clients' names
    if unknown := set(args.clients) - set(METHODS):
        parser.error(f"no client {', '.join(sorted(unknown))}: expected {', '.join(METHODS)}")
    clients = [client for client in args.clients or METHODS if version_of(PACKAGES[client]) is not None]
    for client in (client for client in args.clients or METHODS if client not in clients):
        print(f"{client}: skipped: {PACKAGES[client]} is not installed")
    if not clients:
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(pathlib.Path(args.shards) / file, name)
        add_tool_tokens(pathlib.Path(name))
        with Server(args, "--tokenizer", name) as server:
            # This model never ends what may be of any length: lists of calls, and any objects.
            ids = {text: str(json.loads(server.ask("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1])["tokens"][0]) for text in ']"},'}
            list_ends, object_ends = {ids["]"]: 16}, {ids["]"]: 16, ids['"']: 16, ids["}"]: 40, ids[","]: -100}
            common = {"base_url": "http://%s:%d/v1" % server.address, "api_key": "-", "max_retries": 0}
            for client in clients:
                print(f"{client}: {PACKAGES[client]} {version_of(PACKAGES[client])}")
                for method, models, ask in METHODS[client](common):
                    bias = object_ends if AnyObject in models else list_ends if "several calls" in method else {}
                    requests, faults = run_method(models, ask, args.rounds, bias)
                    print("\n    ".join([f"{client}: {method}: {requests} requests, {requests - len(faults)} valid", *faults]), flush=True)
                    failed += len(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
