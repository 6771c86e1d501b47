"""Bodies and heads that are too large, broken or deep."""

import contextlib
import json
import pathlib
import resource
import socket
import threading
import time

from server import MIB, Server, check, completion, milliseconds, read_answer


def send_endless(server, head, piece, total):
    """Sends so many bytes, or as many as the server takes, and returns the status."""
    sent = 0
    with socket.create_connection(server.address, 60) as link:
        with contextlib.suppress(OSError):
            link.sendall(head)
            while sent < total:
                link.sendall(piece)
                sent += len(piece)
        with contextlib.suppress(OSError):
            return read_answer(link)[0]
    return 0


def bad_requests(total):
    """(what, its bytes, the statuses that it may get)"""
    post = b"POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"

    def body(data, path=b"completions"):
        return post % path + b"Content-Length: %d\r\n\r\n" % len(data) + data

    chunked = post % b"completions" + b"Transfer-Encoding: chunked\r\n\r\n"
    yield "a length", post % b"completions" + b"Content-Length: %d\r\n\r\n" % total, {413}
    yield "a length of no number", post % b"completions" + b"Content-Length: 1e9\r\n\r\n", {400}
    for text in (b"zz\r\nx\r\n", b"-1\r\n", b"5\r\nhelloXX\r\n", b"fffffffffffffffff\r\n", b"\r\n\r\n", b"5 5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n"):
        yield f"chunks {text}", chunked + text, {400, 413}
    for text in (b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "a"', b"\0" * 1000, b'{"prompt": "\\ud800"}'):
        yield f"body {text[:20]}", body(text), {400}
    for depth in (101, 10_000, 2_000_000):
        yield f"{depth} lists", body(b"[" * depth), {400}
        yield f"{depth} lists as prompt", body(b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"), {400}
        yield f"{depth} objects as tools", body(b'{"messages": [], "tools": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}", b"chat/completions"), {400}
    yield "many ids", body(b'{"prompt": [' + b"1," * (7 * MIB) + b"1]}"), {400}
    yield "a long text", body(b'{"prompt": "' + b"in the " * (2 * MIB) + b'"}'), {400}
    yield "a body behind the limit", body(b'{"prompt": "' + b"a" * (17 * MIB) + b'"}'), {413}
    for what, flood in (("fields", b"X-Field: 1\r\n" * 100_000), ("a field", b"X-Field: " + b"a" * (20 * MIB)), ("a path", b"a" * MIB)):
        head = b"GET /" + flood + b" HTTP/1.1\r\n\r\n" if what == "a path" else b"GET / HTTP/1.1\r\nHost: localhost\r\n" + flood + b"\r\n\r\n"
        yield f"flood: {what}", head, {431, 414, 0}


def test_bodies(args):
    with Server(args) as server:
        milliseconds(server, 3)
        before, most, over = server.resident(), 0, threading.Event()

        def look():
            nonlocal most
            while not over.wait(0.01):
                most = max(most, server.resident())

        failures, slowest = [], 0

        def short():
            nonlocal slowest
            while not over.wait(0.05):
                begin = time.monotonic()
                if server.ask("POST", "/v1/completions", completion(4))[0] != 200:
                    failures.append("a short request was not answered")
                slowest = max(slowest, time.monotonic() - begin)

        def endless():
            chunk = b"100000\r\n" + b"x" * MIB + b"\r\n"
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            for more, piece in ((b"Transfer-Encoding: chunked\r\n\r\n", chunk), (b"Content-Length: %d\r\n\r\n" % args.body_bytes, b"x" * MIB)):
                status = send_endless(server, head + more, piece, args.body_bytes)
                if status not in (413, 0):
                    failures.append(f"an endless body got {status}")

        def all_bad():
            for what, data, expected in bad_requests(args.body_bytes):
                status, body = server.send(data)
                if status not in expected or (status and not json.loads(body)["error"]["message"]):
                    failures.append(f"{what}: {status} {body[:200]}, expected {expected}")

        def watched(work):  # what a thread raises would go to standard error alone
            try:
                work()
            except Exception as error:
                failures.append(f"{work.__name__}: {error!r}")

        others = [threading.Thread(target=watched, args=(work,)) for work in (look, short)]
        clients = [threading.Thread(target=watched, args=(work,)) for work in [endless, all_bad] * args.at_once]
        for client in others + clients:
            client.start()
        for client in clients:
            client.join()
        over.set()
        for other in others:
            other.join()
        check(not failures, failures[:5])
        server.becomes_idle()
        check(server.ask("POST", "/v1/completions", completion(5))[0] == 200, "no answer afterwards")
        check(most > 0 and slowest > 0, "nobody looked at the memory, or sent short requests")
        check(most - before < 768 * MIB, f"{before / MIB:.0f} MiB before, {most / MIB:.0f} MiB at most")
        return f"{args.at_once} clients of each kind; a short request meanwhile took {slowest:.2f} s at most; memory {before / MIB:.0f} MiB before, {most / MIB:.0f} MiB at most"


def large_bodies():
    """(path, body) of what takes much memory for its length, up to the 16 MiB that a body may have."""
    ids = ",".join(["7"] * (7 * MIB))
    yield "/v1/completions", json.dumps(completion(1000, n=128, logprobs=20, temperature=1)).encode()
    yield "/v1/completions", b'{"prompt": [5], "max_tokens": 1, "n": 128, "stop_token_ids": [%s]}' % ids.encode()
    yield "/v1/completions", b'{"prompt": [%s]}' % ids.encode()
    yield "/v1/completions", b'{"prompt": [5], "max_tokens": 1, "other": [%s1]}' % (b"[[]]," * (3 * MIB))
    yield "/tokenize", b'{"prompt": "%s"}' % (b"in the " * (15 * MIB // 7))
    yield "/tokenize", b'{"return_token_strs": true, "prompt": "%s"}' % (b"\\n" * (7 * MIB))
    yield "/detokenize", b'{"tokens": [%s]}' % ids.encode()


def test_memory(args):
    """Where memory ends while a body is read, it gets an error, and the server goes on."""
    with Server(args) as server:
        status = pathlib.Path(f"/proc/{server.ranks[0]}/status")
        size_of = lambda: int(status.read_text().split("VmSize:")[1].split()[0]) * 1024
        if size_of() > 1 << 40:
            return "not tried: sanitizers take more than any limit"
        answers = {}
        for left in args.left:
            for path, data in large_bodies():
                resource.prlimit(server.ranks[0], resource.RLIMIT_AS, (size_of() + left * MIB, resource.RLIM_INFINITY))
                head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data))
                code, text = server.send(head + data, 150)
                what = f"{path} {data[:60]} of {len(data)} bytes, with {left} MiB left"
                check(server.process.poll() is None, f"{what}: the server ended: {server.errors()}")
                check(code in (200, 400) or (code == 500 and b"not enough memory" in text), f"{what}: {code} {text[:200]}")
                check(server.ask("GET", "/health")[0] == 200, f"{what}: then /health failed")
                answers[code] = answers.get(code, 0) + 1
        resource.prlimit(server.ranks[0], resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        check(server.ask("POST", "/v1/completions", completion(5))[0] == 200, "no answer afterwards")
        return f"answers by status: {answers}"
