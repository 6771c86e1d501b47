"""A server that the faults are done to, and what is asked of it."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20


class Server:
    """lfm2_stage serve under mpirun; within a with block it runs and answers."""

    def __init__(self, args, *options, timeout=60):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-serve-"))
        self.address_file = self.folder / "address"
        self.hurt = False  # whether a rank was killed or stopped: then others look at the exit code
        command = [args.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(args.ranks), args.stage, "serve", "--weights", args.shards]
        command += ["--threads", "1", "--device", "cpu", "--port", "0", "--address-file", str(self.address_file), "--timeout", str(timeout), *options]
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, cwd=self.folder)

    def __enter__(self):
        end = time.monotonic() + 60
        while not self.address_file.exists() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if not self.address_file.exists():
            failure = Failed(f"the server did not start: {self.errors()}")
            self.__exit__(Failed)
            raise failure
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
            check(self.hurt or ended == 0, f"the server ended with {ended}: {self.errors()}")
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
        names = ("lfm2_num_requests_running", "lfm2_num_requests_waiting", "lfm2_cache_slots_used", "lfm2_cache_pages_used")
        end = time.monotonic() + seconds
        while any(now := {name: value for name, value in self.metrics().items() if name.partition("{")[0] in names and value}):
            check(time.monotonic() < end, f"still held: {now}")
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
