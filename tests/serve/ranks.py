"""Ranks that are killed and stopped."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

from server import Failed, Server, check, completion, read_answer


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
        clients = [threading.Thread(target=stream, daemon=True) for _ in range(8)]
        for client in clients:
            client.start()
        end = time.monotonic() + 60
        while server.metrics()["lfm2_num_requests_running"] == 0:
            check(time.monotonic() < end, f"signal {number} to rank {rank}: no request runs")
            time.sleep(0.01)
        time.sleep(0.2)
        begin = time.monotonic()
        server.hurt = True
        os.kill(server.ranks[rank], number)
        try:
            code = server.process.wait(3 * limit + 15)
        except subprocess.TimeoutExpired:
            raise Failed(f"signal {number} to rank {rank}: no end") from None
        seconds = time.monotonic() - begin
        end = time.monotonic() + 10
        for client in clients:
            client.join(max(0, end - time.monotonic()))
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
