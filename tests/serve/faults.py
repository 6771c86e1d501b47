#!/usr/bin/env python3
"""faults.py LFM2_STAGE MPIRUN SHARDS [PART...]: what clients and machines do to a server. Only Python's standard library.

    streams   many streams at a time, through tests/bench/serve_load.py: no errors
    vanish    clients that go at random instants: nothing runs or waits afterwards, slots and pages are free, memory stays
    senders   connections that send a byte a second: others are answered as fast as before
    bodies    bodies and heads that are too large, broken or deep: an answer or a closed connection, in bounded memory
    readers   streams that nobody reads: they are ended, and hold back nobody
    keys      who has no key gets nothing
    ranks     each rank killed, and stopped, under load: the run ends in time with 76 or the launcher's code

Without PART all of them. The numbers are options; their defaults are those of the whole test, ctest's are smaller."""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

LOAD = pathlib.Path(__file__).resolve().parents[1] / "bench/serve_load.py"
MIB = 1 << 20


class Server:
    """lfm2_stage serve under mpirun; within a with block it runs and answers."""

    def __init__(self, args, *options, timeout=60):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-serve-"))
        self.address_file = self.folder / "address"
        command = [args.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(args.ranks), args.stage, "serve", "--weights", args.shards]
        command += ["--threads", "1", "--device", "cpu", "--port", "0", "--address-file", str(self.address_file), "--timeout", str(timeout), *options]
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=self.folder)

    def __enter__(self):
        end = time.monotonic() + 60
        while not self.address_file.exists() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        check(self.address_file.exists(), f"the server did not start: {self.errors()}")
        host, port = self.address_file.read_text().strip().removeprefix("http://").rsplit(":", 1)
        self.address = (host, int(port))
        self.ranks = self.find_ranks()
        return self

    def __exit__(self, kind, *unused):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(45)
        ended = self.process.poll()
        if ended is None:
            for pid in (*self.find_ranks().values(), self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        if kind is None:
            check(ended is not None, f"the server does not end: {self.errors()}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def errors(self):
        return (self.folder / "err").read_text(errors="replace")[-2000:]

    def find_ranks(self):
        """The process of each rank."""
        ranks = {}
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if not entry.name.isdigit() or int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) != self.process.pid:
                    continue
                for variable in (entry / "environ").read_bytes().split(b"\0"):
                    if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
                        ranks[int(variable.split(b"=")[1])] = int(entry.name)
        return ranks

    def resident(self):
        """Bytes of memory of the first rank."""
        status = pathlib.Path(f"/proc/{self.ranks[0]}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def ask(self, method, path, body=None, patience=60, fields=()):
        """Status and body; 0 where the server closes the connection or is not there."""
        data = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(data)}", *fields]
        return self.send("\r\n".join([*head, "", ""]).encode() + data, patience)

    def send(self, request, patience=60):
        try:
            with socket.create_connection(self.address, patience) as link:
                with contextlib.suppress(ConnectionError):  # the answer may come before all is sent
                    link.sendall(request)
                return read_answer(link)
        except OSError:
            return 0, b""

    def metrics(self):
        status, body = self.ask("GET", "/metrics")
        check(status == 200, f"/metrics says {status}")
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in body.decode().splitlines() if line and not line.startswith("#")}

    def becomes_idle(self, seconds=60):
        names = ["lfm2_num_requests_running", "lfm2_num_requests_waiting", "lfm2_cache_slots_used", "lfm2_cache_pages_used"]
        end = time.monotonic() + seconds
        while any((now := self.metrics())[name] for name in names):
            check(time.monotonic() < end, f"still held: { {name: now[name] for name in names} }")
            time.sleep(0.1)


class Failed(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


def read_answer(link):
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := link.recv(1 << 16):
            data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    return (int(words[1]) if len(words) > 1 and words[1].isdigit() else 0), body


def completion(tokens, **fields):
    return {"prompt": [1, 5, 9], "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **fields}


def milliseconds(server, count=30):
    """The median times of /health, which the server's thread answers, and of a short text, one after the other."""
    medians = []
    for request in (("GET", "/health"), ("POST", "/v1/completions", completion(8))):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            status, _ = server.ask(*request)
            check(status == 200, f"{request[1]} got {status}")
            times.append(1e3 * (time.perf_counter() - begin))
        medians.append(statistics.median(times))
    return medians


def test_streams(args):
    with Server(args, "--max-sequences", str(args.streams)) as server:
        done = subprocess.run([sys.executable, str(LOAD), f"http://{server.address[0]}:{server.address[1]}", "--streams", str(args.streams), "--seconds",
                               str(args.seconds), "--prompt", "16", "--tokens", "24", "--vocab", "900", "--processes", "1"], capture_output=True, text=True)
        check(done.returncode == 0 and "; 0 errors" in done.stdout, done.stdout + done.stderr)
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

        others = [threading.Thread(target=work) for work in (look, short)]
        clients = [threading.Thread(target=work) for work in [endless, all_bad] * args.at_once]
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
        check(most - before < 768 * MIB, f"{before / MIB:.0f} MiB before, {most / MIB:.0f} MiB at most")
        return f"{args.at_once} clients of each kind; a short request meanwhile took {slowest:.2f} s at most; memory {before / MIB:.0f} MiB before, {most / MIB:.0f} MiB at most"


def test_readers(args):
    with Server(args, "--max-sequences", str(3 * args.readers + 8)) as server:
        body = json.dumps(completion(1000, stream=True, logprobs=20, n=3)).encode()
        links = []
        for _ in range(args.readers):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect(server.address)
            link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            links.append(link)
        begin, slowest, aborted = time.monotonic(), 0, 0
        while (figures := server.metrics())['lfm2_requests_total{result="aborted"}'] < args.readers:
            start = time.monotonic()
            check(server.ask("POST", "/v1/completions", completion(4))[0] == 200, "a reader was held back")
            slowest = max(slowest, time.monotonic() - start)
            aborted = figures['lfm2_requests_total{result="aborted"}']
            check(time.monotonic() - begin < 300, f"{aborted} of {args.readers} streams that nobody reads were ended")
        seconds = time.monotonic() - begin
        server.becomes_idle()
        for link in links:
            link.close()
        return f"{args.readers} streams ended after {seconds:.0f} s; a short request meanwhile took {slowest:.2f} s at most"


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


def hurt_rank(args, number, rank):
    """Sends the signal under load; seconds until the end, and the exit code."""
    limit = 5
    with Server(args, timeout=limit) as server:
        ends = []

        def stream():
            with contextlib.suppress(OSError), socket.create_connection(server.address, 60) as link:
                link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                read_answer(link)
            ends.append(time.monotonic())

        body = json.dumps(completion(2000, stream=True, n=8)).encode()
        clients = [threading.Thread(target=stream) for _ in range(8)]
        for client in clients:
            client.start()
        while server.metrics()["lfm2_num_requests_running"] == 0:
            time.sleep(0.01)
        time.sleep(0.2)
        begin = time.monotonic()
        os.kill(server.ranks[rank], number)
        try:
            code = server.process.wait(3 * limit + 15)
        except subprocess.TimeoutExpired:
            raise Failed(f"signal {number} to rank {rank}: no end") from None
        seconds = time.monotonic() - begin
        for client in clients:
            client.join(10)
        check(len(ends) == len(clients), "a connection stays open")
        check(server.ask("GET", "/health", patience=5)[0] == 0, "/health answers")
        expected = {76} if number == signal.SIGSTOP else {76, 137}
        check(code in expected, f"signal {number} to rank {rank}: exit code {code}, expected {expected}: {server.errors()}")
        for pid in server.ranks.values():
            end = time.monotonic() + 10
            while pathlib.Path(f"/proc/{pid}").exists() and time.monotonic() < end:
                time.sleep(0.05)
            check(not pathlib.Path(f"/proc/{pid}").exists(), f"process {pid} is left")
        return f"rank {rank} {signal.Signals(number).name}: {code} after {seconds:.1f} s"


def test_ranks(args):
    hurt = [int(rank) for rank in args.hurt.split(",")] if args.hurt else range(args.ranks)
    return "; ".join(hurt_rank(args, number, rank) for number in (signal.SIGKILL, signal.SIGSTOP) for rank in hurt)


TESTS = {"streams": test_streams, "vanish": test_vanish, "senders": test_senders, "bodies": test_bodies, "readers": test_readers, "keys": test_keys, "ranks": test_ranks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=os.path.abspath)
    parser.add_argument("mpirun")
    parser.add_argument("shards", type=os.path.abspath, help="of the trained model of the tests (kjv-moe)")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(TESTS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20, help="of streams")
    parser.add_argument("--clients", type=int, default=2000, help="that vanish")
    parser.add_argument("--senders", type=int, default=1000)
    parser.add_argument("--until-late", action="store_true", help="wait until the senders are told that they are late")
    parser.add_argument("--body-bytes", type=int, default=10**9)
    parser.add_argument("--at-once", type=int, default=4, help="senders of bad bodies")
    parser.add_argument("--readers", type=int, default=256)
    parser.add_argument("--hurt", default="", help="the ranks that are killed and stopped, as in 0,3; default: each")
    args = parser.parse_args()
    unknown = set(args.parts) - set(TESTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: expected {', '.join(TESTS)}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    failed = 0
    for part in args.parts or TESTS:
        begin = time.monotonic()
        try:
            result = TESTS[part](args)
        except Failed as failure:
            result = f"FAILED: {failure}"
            failed = 1
        print(f"{part} ({time.monotonic() - begin:.1f} s): {result}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
