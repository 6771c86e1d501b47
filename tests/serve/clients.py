"""Many clients, and rude ones: they go at random instants, send a byte a second, do not read, or have no key."""

import asyncio
import contextlib
import json
import multiprocessing
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

from server import MIB, Server, check, completion, milliseconds, read_answer

LOAD = pathlib.Path(__file__).resolve().parents[1] / "bench/serve_load.py"


def test_streams(args):
    with Server(args, "--max-num-seqs", str(args.streams)) as server:
        done = subprocess.run([sys.executable, str(LOAD), f"http://{server.address[0]}:{server.address[1]}", "--streams", str(args.streams), "--seconds",
                               str(args.seconds), "--prompt", "16", "--tokens", "24", "--vocab", "900", "--processes", "1"], capture_output=True, text=True)
        check(done.returncode == 0 and "; 0 errors" in done.stdout, done.stdout + done.stderr)
        check(int(re.search(r"(\d+) requests", done.stdout)[1]) >= args.streams, f"fewer requests than streams: {done.stdout}")
        server.becomes_idle()
        busy = {name: value for name, value in server.metrics().items() if name.startswith("lfm2_stage_busy")}
        check(len(busy) == args.ranks and all(busy.values()), f"times of the stages: {busy}")
        return done.stdout.strip()


async def vanish(server, choose):
    """A client that goes: while it sends, while it waits, while it reads."""
    reader, writer = await asyncio.open_connection(*server.address)
    body = completion(choose.choice([3, 100, 800]), stream=choose.random() < 0.7, n=choose.randint(1, 3), prompt=[choose.randrange(900) for _ in range(choose.randint(1, 200))])
    data = json.dumps(body).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    if choose.random() < 0.1:
        request = request[:choose.randrange(len(request))]
    writer.write(request)
    with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
        await asyncio.wait_for(reader.read(choose.choice([1, 1 << 16])), choose.random() * 0.3)
    if choose.random() < 0.5:
        writer.transport.abort()  # a reset
    else:
        writer.close()


async def many_vanish(server, count, seed, at_a_time=100):
    free = asyncio.Semaphore(at_a_time)

    async def one(number):
        async with free:
            with contextlib.suppress(ConnectionError):
                await vanish(server, random.Random(seed + number))

    await asyncio.gather(*(one(number) for number in range(count)))


def test_vanish(args):
    with Server(args) as server:
        asyncio.run(many_vanish(server, args.clients // 2, 10**6))  # allocators take what they keep
        server.becomes_idle()
        before = server.resident()
        asyncio.run(many_vanish(server, args.clients, 0))
        server.becomes_idle()
        check(server.ask("POST", "/v1/completions", completion(5))[0] == 200, "no answer afterwards")
        after, figures = server.resident(), server.metrics()
        check(after - before < 16 * MIB, f"{before / MIB:.1f} MiB before, {after / MIB:.1f} after")
        check(figures["lfm2_connections"] == 1, f"{figures['lfm2_connections']} connections")
        results = {name.split('"')[1]: int(value) for name, value in figures.items() if name.startswith("lfm2_requests_total")}
        return f"{args.clients} clients, {results}; memory {before / MIB:.1f} MiB before, {after / MIB:.1f} after"


def test_senders(args):
    with Server(args) as server:
        before = milliseconds(server)
        links = [socket.create_connection(server.address) for _ in range(args.senders)]
        request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000

        def send():
            for byte in request:
                begin = time.monotonic()
                for link in links:
                    with contextlib.suppress(OSError):
                        link.send(bytes([byte]))
                time.sleep(max(0, begin + 1 - time.monotonic()))

        sender = multiprocessing.get_context("fork").Process(target=send)  # so that only the server has to do with both
        sender.start()
        try:
            time.sleep(1.5)
            meanwhile = milliseconds(server)
            connections = server.metrics()["lfm2_connections"]
            statuses = []
            if args.until_late:  # the time for a request is 30 s
                for link in links:
                    link.settimeout(60)
                    statuses.append(read_answer(link)[0])
        finally:
            sender.terminate()
            sender.join()
            for link in links:
                link.close()
        check(connections == args.senders + 1, f"{connections} connections")
        check(all(status == 408 for status in statuses), f"statuses {sorted(set(statuses))}")
        after = milliseconds(server)
        # Other work on the machine slows texts down, which the ranks compute, much more than the server's thread.
        for now, slack, *others in zip(meanwhile, (10, 250), before, after):
            check(now < 1.5 * max(others) + slack, f"[/health, a text] in ms: {before} before, {meanwhile} meanwhile, {after} after")
        times = "; ".join(f"{what} {now:.2f} ms ({', '.join(f'{other:.2f}' for other in others)} without them)"
                          for what, now, *others in zip(("/health", "a text"), meanwhile, before, after))
        return f"{args.senders} connections; {times}; ends {sorted(set(statuses))}"


def test_readers(args):
    with Server(args, "--max-num-seqs", str(3 * args.readers + 8)) as server:
        body = json.dumps(completion(1000, stream=True, logprobs=20, n=3)).encode()
        links = []
        for _ in range(args.readers):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect(server.address)
            link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            links.append(link)
        begin, slowest, aborted, short = time.monotonic(), 0, 0, 0
        while (figures := server.metrics())['lfm2_requests_total{result="aborted"}'] < args.readers:
            start = time.monotonic()
            check(server.ask("POST", "/v1/completions", completion(4))[0] == 200, "a reader was held back")
            slowest = max(slowest, time.monotonic() - start)
            short += 1
            aborted = figures['lfm2_requests_total{result="aborted"}']
            check(time.monotonic() - begin < 300, f"{aborted} of {args.readers} streams that nobody reads were ended")
        seconds = time.monotonic() - begin
        check(short > 0, "no short request was made while streams were held back")
        server.becomes_idle()
        for link in links:
            link.close()
        return f"{args.readers} streams ended after {seconds:.0f} s; each of {short} short requests meanwhile took {slowest:.2f} s at most"


def test_keys(args):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("the-key\n")
        keys.flush()
        with Server(args, "--api-key-file", keys.name) as server:
            for path in ("/v1/models", "/metrics", "/v1/completions", "/nothing"):
                for fields in ((), ("Authorization: Bearer the-ke",), ("Authorization: Bearer the-keyy",), ("Authorization: Basic the-key",), ("Authorization: Bearer",)):
                    status, _ = server.ask("GET", path, fields=fields)
                    check(status == 401, f"{path} with {fields} says {status}")
            check(server.ask("GET", "/v1/models", fields=("Authorization: Bearer the-key",))[0] == 200, "the key is not taken")
            check(server.ask("GET", "/health")[0] == 200, "/health needs a key")
    return "401"
