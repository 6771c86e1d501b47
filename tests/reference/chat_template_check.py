#!/usr/bin/env python3
"""chat_template_check.py RENDER_CHAT FOLDER... [--conversations N] [--names WORD,...] [--verbose]: renders every *.jinja below the folders
with random conversations, by transformers' own environment and by RENDER_CHAT (a program of the tests), and compares the texts.

Needs transformers and jinja2 (pip install transformers jinja2). Where the published templates are: the source archive of PyPI's
llama-cpp-python (pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36, folder vendor/llama.cpp/models/templates) and the wheel
trl (pip download --no-deps trl==1.16.0, folder trl/chat_templates). They are other people's work and are not part of this project.

For each template: how many conversations are equal, are refused by both, are refused only by RENDER_CHAT, and differ. A text that differs,
or a text where Python refuses, is a defect: the script ends with 1.
"""
import argparse, collections, json, pathlib, random, subprocess, sys, time
from datetime import datetime

from chat_conversations import conversation

NOW = 1754300000  # 4 August 2025


def reference(source, case):
    from transformers.utils import chat_template_utils

    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(NOW)

    chat_template_utils.datetime = Frozen
    compiled = chat_template_utils._compile_jinja_template(source)
    tokens = {f"{name}_token": text for name, text in case["tokens"].items()}
    return compiled.render(messages=case["messages"], tools=case["tools"], documents=None,
                           add_generation_prompt=case["add_generation_prompt"], **{**tokens, **case["variables"]})


class Renderer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, case):
        self.process.stdin.write((json.dumps(case) + "\n").encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the program ended, with {self.process.wait()}, at {json.dumps(case)[:2000]}")
        return json.loads(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--names", default="", help="only templates whose names have one of these words in them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="shows the first difference of each template")
    args = parser.parse_args()
    words = [word for word in args.names.lower().split(",") if word]
    paths = sorted(path for folder in args.folders for path in folder.rglob("*.jinja")
                   if not words or any(word in path.name.lower() for word in words))
    render = Renderer(args.program)
    totals, reasons, defects = collections.Counter(), collections.Counter(), 0
    for path in paths:
        source, counts, shown = path.read_text(encoding="utf-8"), collections.Counter(), set()
        random_ = random.Random(f"{args.seed} {path.name}")
        for number in range(5 * args.conversations):  # those that Python refuses do not count
            if number - counts["refused by both"] >= args.conversations:
                break
            case = conversation(random_) | {"now": NOW}
            answer = render(case | {"source": source} if number == 0 else case)
            try:
                expected = {"text": reference(source, case)}
            except Exception as error:  # whatever Python or Jinja raises is a refusal
                expected = {"error": f"{type(error).__name__}: {error}"}
            if answer == expected:
                outcome = "equal"
            elif "error" in answer and "error" in expected:
                outcome = "refused by both"
            elif "error" in answer:
                outcome = "refused here"
                reasons[f"{path.name}: {answer['error']}"] += 1
            else:
                outcome = "DIFFERENT"
            counts[outcome] += 1
            if args.verbose and outcome in ("DIFFERENT", "refused here") and outcome not in shown:
                shown.add(outcome)
                print(json.dumps(case, ensure_ascii=False), "\n  expected", json.dumps(expected, ensure_ascii=False), "\n  found   ",
                      json.dumps(answer, ensure_ascii=False))
        print(f"{path.name}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), flush=True)
        totals.update(counts)
        defects += counts["DIFFERENT"]
    for reason, count in reasons.most_common():
        print(f"refused here, {count} times: {reason[:200]}")
    print(f"{len(paths)} templates: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(totals.items())))
    return 1 if defects or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
