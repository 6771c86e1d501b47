"""lm-evaluation-harness over lfm2_stage.

    python3 -m lfm2_stage_eval --shards shards/ --ranks 4 --tasks arc_easy --include_path my_tasks/ [options of lm_eval run]

Registers the model class "lfm2_stage" and calls the harness's own command line: every option that is not one of these is passed on.
Each kind of request (loglikelihood, rolling, generate_until) is one start of the program, which shows its progress on stderr; its
files lie in a temporary folder, or stay in --work FOLDER.

Tokens are cut as the harness does it for Hugging Face models: with the tokenizer's own special tokens, without them where the text
brings its BOS (chat templates do). Log-probabilities are sums in fp64 of what the program says for each token.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

DEFAULT_NEW_TOKENS = 256  # the harness's own


class Tool:
    """A weights-tools tokenize that stays open: a line in, a line out."""

    def __init__(self, program, folder, *options):
        self._process = subprocess.Popen([program, "tokenize", folder, "--threads", "1", *options], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def __call__(self, value):
        with contextlib.suppress(BrokenPipeError):  # its own line says why it ended
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"weights-tools tokenize ended with {self._process.wait()}; its message is above")
        return json.loads(line)


def found(program):
    """Beside this file as installed, in a build here, or by PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in ("../../bin", "../build/cuda/bin", "../build/cpu/bin"):
        path = os.path.normpath(os.path.join(here, folder, program))
        if os.access(path, os.X_OK):
            return path
    return shutil.which(program) or program


@register_model("lfm2_stage")
class LFM2Stage(TemplateLM):
    """shards: folder. ranks: of mpirun. launcher: a command that is put before the program instead of mpirun's. program and tools:
    lfm2_stage and weights-tools. options: further options of lfm2_stage, as one text. max_length: tokens that are used of a text, by
    default the model's positions. work: a folder that keeps requests and answers."""

    def __init__(self, shards, ranks=1, launcher=None, program=None, tools=None, options="", max_length=None, work=None, **_):
        super().__init__()
        program, tools = program or found("lfm2_stage"), tools or found("weights-tools")
        launcher = launcher or f"mpirun -np {int(ranks)} --bind-to none"
        self._command = [*shlex.split(launcher), program, "--weights", shards, *shlex.split(options)]
        self._encode = Tool(tools, shards, "--json")
        self._encode_plain = Tool(tools, shards, "--json", "--no-special")
        self._decode = Tool(tools, shards, "--json", "--decode")
        self._chat, self._tools, self._shards = None, tools, shards
        config = json.loads(subprocess.run([tools, "inspect", shards, "--json"], check=True, stdout=subprocess.PIPE).stdout)["config"]
        eos = config["eos_token_id"]
        self._eos = eos[0] if isinstance(eos, list) else eos
        self._bos = config.get("bos_token_id")
        self._bos_text = self._decode([self.prefix_token_id])
        self.max_length = int(max_length or config["max_position_embeddings"])
        self._work, self._starts = work, 0

    @property
    def eot_token_id(self):
        return self._eos

    @property
    def prefix_token_id(self):
        return self._eos if self._bos is None else self._bos

    @property
    def tokenizer_name(self):
        return os.path.abspath(self._shards).replace("/", "__")

    def tok_encode(self, string, add_special_tokens=None, **_):
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._bos_text)
        return (self._encode if add_special_tokens else self._encode_plain)(string)

    def chat_template(self, chat_template=False):
        """The harness keeps this text beside its caches of requests."""
        path = os.path.join(self._shards, "chat_template.jinja")
        with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
            return file.read()
        return ""

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        if not add_generation_prompt:
            raise NotImplementedError("lfm2_stage_eval: tasks that begin the answer themselves (gen_prefix) cannot use a chat template")
        self._chat = self._chat or Tool(self._tools, self._shards, "--chat", "--render")
        return self._chat({"messages": chat_history})

    def _run(self, lines, *options):
        """Starts the program once over all lines, and gives their answers in the same order."""
        if not lines:
            return []
        with contextlib.ExitStack() as stack:
            folder = self._work or stack.enter_context(tempfile.TemporaryDirectory(prefix="lfm2_stage_eval-"))
            os.makedirs(folder, exist_ok=True)
            self._starts += 1
            stem = os.path.join(folder, f"{self._starts}-{'score' if '--score' in options else 'generate'}")
            requests, answers = f"{stem}-requests.jsonl", f"{stem}-answers.jsonl"
            with open(requests, "w", encoding="utf-8") as file:
                for number, line in enumerate(lines):
                    file.write(json.dumps({"id": number, **line}) + "\n")
            command = [*self._command, "--input", requests, "--output", answers, *options]
            # stdout is the table; stderr has progress and errors, and goes where ours goes.
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}; its message is above")
            results = [None] * len(lines)
            with open(answers, encoding="utf-8") as file:
                for line in file:
                    answer = json.loads(line)
                    results[answer["id"]] = answer
        return results

    def _score(self, pairs):
        """pairs: (context ids, continuation ids). Too long ones lose their beginning, as in the harness."""
        lines = []
        for context, continuation in pairs:
            assert context and continuation and len(continuation) <= self.max_length
            whole = (context + continuation)[-(self.max_length + 1):]
            lines.append({"input_ids": whole[:-len(continuation)], "target": continuation})
        return [(answer["sum_logprob"], all(answer["is_greedy"])) for answer in self._run(lines, "--score")]

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_):
        results = self._score([(context, continuation) for _, context, continuation in requests])
        for (key, _, _), result in zip(requests, results, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
        return results

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        windows, owners = [], []
        for number, (text,) in enumerate(request.args for request in requests):
            for window in get_rolling_token_windows(token_list=self.tok_encode(text), prefix_token=self.prefix_token_id,
                                                    max_seq_len=self.max_length, context_len=1):
                windows.append(make_disjoint_window(window))
                owners.append(number)
        sums = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._score(windows), strict=True):
            sums[owner] += value
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests, disable_tqdm=False):
        lines, stops = [], []
        for context, options in (request.args for request in requests):
            options = dict(options)
            until = options.pop("until", None) or []
            until = [until] if isinstance(until, str) else list(until)
            limits = [options.pop(name, None) for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")]
            new_tokens = next((limit for limit in limits if limit is not None), DEFAULT_NEW_TOKENS)
            sampled = options.pop("do_sample", options.get("temperature", 0) > 0)
            line = {"max_tokens": new_tokens, "temperature": options.pop("temperature", 1.0) if sampled else 0}
            for name in ("top_p", "top_k", "min_p", "repetition_penalty", "seed"):
                if name in options:
                    line[name] = options.pop(name)
            if options:
                raise ValueError(f"lfm2_stage_eval: unknown options of generate_until: {sorted(options)}")
            if until:
                line["stop"] = [text for text in until if text]
            room = self.max_length - new_tokens
            if room <= 0:
                raise ValueError(f"lfm2_stage_eval: {new_tokens} new tokens leave no room for a prompt in {self.max_length}")
            lines.append({"prompt": self.tok_encode(context)[-room:], **line})
            stops.append(until)
        results = []
        for request, answer, until in zip(requests, self._run(lines, "--generation-config", "none"), stops, strict=True):
            text = answer["text"]
            for stop in filter(None, until):
                text = text.split(stop)[0]
            results.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return results


def main():
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    parser = argparse.ArgumentParser(prog="python3 -m lfm2_stage_eval", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", required=True, help="folder of shards, with a tokenizer")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--launcher", help="put before the program instead of mpirun -np RANKS, e.g. 'srun --mpi=pmix -n 4'")
    parser.add_argument("--program", help="lfm2_stage")
    parser.add_argument("--tools", help="weights-tools")
    parser.add_argument("--stage-options", dest="options", default="", help="further options of lfm2_stage, as one argument")
    parser.add_argument("--max-length", type=int, help="tokens that are used of a text; default: the model's positions")
    parser.add_argument("--work", help="folder that keeps requests and answers")
    ours, rest = parser.parse_known_args()
    arguments = json.dumps({name: value for name, value in vars(ours).items() if value is not None})
    sys.argv = ["lm_eval", "run", "--model", "lfm2_stage", "--model_args", arguments, *rest]
    setup_logging()
    harness = HarnessCLI()
    harness.execute(harness.parse_args())


if __name__ == "__main__":
    # So that the class that is registered is the one of the module, and not a second one of __main__.
    import lfm2_stage_eval

    lfm2_stage_eval.main()
