"""A server of the small trained model for the checks with real clients, and the offline job that its answers are compared with."""
import atexit
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

MODEL = pathlib.Path(__file__).resolve().parents[1] / "golden/kjv-moe"
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", NO_PROXY="127.0.0.1")
RANKS = 2
PATIENCE = 120  # seconds: others may use the processors too


def split(tools, model, shards):
    subprocess.run([tools, "split", model, "--stages", "4", "--out", shards, "-q"], check=True)


def command(stage, shards, *options):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(RANKS), stage, *options, "--weights", shards, "--device", "cpu",
            "--threads", "1", "--dtype", "fp32"]


def offline(stage, shards, folder, requests):
    """The bodies that a job without a server gives for (url, body), by batch lines."""
    given, found = folder / "offline.jsonl", folder / "offline-answers.jsonl"
    found.unlink(missing_ok=True)
    with open(given, "w", encoding="utf-8") as file:
        for number, (url, body) in enumerate(requests):
            file.write(json.dumps({"custom_id": str(number), "method": "POST", "url": url, "body": body}) + "\n")
    subprocess.run([*command(stage, shards), "--strict", "--quiet", "--input", given, "--output", found], check=True, env=ENVIRONMENT)
    return [json.loads(line)["response"]["body"] for line in open(found, encoding="utf-8")]


class Server:
    """One that runs from here to end(). Its access log is FOLDER/NAME.log."""

    def __init__(self, stage, shards, folder, name, *options, port=0):
        address = folder / f"{name}.address"
        address.unlink(missing_ok=True)
        with open(folder / f"{name}.log", "ab") as log:
            self.process = subprocess.Popen([*command(stage, shards, "serve"), "--port", str(port), "--address-file", address, *options],
                                            stdout=log, stderr=log, env=ENVIRONMENT)
        atexit.register(self.end)  # also where a check fails
        wait_for(lambda: address.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, (folder / f"{name}.log").read_text()
        self.url = address.read_text().strip()
        self.port = int(self.url.rpartition(":")[2])

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def post(self, path, body):
        with urllib.request.urlopen(self.url + path, json.dumps(body).encode(), timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(found[1])

    def is_idle(self):
        return self.metric("lfm2_num_requests_running") == 0 and self.metric("lfm2_num_requests_waiting") == 0

    def drain(self):
        """Returns once new requests are refused."""
        self.process.send_signal(signal.SIGUSR1)

        def refuses():
            try:
                return self.get("/health") is None
            except urllib.error.HTTPError as error:
                return error.code == 503
            except OSError:
                return True  # it has ended already
        wait_for(refuses)

    def end(self):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
        return self.process.wait(PATIENCE)


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not so after {PATIENCE} s"
        time.sleep(0.05)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
