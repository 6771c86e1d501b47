#!/usr/bin/env python3
"""serve_datatrove_check.py LFM2_STAGE WEIGHTS_TOOLS: datatrove's InferenceRunner, unchanged, with lfm2_stage serve.

Every document must get the text that a job without a server writes for its prompt. Needs datatrove and what its endpoint client imports:

    python3 -m venv /tmp/dt && /tmp/dt/bin/pip install datatrove orjson aiohttp aiofiles aiosqlite loguru
    /tmp/dt/bin/python tests/reference/serve_datatrove_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.writers import JsonlWriter

from running_server import MODEL, Server, offline, split

PROMPTS = [text + " and" * more for more in range(50) for text in ("In the beginning", "And God said", "The", "Blessed are")]
SAMPLING = {"max_tokens": 12, "temperature": 0}


async def continued(document, generate):
    return (await generate({"prompt": document.text, **SAMPLING})).text


def served(server, folder):
    """The texts of datatrove's documents, by their ids."""
    config = InferenceConfig(server_type="endpoint", endpoint_url=server.url, model_name_or_path="lfm2", use_chat=False, max_concurrent_generations=32)
    writer = JsonlWriter(str(folder), output_filename="${rank}.jsonl", compression=None)
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(PROMPTS)]
    runner = InferenceRunner(rollout_fn=continued, config=config, output_writer=writer)
    LocalPipelineExecutor(pipeline=[documents, runner], logging_dir=str(folder / "logs")).run()
    return {row["id"]: row["metadata"]["rollout_results"][0] for row in map(json.loads, (folder / "00000.jsonl").read_text().splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=os.path.abspath)
    parser.add_argument("weights_tools", type=os.path.abspath)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as holder:
        folder = pathlib.Path(holder)
        split(args.weights_tools, MODEL, folder / "shards")
        server = Server(args.stage, folder / "shards", folder, "datatrove")
        found = served(server, folder)
        assert server.end() == 0
        expected = offline(args.stage, folder / "shards", folder, [("/v1/completions", {"prompt": text, **SAMPLING}) for text in PROMPTS])
    different = [number for number, body in enumerate(expected) if found.get(str(number)) != body["choices"][0]["text"]]
    print(f"{len(found)} documents, {len(different)} differ from the job's {len(expected)} {different[:3]}")
    return 1 if different or len(found) != len(expected) else 0


if __name__ == "__main__":
    sys.exit(main())
