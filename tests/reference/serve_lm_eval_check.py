#!/usr/bin/env python3
"""serve_lm_eval_check.py LFM2_STAGE WEIGHTS_TOOLS [--no-echo]: lm-evaluation-harness's own clients, unchanged, with lfm2_stage serve.

Runs the tasks of tests/evaluation on the trained model of tests/golden/kjv-moe in fp32 as `lm_eval --model local-completions` (with the
model's tokenizer, and with the server's as far as the harness knows how to ask for it) and `--model local-chat-completions` do, and through
python/lfm2_stage_eval.py, which needs no server. Log-likelihoods, whether they were the top-1 tokens, texts and figures must be the same, to the
bit. The client never asks for as many tokens as the model has positions: the class gets the same windows by max_length.
Needs what lm_eval_check.py does, and the harness's clients; some minutes:

    python3 -m venv /tmp/lme && /tmp/lme/bin/pip install 'lm-eval[api]==0.4.13' torch transformers==5.17.0
    /tmp/lme/bin/python tests/reference/serve_lm_eval_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import argparse
import os
import pathlib
import tempfile

from lm_eval_check import CHAT, MODEL, PLAIN, TASKS, answers, without_bos
from lfm2_stage_eval import LFM2Stage
from running_server import Server, split

import lm_eval
from lm_eval.tasks import TaskManager

POSITIONS = 1024
WINDOW = POSITIONS - 2  # what the client reads of a text that is too long: two tokens fewer than fit, as it lets one be generated
TEXTS = ("kjv_beginnings", "kjv_verses", "kjv_begun_verses")
# A chat goes to the server as it is: its client drops stop texts beyond four, and shortens nothing (two of kjv_beginnings are too long).
FOUR = {"until": [",", ".", ";", "\n"]}


def evaluate(model, tasks, chat, arguments=None, **more):
    return lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=tasks, task_manager=TaskManager(include_path=str(TASKS)),
                                   apply_chat_template=chat, log_samples=True, bootstrap_iters=0, **more)


def compare(name, found, expected, same_arguments=True):
    likelihoods, texts, figures = 0, 0, 0
    for (where, arguments, own), (other_place, other_arguments, other) in zip(answers(found), answers(expected), strict=True):
        assert where == other_place and (arguments == other_arguments or not same_arguments), (where, arguments, other_arguments)
        own, other = (list(one) if isinstance(one, tuple) else one for one in (own, other))
        assert own == other, f"{name}: {where}: {own!r}, without a server {other!r}, of {arguments}"
        texts += isinstance(own, str)
        likelihoods += not isinstance(own, str)
    assert likelihoods + texts > 0, f"{name}: no requests"
    for task, values in expected["results"].items():
        for figure, value in values.items():
            if isinstance(value, float) and "stderr" not in figure:
                own = found["results"][task][figure]
                assert own == value, f"{name}: {task} {figure}: {own}, without a server {value}"
                figures += 1
                print(f"    {task} {figure.split(',')[0]}: {own:.6g}")
    print(f"{name}: {likelihoods} log-likelihoods, {texts} texts and {figures} figures are equal", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=os.path.abspath)
    parser.add_argument("tools", type=os.path.abspath)
    parser.add_argument("--no-echo", action="store_true", help="texts alone: for servers without log-probabilities of prompts")
    arguments = parser.parse_args()
    os.chdir(TASKS)  # the tasks' files are named from here
    os.environ["OPENAI_API_KEY"] = "-"

    def chosen(tasks):
        return [task for task in tasks if task in TEXTS or not arguments.no_echo]

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model in (MODEL, without_bos(folder / "without-bos")):
            shards = folder / f"{model.name}-shards"
            split(arguments.tools, model, shards)
            server = Server(arguments.stage, shards, folder, model.name)
            ours = LFM2Stage(shards=str(shards), ranks=2, program=arguments.stage, tools=arguments.tools, options="--dtype fp32 --device cpu",
                             max_length=WINDOW)
            common = {"model": shards.name, "max_length": POSITIONS, "max_retries": 1, "num_concurrent": 4}
            completions = {**common, "base_url": f"{server.url}/v1/completions", "tokenizer": str(model), "tokenizer_backend": "huggingface"}
            if model == MODEL:
                plain = evaluate(ours, chosen(PLAIN), False)
                compare("local-completions", evaluate("local-completions", chosen(PLAIN), False, {**completions, "add_bos_token": True}), plain)
                one = {**completions, "add_bos_token": True, "num_concurrent": 1, "batch_size": 4}
                compare("local-completions, four prompts a request", evaluate("local-completions", chosen(PLAIN), False, one), plain)
                compare("local-completions, chat template", evaluate("local-completions", chosen(CHAT), True, completions),
                        evaluate(ours, chosen(CHAT), True))
                chats = {"kjv_beginnings": list(range(39)), "kjv_verses": list(range(10))}
                compare("local-chat-completions",
                        evaluate("local-chat-completions", list(chats), True, {**common, "base_url": f"{server.url}/v1/chat/completions"}, samples=chats,
                                 gen_kwargs=FOUR),
                        evaluate(ours, list(chats), True, samples=chats, gen_kwargs=FOUR), same_arguments=False)
            else:  # the harness asks the server's tokenizer for plain tokens, without those that begin a text
                remote = {**common, "base_url": f"{server.url}/v1/completions", "tokenizer_backend": "remote"}
                compare("local-completions, the server's tokenizer", evaluate("local-completions", chosen(PLAIN), False, remote),
                        evaluate(ours, chosen(PLAIN), False))
            ours.close()
            assert server.end() == 0
    print(f"lm-eval {lm_eval.__version__}: VALID")


if __name__ == "__main__":
    main()
