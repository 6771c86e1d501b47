"""lm-evaluation-harness over lfm2_stage (docs/evaluation.md).

    python3 -m lfm2_stage_eval --shards shards/ --ranks 4 --tasks my_task --include_path my_tasks/ [options of lm_eval run]

Registers the model class "lfm2_stage" and calls the harness's own command line: every option that is not one of these is passed on.
Each kind of request (loglikelihood, rolling, generate_until) is one start of the program, which shows its progress on stderr; its
files lie in a temporary folder, or stay in --work FOLDER.

Texts are cut into tokens as the harness does it for Hugging Face models: with the tokenizer's own special tokens, without them where
the text brings its BOS (chat templates do). Log-probabilities are sums in fp64 of what the program says for each token.
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

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"lfm2_stage_eval: {error}: expected lm-evaluation-harness, as in pip install lm-eval==0.4.13")

DEFAULT_NEW_TOKENS = 256  # the harness's own
# What a request may say beside its stop texts and its number of tokens: names of the harness's, and of a line of the program.
SAMPLING = {name: name for name in ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")}
SAMPLING["min_new_tokens"] = "min_tokens"
# Of transformers' generate(): with these values they change nothing.
NEUTRAL = {"num_beams": (1,), "num_return_sequences": (1,), "length_penalty": (1,), "early_stopping": (False,), "num_beam_groups": (1,),
           "no_repeat_ngram_size": (0,), "use_cache": (True, False), "typical_p": (1,)}


class EvalError(Exception):
    """What a user can mend: main prints its one line and ends with its code."""

    def __init__(self, message, code=1):
        super().__init__(f"lfm2_stage_eval: {message}")
        self.code = code


def found(program, option):
    """Where a program is: as given, beside this file as installed, in a build here, or by PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in ("", *(os.path.join(here, folder) for folder in ("../../../bin", "../build/cuda/bin", "../build/cpu/bin"))):
        path = os.path.normpath(os.path.join(folder, program))
        if os.sep in path and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    path = shutil.which(program)
    if path is None:
        raise EvalError(f"{program}: not found here or by PATH: expected it to be built (launch/demo.sh does it), or {option}", 66)
    return path


class Tool:
    """A `weights-tools tokenize` that stays open: a JSON line in, a JSON line out."""

    def __init__(self, program, folder, *options):
        self._process = subprocess.Popen([program, "tokenize", folder, "--threads", "1", *options], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def __call__(self, value):
        with contextlib.suppress(BrokenPipeError):  # its own line says why it ended
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise EvalError(f"weights-tools tokenize ended with {code}: its line is above", code)
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def read_json(path):
    """None where there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


@register_model("lfm2_stage")
class LFM2Stage(TemplateLM):
    """shards: folder. ranks: how many. launcher: a command that is put before the program and starts all of its ranks. program and
    tools: lfm2_stage and weights-tools. tokenizer: folder of the tokenizer, where the shards have none. options: further options of
    lfm2_stage, as one text. max_length: tokens that are used of a text, by default the model's positions. work: a folder that keeps
    requests and answers. The rest is what the harness tells every model, and means nothing here."""

    def __init__(self, shards, ranks=1, launcher=None, program=None, tools=None, tokenizer=None, options="", max_length=None, work=None,
                 device=None, batch_size=None, max_batch_size=None, trust_remote_code=None):
        super().__init__()
        program, tools = found(program or "lfm2_stage", "--program"), found(tools or "weights-tools", "--tools")
        self._environment = {**os.environ, "LFM2_STAGE": program}  # run.sh asks for it
        self._command = [*self._start(program, int(ranks), launcher), "--weights", shards, *shlex.split(options)]
        if tokenizer:
            self._command += ["--tokenizer", tokenizer]
        if sys.stderr.isatty() and "--progress" not in options:
            self._command += ["--progress", "on"]  # ranks see a pipe and not the terminal
        inspected = subprocess.run([tools, "inspect", shards, "--json"], stdout=subprocess.PIPE)
        if inspected.returncode != 0:
            raise EvalError(f"weights-tools inspect ended with {inspected.returncode}: its line is above", inspected.returncode)
        config = json.loads(inspected.stdout)["config"]
        self.max_length = int(max_length or config["max_position_embeddings"])
        self._text, self._tools, self._chat = tokenizer or shards, tools, None
        self._encode = Tool(tools, self._text, "--json")
        self._encode_plain = Tool(tools, self._text, "--json", "--no-special")
        self._decode = Tool(tools, self._text, "--json", "--decode")
        self._decode_plain = Tool(tools, self._text, "--json", "--decode", "--no-special")
        self._bos, self._eos = self._special_tokens(config)
        self._bos_text = self._decode([self.prefix_token_id])
        self._work, self._starts = work, 0

    @staticmethod
    def _start(program, ranks, launcher):
        """The command that precedes the program's options."""
        if launcher:
            words = shlex.split(launcher)
            if shutil.which(words[0]) is None:
                raise EvalError(f"--launcher {launcher}: {words[0]} is not found by PATH", 66)
            return [*words, program]
        run = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launch/run.sh")
        if os.access(run, os.X_OK):
            return [os.path.normpath(run), "-n", str(ranks)]
        return [found("mpirun", "--launcher"), "-np", str(ranks), "--bind-to", "none", program]

    def _special_tokens(self, config):
        """The ids that begin and end a text, None for what there is not: as transformers knows them, from the tokenizer's own file, and
        where that names neither from the model's."""
        file = read_json(os.path.join(self._text, "tokenizer_config.json")) or {}
        if not file.get("bos_token") and not file.get("eos_token"):
            eos = config.get("eos_token_id")
            return config.get("bos_token_id"), eos[0] if isinstance(eos, list) else eos
        ids = []
        for name in ("bos_token", "eos_token"):
            token = file.get(name)
            encoded = self._encode_plain(token["content"] if isinstance(token, dict) else token) if token else []
            ids.append(encoded[0] if len(encoded) == 1 else None)
        return ids

    @property
    def eot_token_id(self):
        return self._eos

    @property
    def prefix_token_id(self):
        prefix = self._eos if self._bos is None else self._bos
        if prefix is None:
            raise EvalError(f"{self._text}: neither a token that begins a text nor one that ends it, expected one of them", 65)
        return prefix

    @property
    def tokenizer_name(self):
        return os.path.abspath(self._text).replace("/", "__")

    def tok_encode(self, string, add_special_tokens=None, **_):
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._bos_text)
        return (self._encode if add_special_tokens else self._encode_plain)(string)

    def chat_template(self, chat_template=False):
        """The template's text, which the harness keeps beside results and caches of requests."""
        if isinstance(chat_template, str):
            raise EvalError(f"--apply_chat_template {chat_template}: expected no name, the model's own template is used", 64)
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._text, "chat_template.jinja"), encoding="utf-8") as file:
            return file.read()
        template = (read_json(os.path.join(self._text, "tokenizer_config.json")) or {}).get("chat_template", "")
        return template if isinstance(template, str) else json.dumps(template)

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        """Without a generation prompt the last message is the beginning of the answer, and the text ends within it."""
        self._chat = self._chat or Tool(self._tools, self._text, "--chat", "--render")
        if add_generation_prompt:
            return self._chat({"messages": chat_history})
        mark = "END OF THE BEGINNING "
        begun = [*chat_history[:-1], {**chat_history[-1], "content": chat_history[-1]["content"] + mark}]
        text = self._chat({"messages": begun, "chat_template_kwargs": {"add_generation_prompt": False}})
        end = text.rfind(mark.strip())
        if end < 0:
            raise EvalError(f"{self._text}: the chat template leaves out the beginning of an answer, which this task gives", 65)
        # A template that takes blanks away from the end of a message has taken the mark's.
        return text[:end] if text.startswith(mark, end) else text[:end].rstrip()

    def close(self):
        """Ends the tools. They end by themselves when this process does."""
        for tool in (self._encode, self._encode_plain, self._decode, self._decode_plain, self._chat):
            if tool is not None:
                tool.close()

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
            if self._work:
                command.append("--resume")  # what an evaluation has left that was stopped
            # stdout is the table; stderr has progress and errors, and goes where ours goes.
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self._environment)
            if done.returncode != 0:
                raise EvalError(f"{shlex.join(command)} ended with {done.returncode}: its line is above", done.returncode)
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
            if not context or not 1 <= len(continuation) <= self.max_length:
                raise EvalError(f"{len(continuation)} tokens to score after {len(context)} others: expected 1 to {self.max_length} after at "
                                "least one", 65)
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

    def _stops(self, until):
        """Texts that end an answer, and tokens: a special token is no text of the answer."""
        until = [until] if isinstance(until, str) else list(until or [])
        texts, tokens = [], [] if self._eos is None else [self._eos]
        for text in filter(None, until):
            ids = self._encode_plain(text)
            if self._decode_plain(ids) == text:
                texts.append(text)
            elif len(ids) == 1:
                tokens.append(ids[0])
            else:
                raise EvalError(f"until {json.dumps(text)}: holds a special token beside others, expected texts, or one special token", 65)
        return texts, list(dict.fromkeys(tokens))

    def _generation_line(self, context, options, number):
        """The line of a request, and the texts that end its answer. What it does not say is as in the model's generation_config.json."""
        options = {name: value for name, value in options.items() if value is not None}
        texts, tokens = self._stops(options.pop("until", None))
        limits = [options.pop(name, None) for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")]
        new_tokens = int(next((limit for limit in limits if limit is not None), DEFAULT_NEW_TOKENS))
        given = options.pop("temperature", None)
        sampled = options.pop("do_sample", given is not None and float(given) > 0)
        temperature = float(1.0 if given is None else given) if sampled else 0
        sampled = temperature > 0
        line = {"max_tokens": new_tokens, "temperature": temperature}
        seed = int(options.pop("seed", 0))
        if sampled:  # draws from one prompt with one seed are equal, and a task may repeat its requests
            line["seed"] = seed + number
        for name in [name for name in options if name in SAMPLING]:
            line[SAMPLING[name]] = options.pop(name)
        options = {name: value for name, value in options.items() if value not in NEUTRAL.get(name, ())}
        if options:
            raise EvalError(f"generation_kwargs {', '.join(sorted(options))}: not supported, expected until, max_gen_toks, do_sample, "
                            f"temperature, seed, {', '.join(SAMPLING)}", 65)
        room = self.max_length - new_tokens
        if room <= 0:
            raise EvalError(f"max_gen_toks {new_tokens}: expected fewer than the {self.max_length} tokens that a text may have", 65)
        prompt = self.tok_encode(context)[-room:] or [self.prefix_token_id]
        if texts:
            line["stop"] = texts
        return {"prompt": prompt, "stop_token_ids": tokens, **line}, texts

    def generate_until(self, requests, disable_tqdm=False):
        lines = [self._generation_line(*request.args, number) for number, request in enumerate(requests)]
        results = []
        for request, answer, (_, stops) in zip(requests, self._run([line for line, _ in lines]), lines, strict=True):
            text = answer["text"]
            for stop in stops:
                text = text.split(stop)[0]
            results.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return results


def main():
    parser = argparse.ArgumentParser(prog="python3 -m lfm2_stage_eval", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, epilog="lm_eval run --help: the harness's own")
    parser.add_argument("--shards", required=True, help="folder of shards")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--launcher", help="put before the program to start its ranks, as in 'srun --mpi=pmix -n 4'; default: mpirun")
    parser.add_argument("--program", help="lfm2_stage")
    parser.add_argument("--tools", help="weights-tools")
    parser.add_argument("--tokenizer", help="folder of the tokenizer, for shards that were split without it")
    parser.add_argument("--stage-options", dest="options", default="", help="further options of lfm2_stage, as in --stage-options='--dtype bf16'")
    parser.add_argument("--max-length", type=int, help="tokens that are used of a text; default: the model's positions")
    parser.add_argument("--work", help="folder that keeps requests and answers; a later call reuses the answers in it; all hosts must see it")
    ours, rest = parser.parse_known_args()
    arguments = json.dumps({name: value for name, value in vars(ours).items() if value is not None})

    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    sys.argv = ["lm_eval", "run", "--model", "lfm2_stage", "--model_args", arguments, *rest]
    setup_logging()
    harness = HarnessCLI()
    try:
        harness.execute(harness.parse_args())
    except EvalError as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        sys.exit(f"lfm2_stage_eval: {error}: expected names that lm_eval knows, or --include_path FOLDER with their .yaml files")


if __name__ == "__main__":
    main()
