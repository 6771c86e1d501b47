"""The model class of lm-evaluation-harness without the harness: which lines the program is given, and what becomes of its answers.

stage_eval_test.py WEIGHTS_TOOLS: a stub stands for the harness, and a script for mpirun with the program, which scores a token by its
own number and answers with a text of the prompt's length. (tests/reference/lm_eval_check.py compares with the harness's own models.)
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

TOOLS = os.path.abspath(sys.argv[1])
TESTS = pathlib.Path(__file__).resolve().parents[1]
MODEL = TESTS / "golden/kjv-moe"
BOS, EOS, MESSAGE_END = 1, 2, 4


def stub_harness():
    """The names that the module asks for, with as much behind them as it uses."""
    class TemplateLM:
        def __init__(self):
            self.cache_hook = types.SimpleNamespace(add_partial=lambda kind, key, value: CACHED.append((kind, key, value)))

    modules = {name: types.ModuleType(name) for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry", "lm_eval.utils")}
    modules["lm_eval.api.model"].TemplateLM = TemplateLM
    modules["lm_eval.api.registry"].register_model = lambda name: lambda kind: kind

    def windows(token_list, prefix_token, max_seq_len, context_len):  # without any overlap: the harness's own rule is not tested here
        for begin in range(0, len(token_list), max_seq_len):
            yield [prefix_token], token_list[begin:begin + max_seq_len]
    modules["lm_eval.utils"].get_rolling_token_windows = windows
    modules["lm_eval.utils"].make_disjoint_window = lambda pair: pair
    sys.modules.update(modules)


CACHED = []
stub_harness()
sys.path[:0] = [str(TESTS.parent / "python"), str(pathlib.Path(__file__).parent)]
from lfm2_stage_eval import EvalError, LFM2Stage  # noqa: E402

LAUNCHER = """#!/usr/bin/env python3
import json, sys
options = sys.argv[2:]
value = lambda name: options[options.index(name) + 1]
with open(value("--input")) as requests, open(value("--output"), "w") as answers:
    open(value("--weights") + "/options.json", "w").write(json.dumps(sys.argv[1:]))
    lines = [json.loads(line) for line in requests]
    if any(line.get("target") == [7] for line in lines):
        sys.exit(75)
    for line in reversed(lines):
        if "--score" in options:
            answer = {"sum_logprob": -float(sum(line["target"])), "is_greedy": [id % 2 == 0 for id in line["target"]]}
        else:
            answer = {"text": "x" * len(line["prompt"]) + ", y. z"}
        answers.write(json.dumps({"id": line["id"], **answer}) + "\\n")
"""


def request(*arguments):
    return types.SimpleNamespace(args=arguments)


class StageEvalTest(unittest.TestCase):
    def setUp(self):
        CACHED.clear()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.shards = self.folder / "shards"
        shutil.copytree(MODEL, self.shards, ignore=shutil.ignore_patterns("*.h5", "*.jsonl"))
        self.launcher = self.folder / "launcher.py"
        self.launcher.write_text(LAUNCHER)
        self.launcher.chmod(0o755)

    def model(self, **more):
        model = LFM2Stage(**{"shards": str(self.shards), "launcher": f"{sys.executable} {self.launcher}", "program": TOOLS, "tools": TOOLS,
                             "work": str(self.folder / "work"), **more})
        self.addCleanup(model.close)
        return model

    def lines(self, stem):
        """What the program was given, without the numbers of the lines, which must be in order."""
        lines = [json.loads(line) for line in (self.folder / f"work/{stem}-requests.jsonl").read_text().splitlines()]
        self.assertEqual([line.pop("id") for line in lines], list(range(len(lines))))
        return lines

    def test_special_tokens_of_the_tokenizer(self):
        model = self.model()
        self.assertEqual((model.prefix_token_id, model.eot_token_id, model.max_length), (BOS, EOS, 1024))
        for text in ("", "In the beginning", "é 日本\n"):
            plain = model.tok_encode(text, add_special_tokens=False)
            self.assertEqual(model.tok_encode(text), [BOS, *plain])
            self.assertEqual(model.tok_encode("<|startoftext|>" + text), [BOS, *plain])  # not twice
        file = self.shards / "tokenizer_config.json"
        file.write_text('{"eos_token": {"content": "<|im_end|>"}}')  # as transformers writes it, too
        self.assertEqual((self.model().prefix_token_id, self.model().eot_token_id), (MESSAGE_END, MESSAGE_END))
        file.unlink()
        self.assertEqual((self.model().prefix_token_id, self.model().eot_token_id), (BOS, EOS))  # the configuration's

    def test_scores(self):
        model = self.model(max_length=4, options="--dtype bf16", device="cuda:0")  # the harness tells every model of a device
        requests = [(("a", "b"), [5, 6], [10]), ((None), [5], [2, 3]), (("c", "d"), [1, 2, 3, 4, 5], [6, 8, 10])]
        self.assertEqual(model._loglikelihood_tokens(requests), [(-10.0, True), (-5.0, False), (-24.0, True)])
        # One token more than the model reads: the last one is never read. The beginning is lost.
        self.assertEqual(self.lines("1-score"), [{"input_ids": [5, 6], "target": [10]}, {"input_ids": [5], "target": [2, 3]},
                                                 {"input_ids": [4, 5], "target": [6, 8, 10]}])
        self.assertEqual(CACHED, [("loglikelihood", ("a", "b"), (-10.0, True)), ("loglikelihood", ("c", "d"), (-24.0, True))])
        options = json.loads((self.shards / "options.json").read_text())
        self.assertEqual(options[:6], [TOOLS, "--weights", str(self.shards), "--dtype", "bf16", "--input"])
        self.assertEqual(options[-2:], ["--score", "--resume"])
        for context, target in (([], [1]), ([1], []), ([1], [1, 2, 3, 4, 5])):
            with self.assertRaisesRegex(EvalError, "expected 1 to 4 after at least one"):
                model._loglikelihood_tokens([((None), context, target)])
        self.assertEqual(model._loglikelihood_tokens([]), [])

    def test_rolling_sums_belong_to_their_texts(self):
        model = self.model(max_length=3)
        texts = ["And it came to pass", "", "Amen. Amen. Amen."]
        ids = [model.tok_encode(text) for text in texts]
        self.assertGreater(max(map(len, ids)), 3)
        self.assertEqual(model.loglikelihood_rolling([request(text) for text in texts]), [-float(sum(each)) for each in ids])
        self.assertTrue(all(line["input_ids"] == [BOS] and len(line["target"]) <= 3 for line in self.lines("1-score")))
        self.assertEqual([kind for kind, _, _ in CACHED], ["loglikelihood_rolling"] * 3)

    def test_lines_of_generation(self):
        model = self.model()
        ids = model.tok_encode("Amen")
        for options, line in (
                ({}, {"max_tokens": 256, "temperature": 0}),
                ({"until": ["\n", "", "<|im_end|>"], "max_gen_toks": 5}, {"max_tokens": 5, "temperature": 0, "stop": ["\n"], "stop_token_ids": [EOS, MESSAGE_END]}),
                ({"until": ".", "max_new_tokens": 7, "do_sample": False, "temperature": 0.7}, {"max_tokens": 7, "temperature": 0, "stop": ["."]}),
                ({"until": None, "temperature": 0.7, "top_p": 0.5, "top_k": None}, {"max_tokens": 256, "temperature": 0.7, "top_p": 0.5, "seed": 0}),
                ({"do_sample": True, "temperature": 0.0, "num_beams": 1, "use_cache": True}, {"max_tokens": 256, "temperature": 0}),
                ({"do_sample": False, "num_beams": 1, "length_penalty": 1.0}, {"max_tokens": 256, "temperature": 0}),
                ({"do_sample": True, "seed": 40, "min_new_tokens": 2}, {"max_tokens": 256, "temperature": 1, "seed": 40, "min_tokens": 2})):
            self.assertEqual(model._generation_line("Amen", options, 0)[0], {"prompt": ids, "stop_token_ids": [EOS], **line})
        self.assertEqual([model._generation_line("", {"temperature": 1}, number)[0]["seed"] for number in (0, 3)], [0, 3])
        # The prompt keeps its end, and is never empty.
        long = model._generation_line("Amen. " * 1024, {"max_gen_toks": 1000}, 0)[0]["prompt"]
        self.assertEqual(long, model.tok_encode("Amen. " * 1024)[-24:])
        (self.shards / "tokenizer.json").write_text(json.dumps({**json.loads((MODEL / "tokenizer.json").read_text()), "post_processor": None}))
        self.assertEqual(self.model()._generation_line("", {}, 0)[0]["prompt"], [BOS])
        for options, message in (({"num_beams": 4, "max_length": 3}, "generation_kwargs max_length, num_beams: not supported, expected until"),
                                 ({"max_gen_toks": 1024}, "max_gen_toks 1024: expected fewer than the 1024 tokens"),
                                 ({"until": ["<|im_end|>\n"]}, "holds a special token beside others")):
            with self.assertRaisesRegex(EvalError, message):
                model._generation_line("Amen", options, 0)

    def test_generated_texts_end_before_their_stops(self):
        model = self.model()
        requests = [request("Amen", {"until": until}) for until in ([], [".", ","], "z")]
        x = "x" * len(model.tok_encode("Amen"))
        expected = [f"{x}, y. z", x, f"{x}, y. "]
        self.assertEqual(model.generate_until(requests), expected)
        self.assertEqual(CACHED, [("generate_until", one.args, text) for one, text in zip(requests, expected)])
        self.assertNotIn("--score", json.loads((self.shards / "options.json").read_text()))

    def test_conversations(self):
        model = self.model()
        said = [{"role": "user", "content": "hi"}]
        text = "<|startoftext|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(model.apply_chat_template(said), text)
        begun = [*said, {"role": "assistant", "content": "And the "}]
        self.assertEqual(model.apply_chat_template(begun, add_generation_prompt=False), text + "And the ")
        self.assertEqual(begun[1]["content"], "And the ")
        self.assertEqual(model.chat_template(True), (MODEL / "chat_template.jinja").read_text())
        with self.assertRaisesRegex(EvalError, "--apply_chat_template tool_use: expected no name"):
            model.chat_template("tool_use")
        template = self.shards / "chat_template.jinja"
        template.write_text("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
        self.assertEqual(self.model().apply_chat_template(begun, add_generation_prompt=False), "[hi][And the")
        template.write_text("nothing")
        with self.assertRaisesRegex(EvalError, "leaves out the beginning of an answer"):
            self.model().apply_chat_template(begun, add_generation_prompt=False)
        template.unlink()
        (self.shards / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}!"}')
        self.assertEqual(self.model().chat_template(True), "{{ messages[0].content }}!")
        self.assertEqual(self.model().apply_chat_template(said), "hi!")

    def test_what_is_missing(self):
        for more, message in (({"program": "/nowhere/lfm2_stage"}, "/nowhere/lfm2_stage: not found .* or --program"),
                              ({"tools": "no-such-tools"}, "no-such-tools: not found .* or --tools"),
                              ({"launcher": "no-such-srun -n 4"}, "--launcher no-such-srun -n 4: no-such-srun is not found"),
                              ({"shards": str(self.folder / "none")}, "weights-tools inspect ended with 66: its line is above")):
            with self.assertRaisesRegex(EvalError, message) as caught:
                self.model(**more)
            self.assertEqual(caught.exception.code, 66)
        model = self.model()
        with self.assertRaisesRegex(EvalError, "--score --resume ended with 75: its line is above") as caught:
            model._loglikelihood_tokens([(None, [1], [7])])
        self.assertEqual(caught.exception.code, 75)

    def test_without_the_harness(self):
        blocked = self.folder / "blocked/lm_eval"
        blocked.mkdir(parents=True)
        (blocked / "__init__.py").write_text("raise ImportError('No module named lm_eval')")
        done = subprocess.run([sys.executable, "-m", "lfm2_stage_eval", "--shards", "x"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": f"{blocked.parent}:{TESTS.parent / 'python'}"})
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("expected lm-evaluation-harness, as in pip install lm-eval", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
