#!/usr/bin/env python3
"""serve_openai_batches_check.py LFM2_STAGE WEIGHTS_TOOLS: files and batches of the `openai` package, unchanged, with lfm2_stage serve.

Serves the trained model of tests/golden/kjv-moe with --batch-dir, and uses files.create, .list, .retrieve, .content and .delete, and
batches.create, .retrieve, .list and .cancel as a program of a user would. Every object is validated by the package's types, strictly. The
answers are, line by line, the bytes of a job with the same file, but for the time. Between, the server is killed and comes back. A minute.
Needs the package (2.54.0 and 3.57.0 were used):

    python3 -m venv /tmp/openai && /tmp/openai/bin/pip install openai==3.57.0
    /tmp/openai/bin/python tests/reference/serve_openai_batches_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import openai
from openai.types import Batch, FileDeleted, FileObject

from running_server import ENVIRONMENT, MODEL, Server, command, split, wait_for

TEXT, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
KEYS = ["the-first", "the-second"]


def lines(url, bodies):
    return "".join(json.dumps({"custom_id": f"request-{i}", "method": "POST", "url": url, "body": body}) + "\n" for i, body in enumerate(bodies))


def inputs():
    """(endpoint, content): each with a line that is refused."""
    words = ["In the beginning", "And God said", "Thus saith the LORD", "And it came to pass"]
    yield TEXT, lines(TEXT, [{"prompt": words[i % 4], "max_tokens": 20 + i % 30, "temperature": i % 3 / 2, "seed": i, "logprobs": i % 4, "n": 1 + i % 2}
                             for i in range(120)]) + "not JSON\n"
    yield CHAT, lines(CHAT, [{"messages": [{"role": "user", "content": words[i % 4]}], "max_tokens": 10 + i} for i in range(12)] + [{"messages": []}])
    yield EMBEDDINGS, lines(EMBEDDINGS, [{"input": words[: 1 + i % 4], "encoding_format": ["float", "base64"][i % 2]} for i in range(8)] + [{"input": 3}])


def valid(thing, kind):
    kind.model_validate_json(thing.to_json(), strict=True)
    return thing


def timeless(text):
    return sorted(re.sub(r'"created":\d+', '"created":0', text).splitlines())


def of_job(stage, shards, folder, content):
    given, found = folder / "in.jsonl", folder / "out.jsonl"
    given.write_text(content)
    found.unlink(missing_ok=True)
    subprocess.run([*command(stage, shards), "--quiet", "--input", given, "--output", found], check=True, env=ENVIRONMENT)
    return timeless(found.read_text())


def client_of(server, key):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=120)


def begin(client, endpoint, content):
    file = valid(client.files.create(file=("batch.jsonl", content.encode()), purpose="batch"), FileObject)
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(content.encode()), "batch.jsonl", "batch", "processed")
    assert client.files.content(file.id).text == content
    return valid(client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"name": endpoint}), Batch)


def check_files(client, other, batch):
    listed = list(client.files.list(limit=1))  # the package asks for page after page
    assert len(listed) == len({file.id for file in listed}) == 9, listed
    assert len(list(client.files.list(purpose="batch_output"))) == 6
    assert not list(other.files.list()) and not list(other.batches.list())
    for call in (other.files.retrieve, other.files.content, other.files.delete):
        try:
            call(batch.output_file_id)
            raise AssertionError("another key saw it")
        except openai.NotFoundError:
            pass
    assert valid(client.files.delete(batch.output_file_id), FileDeleted).deleted
    try:
        client.files.retrieve(batch.output_file_id)
        raise AssertionError("a deleted file was found")
    except openai.NotFoundError:
        pass


def check_cancel(client):
    batch = begin(client, TEXT, lines(TEXT, [{"prompt": "Thus", "max_tokens": 300, "ignore_eos": True}] * 200))
    wait_for(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0)
    cancelled = valid(client.batches.cancel(batch.id), Batch)
    assert cancelled.status in ("cancelling", "cancelled")
    wait_for(lambda: client.batches.retrieve(batch.id).status == "cancelled")
    done = client.batches.retrieve(batch.id)
    assert 0 < done.request_counts.completed < 200
    assert len(client.files.content(done.output_file_id).text.splitlines()) == done.request_counts.completed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage")
    parser.add_argument("tools")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shards, keys = folder / "shards", folder / "keys"
        split(options.tools, MODEL, shards)
        keys.write_text("\n".join(KEYS))
        more = ["--batch-dir", folder / "batches", "--api-key-file", keys, "--max-num-seqs", "6"]
        server = Server(options.stage, shards, folder, "first", *more)
        client = client_of(server, KEYS[0])
        begun = {endpoint: begin(client, endpoint, content).id for endpoint, content in inputs()}
        wait_for(lambda: client.batches.retrieve(begun[TEXT]).request_counts.completed >= 20)
        assert client.completions.create(model="kjv", prompt="And", max_tokens=5).usage.completion_tokens > 0
        server.process.kill()
        server.process.wait()
        server = Server(options.stage, shards, folder, "second", *more)
        client = client_of(server, KEYS[0])
        for endpoint, content in inputs():
            wait_for(lambda: client.batches.retrieve(begun[endpoint]).status == "completed")
            done = valid(client.batches.retrieve(begun[endpoint]), Batch)
            counts = done.request_counts
            assert (counts.total, counts.failed) == (len(content.splitlines()), 1) and counts.completed == counts.total - 1, done
            assert done.metadata == {"name": endpoint}
            answers = client.files.content(done.output_file_id).text + client.files.content(done.error_file_id).text
            assert timeless(answers) == of_job(options.stage, shards, folder, content), endpoint
            print(f"{endpoint}: {counts.completed} answers and {counts.failed} error have the bytes of a job")
        assert {batch.id for batch in client.batches.list(limit=2)} == set(begun.values())
        check_files(client, client_of(server, KEYS[1]), client.batches.retrieve(begun[CHAT]))
        check_cancel(client)
        assert server.end() == 0
    print(f"openai {openai.__version__}: files and batches as their types have them")


if __name__ == "__main__":
    sys.exit(main())
