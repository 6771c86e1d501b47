"""Talks with the program render_chat, a line of JSON for each rendering."""
import json, subprocess, sys


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, case):
        self.process.stdin.write((json.dumps(case) + "\n").encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the program ended, with {self.process.wait()}, at {json.dumps(case)[:4000]}")
        return json.loads(answer)
