"""What the `openai` package does about time limits, full queues, a server's end, refusals and keys: called by serve_openai_check.py."""
import contextlib
import threading
import time

import openai

from running_server import Server, free_port, offline, wait_for

TEXT = "/v1/completions"
LONG = {"model": "m", "prompt": "In the beginning", "max_tokens": 900, "seed": 1}  # with ignore_eos
ENDLESS = {"extra_body": {"ignore_eos": True}}


def client_of(server, **more):
    return openai.OpenAI(**{"base_url": server.url + "/v1", "api_key": "-", "max_retries": 0, "timeout": 600, **more})


@contextlib.contextmanager
def refused(kind, status=None, text=""):
    """The block raises an exception of just this class of the package, whose message has the text."""
    try:
        yield
    except openai.APIError as error:
        assert type(error) is kind and text in error.message, repr(error)
        assert status is None or error.status_code == status, repr(error)
        if isinstance(error, openai.APIStatusError):  # the fields of OpenAI's own errors
            assert isinstance(error.type, str) and isinstance(error.body, dict) and error.body["message"] in error.message, error.body
        return
    raise AssertionError(f"no {kind.__name__}")


def aborted(server):
    return server.metric('lfm2_requests_total{result="aborted"}')


def check_time_limits(server):
    """A client that waits no longer: what it asked for is cancelled, from the pipeline and from the queue."""
    client = client_of(server, timeout=1.0)
    before = aborted(server)
    begin = time.monotonic()
    with refused(openai.APITimeoutError):
        client.completions.create(**LONG, n=32, **ENDLESS)
    waited = time.monotonic() - begin
    wait_for(server.is_idle)
    behind = time.monotonic() - begin - waited
    assert aborted(server) == before + 1 and waited < 5 and behind < 5, (waited, behind)
    with refused(openai.APITimeoutError):
        client.with_options(max_retries=1).chat.completions.create(model="m", messages=[{"role": "user", "content": "And"}], max_tokens=900, n=32,
                                                                   **ENDLESS)
    wait_for(server.is_idle)
    assert aborted(server) == before + 3  # the second was tried twice
    stream = client_of(server).completions.create(**LONG, stream=True, **ENDLESS)
    next(iter(stream))
    stream.close()
    wait_for(server.is_idle)
    assert aborted(server) == before + 4
    return f"time limits: three requests cancelled, {behind:.2f} s after their clients had gone, and a stream that was closed"


def check_refusals(server):
    client = client_of(server)
    say = [{"role": "user", "content": "And"}]
    sets = {"type": "array", "uniqueItems": True}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": sets}}
    for text, body in (("best_of", {"prompt": "a", "best_of": 2}), ("temperature", {"prompt": "a", "temperature": -1}),
                       ("logprobs", {"prompt": "a", "logprobs": 1025}), ("21 log-probabilities", {"prompt": "a", "logprobs": 21}),
                       ("tokens", {"prompt": "and " * 1100}), ("suffix", {"prompt": "a", "suffix": "b"}), ("1023", {"prompt": [5000]}),
                       ("uniqueItems", {"prompt": "a", "extra_body": {"guided_json": sets}})):
        with refused(openai.BadRequestError, 400, text):
            client.completions.create(model="m", **body)
    for text, body in (("response_format\": #: uniqueItems", {"messages": say, "response_format": schema}), ("messages", {"messages": []}),
                       ("tool_choice", {"messages": say, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}),
                       ("top_logprobs", {"messages": say, "top_logprobs": 3})):
        with refused(openai.BadRequestError, 400, text):
            client.chat.completions.create(model="m", **body)
    with refused(openai.BadRequestError, 400, "best_of"):  # before anything is streamed
        client.completions.create(model="m", prompt="a", best_of=2, stream=True)
    with refused(openai.NotFoundError, 404):
        client.responses.retrieve("resp-1")
    with refused(openai.NotFoundError, 404):
        client.images.generate(model="m", prompt="a")
    assert client.completions.create(model="m", prompt="a", max_tokens=1).usage.completion_tokens == 1  # the connection still serves
    return "refusals: BadRequestError with the field's name, NotFoundError"


def check_keys(stage, shards, folder):
    """Also the server's own limits, of time and of bytes."""
    (folder / "keys").write_text("right\n")
    server = Server(stage, shards, folder, "keyed", "--api-key-file", folder / "keys", "--request-timeout", "2", "--max-body", "65536")
    for key in ("wrong", "righ", "rightright"):
        with refused(openai.AuthenticationError, 401):
            client_of(server, api_key=key).models.list()
        with refused(openai.AuthenticationError, 401):
            client_of(server, api_key=key, max_retries=3).completions.create(model="m", prompt="a", stream=True)
    client = client_of(server, api_key="right")
    assert client.models.list().data[0].id == "kjv"
    with refused(openai.APIStatusError, 413):
        client.completions.create(model="m", prompt="a " * 100_000)
    with refused(openai.InternalServerError, 504, "2 s"):
        client.completions.create(**LONG, n=64, **ENDLESS)
    with refused(openai.APIError, None, "2 s"):  # within the stream
        for _ in client.completions.create(**LONG, n=64, stream=True, **ENDLESS):
            pass
    assert client.completions.create(model="m", prompt="a", max_tokens=1).usage.completion_tokens == 1
    assert server.end() == 0
    return "keys: AuthenticationError; limits of bytes (413) and of time (504, and an error within a stream)"


def check_full_queue(stage, shards, folder, expected):
    server = Server(stage, shards, folder, "small", "--max-queue", "2", "--max-num-seqs", "1")
    client = client_of(server)
    found = []
    waiting = [threading.Thread(target=lambda: found.append(client.completions.create(**LONG, **ENDLESS).choices[0].text)) for _ in range(3)]
    waiting[0].start()
    wait_for(lambda: server.metric("lfm2_num_requests_running") == 1)
    for one in waiting[1:]:
        one.start()
    wait_for(lambda: server.metric("lfm2_num_requests_waiting") == 2)
    try:
        client.completions.create(**LONG, **ENDLESS)
        raise AssertionError("the queue was not full")
    except openai.RateLimitError as error:
        assert error.response.headers["retry-after"] == "1", error.response.headers
    answer = client.with_options(max_retries=60).completions.with_raw_response.create(**LONG, **ENDLESS)
    assert answer.retries_taken > 0 and answer.parse().choices[0].text == expected
    for one in waiting:
        one.join()
    assert found == [expected] * 3
    assert server.end() == 0
    return f"a full queue: RateLimitError, and with retries the answer, after {answer.retries_taken} of them"


def check_end(stage, shards, folder, expected):
    """A server that ends while a text runs, and one that comes back: what waits for it gets its answer from the new one."""
    port = free_port()
    server = Server(stage, shards, folder, "ending", port=port)
    client = client_of(server)
    stream = iter(client.completions.create(**LONG, stream=True, **ENDLESS))
    texts = [next(stream).choices[0].text]
    # Others keep the pipeline so busy that the text lasts some seconds. They are answered in full, too.
    others = []
    load = threading.Thread(target=lambda: others.extend(client.completions.create(**LONG, n=16, **ENDLESS).choices))
    load.start()
    wait_for(lambda: server.metric("lfm2_num_requests_running") > 1)
    server.drain()
    try:
        client.completions.create(model="m", prompt="a")
        raise AssertionError("no refusal")
    except openai.InternalServerError as error:
        assert (error.status_code, error.response.headers["retry-after"]) == (503, "30"), error
    patient = []
    waiting = threading.Thread(target=lambda: patient.append(client.with_options(max_retries=2).completions.with_raw_response.create(**LONG, **ENDLESS)))
    waiting.start()
    texts += [chunk.choices[0].text for chunk in stream]
    assert "".join(texts) == expected
    load.join()
    assert len(others) == 16 and all(one.finish_reason == "length" for one in others), others
    assert server.process.wait(60) == 0
    with refused(openai.APIConnectionError):
        client.completions.create(model="m", prompt="a")
    threads = [waiting]
    threads.append(threading.Thread(target=lambda: patient.append(client.with_options(max_retries=20).completions.with_raw_response.create(**LONG, **ENDLESS))))
    threads[-1].start()
    time.sleep(1)
    server = Server(stage, shards, folder, "ending", port=port)
    for one in threads:
        one.join()
    assert len(patient) == 2 and all(one.retries_taken > 0 and one.parse().choices[0].text == expected for one in patient)
    assert server.end() == 0
    return "a server's end: running texts end, InternalServerError (503), then APIConnectionError; clients with retries get their answers from the next one"


def check(stage, shards, folder):
    expected = offline(stage, shards, folder, [(TEXT, {**LONG, "ignore_eos": True})])[0]["choices"][0]["text"]
    server = Server(stage, shards, folder, "life")
    print(check_time_limits(server), flush=True)
    print(check_refusals(server), flush=True)
    assert server.end() == 0
    print(check_keys(stage, shards, folder), flush=True)
    print(check_full_queue(stage, shards, folder, expected), flush=True)
    print(check_end(stage, shards, folder, expected), flush=True)
