#!/usr/bin/env python3
"""How fast JSON schemas are compiled and masks are made, how many schemas are right, and the same for llguidance in the same run.

    grammar_speed.py BENCH_GRAMMAR --tokenizer FILE [--vocab N] [--eos ID] [--llguidance] DATA...

BENCH_GRAMMAR is the program of that name. FILE is a tokenizer.json. DATA are files of lines {"schema": S, "tests": [...]}, which may end
in .gz, such as tests/golden/json-schema-test-suite/draft7.jsonl, or folders of that suite. A test is [JSON, BOOL] or {"data": JSON,
"valid": BOOL}. Needs the Python packages
tokenizers and, with --llguidance, llguidance. An instance counts as accepted if it is accepted as Python writes it or without blanks.
A schema is right if it is compiled and each instance is judged as `valid` says; answers have their keys in the order of the schema, so
a valid instance in another order counts as rejected. Times are processor time of one thread: of a compilation,
from the schema to a state that can be asked for a mask; of a mask, with taking the token. A schema on which a process dies, or which takes
more than 30 s, counts as failed, and the process begins anew.
"""
import argparse, collections, gzip, json, os, pathlib, select, subprocess, sys, time

LONGEST_S = 30


class Llguidance:
    """Answers the lines that bench_grammar.cpp describes."""

    def __init__(self, hello):
        import llguidance, llguidance.numpy
        self.matcher, self.masks, self.end = llguidance.LLMatcher, llguidance.numpy, hello["eos"]
        self.tokenizer = llguidance.LLTokenizer(pathlib.Path(hello["tokenizer"]).read_text(), n_vocab=hello["vocab"], eos_token=self.end)
        self.mask = self.masks.allocate_token_bitmask(1, hello["vocab"])
        self.name = "llguidance " + llguidance.__version__ if hasattr(llguidance, "__version__") else "llguidance"

    def answer(self, line):
        begin = time.thread_time_ns()
        first = self.matcher(self.tokenizer, json.dumps({"grammars": [{"json_schema": line["schema"]}]}))
        if first.is_error():
            return {"refused": first.get_error()}
        return {"compile_us": (time.thread_time_ns() - begin) / 1e3, "tests": [self.follow(first.deep_copy(), test["ids"]) for test in line["tests"]]}

    def follow(self, matcher, ids):
        times = []
        for token in [*ids, self.end]:
            begin = time.thread_time_ns()
            self.masks.fill_next_token_bitmask(matcher, self.mask, 0)
            accepts = bool(int(self.mask[0, token // 32]) >> token % 32 & 1)
            if accepts and token != self.end:
                matcher.consume_token(token)
            times.append((time.thread_time_ns() - begin) / 1e3)
            if not accepts:
                break
        return {"accepts": accepts, "mask_us": times}


def answer_lines():
    engine = Llguidance(json.loads(sys.stdin.readline()))
    print(json.dumps({"name": engine.name}), flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.answer(json.loads(line))), flush=True)


class Engine:
    """A process that answers lines, started anew where it dies or is late."""

    def __init__(self, command, hello):
        self.command, self.hello, self.child = command, hello, None

    def ask(self, line):
        if self.child is None:
            self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            found = self.exchange(self.hello)
            if "name" not in found:
                sys.exit(f"{' '.join(self.command)}: {found}, expected its name")
            self.name = found["name"]
        return self.exchange(line)

    def exchange(self, line):
        deadline, text = time.monotonic() + LONGEST_S, b""
        try:
            self.child.stdin.write(json.dumps(line).encode() + b"\n")
            self.child.stdin.flush()
            while not text.endswith(b"\n"):
                if not select.select([self.child.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                    return self.fail(f"no answer in {LONGEST_S} s")
                part = os.read(self.child.stdout.fileno(), 1 << 20)
                if not part:
                    return self.fail("the process died")
                text += part
        except BrokenPipeError:
            return self.fail("the process died")
        return json.loads(text)

    def fail(self, why):
        self.close()
        return {"failed": why}

    def close(self):
        if self.child is not None:
            self.child.kill()
            self.child.communicate()
        self.child = None


def lines_of(path):
    """Yields a schema and its tests, each with its instance and whether that is valid."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            for group in json.loads(file.read_text()):
                schema = group["schema"]
                if "draft7" in path.name and isinstance(schema, dict):
                    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
                yield schema, [(test["data"], test["valid"]) for test in group["tests"]]
        return
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as lines:
        for line in map(json.loads, lines):
            yield line["schema"], [(test["data"], test["valid"]) if isinstance(test, dict) else test for test in line["tests"]]


def cases_of(paths, tokenizer):
    """Lines for an engine, each with (number of the test, whether it is valid) of its texts."""
    for schema, tests in (line for path in paths for line in lines_of(path)):
        texts = [(n, valid, text) for n, (data, valid) in enumerate(tests)
                 for text in dict.fromkeys(json.dumps(data, ensure_ascii=False, separators=s) for s in (None, (",", ":")))]
        try:
            line = {"schema": schema, "tests": [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for _, _, text in texts]}
        except UnicodeEncodeError:  # half of a surrogate pair, which no text of tokens can be
            continue
        yield line, [(n, valid) for n, valid, _ in texts]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def measure(engine, cases):
    count, compile_us, mask_us = collections.Counter(), [], []
    for line, tests in cases:
        count["schemas"] += 1
        result = engine.ask(line)
        if "tests" not in result:
            count["refused" if "refused" in result else "failed"] += 1
            continue
        compile_us.append(result["compile_us"])
        accepted, valid_tests = collections.defaultdict(bool), dict(tests)
        for (n, _), one in zip(tests, result["tests"], strict=True):
            accepted[n] |= one["accepts"]
            mask_us += one["mask_us"]
        rejected = sum(valid and not accepted[n] for n, valid in valid_tests.items())
        let_in = sum(not valid and accepted[n] for n, valid in valid_tests.items())
        count["valid rejected"] += rejected
        count["invalid accepted"] += let_in
        count["right"] += not rejected and not let_in
    engine.close()
    print(f"{engine.name}: " + ", ".join(f"{name} {count[name]}" for name in
                                         ("schemas", "right", "refused", "failed", "valid rejected", "invalid accepted")))
    print(f"  compile us: p50 {percentile(compile_us, .5):.0f}, p99 {percentile(compile_us, .99):.0f}, max {max(compile_us, default=0):.0f}")
    print(f"  mask us: mean {sum(mask_us) / max(1, len(mask_us)):.1f}, p50 {percentile(mask_us, .5):.1f}, "
          f"p99 {percentile(mask_us, .99):.0f}, max {max(mask_us, default=0):.0f} of {len(mask_us)} masks", flush=True)


def main():
    if sys.argv[1:] == ["--answer-lines"]:
        return answer_lines()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("data", nargs="+", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--vocab", type=int, default=65536)
    parser.add_argument("--eos", type=int, default=7)
    parser.add_argument("--llguidance", action="store_true")
    args = parser.parse_args()
    import tokenizers
    cases = list(cases_of(args.data, tokenizers.Tokenizer.from_file(args.tokenizer)))
    hello = {"tokenizer": args.tokenizer, "vocab": args.vocab, "eos": args.eos}
    measure(Engine([args.program], hello), cases)
    if args.llguidance:
        measure(Engine([sys.executable, __file__, "--answer-lines"], hello), cases)


if __name__ == "__main__":
    main()
