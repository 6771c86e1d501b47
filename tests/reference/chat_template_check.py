#!/usr/bin/env python3
"""chat_template_check.py RENDER_CHAT FOLDER... [--conversations N] [--names WORD,...] [--verbose]: renders every *.jinja below the folders
with random conversations, by transformers' own environment and by RENDER_CHAT (a program of the tests), and compares the texts. Where
transformers is not installed, the same environment is made with jinja2 alone (chat_environment.py).

Where the published templates are: the source archive of PyPI's llama-cpp-python (pip download --no-deps --no-binary :all:
llama-cpp-python==0.3.36 keeps the archive even where building fails; folder vendor/llama.cpp/models/templates) and the wheel trl (pip download
--no-deps trl==1.16.0; folder trl/chat_templates). They are other people's work and are not part of this project.

For each template: how many conversations are equal, are refused by both, are refused only by RENDER_CHAT, and differ. Those that Python
refuses do not count among the N. A text that differs, or a text where Python refuses, is a defect: the script ends with 1.
"""
import argparse, collections, json, pathlib, random, sys
from datetime import datetime

try:
    import chat_environment
except ImportError as error:
    print(f"skipped: {error} (package python3-jinja2)")
    sys.exit(77)
from chat_conversations import conversation
from render_chat import Renderer


def compiler():
    """A function from a template's source to the environment in which it is rendered."""
    try:
        from transformers.utils import chat_template_utils
    except ImportError:
        env = chat_environment.environment()
        return "jinja2", lambda source: env

    class Frozen(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(chat_environment.NOW)

    chat_template_utils.datetime = Frozen
    return "transformers", lambda source: chat_template_utils._compile_jinja_template(source).environment


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
    ours = Renderer(args.program)
    by, environment_of = compiler()
    totals, reasons, defects = collections.Counter(), collections.Counter(), 0
    for path in paths:
        source, counts, shown = path.read_text(encoding="utf-8"), collections.Counter(), set()
        random_ = random.Random(f"{args.seed} {path.name}")
        for number in range(5 * args.conversations):  # those that Python refuses do not count
            if number - counts["refused by both"] >= args.conversations:
                break
            case = conversation(random_) | {"now": chat_environment.NOW}
            answer = ours(case | {"source": source} if number == 0 else case)
            try:
                expected = chat_environment.render(environment_of(source), source, case)
            except Exception as error:  # a template that cannot be compiled
                expected = {"error": str(error)}
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
    print(f"{len(paths)} templates, compared with {by}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(totals.items())))
    return 1 if defects or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
