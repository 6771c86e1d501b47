#!/usr/bin/env python3
"""lm_eval_check.py LFM2_STAGE WEIGHTS_TOOLS: lm-evaluation-harness over lfm2_stage against its own --model hf.

Both run the tasks of tests/evaluation on the trained model of tests/golden/kjv-moe in fp32, with and without its chat template, and on
a copy of it whose tokenizer adds no token that begins a text. Compared are the log-likelihood of every request (by token within 1e-4)
and whether it was the top-1 token, all texts that were generated, and all figures of the tasks; then the log-probability of every scored
token with transformers' own, and the same bits for 1, 2 and 4 ranks. Once more in bf16, where only the figures are looked at.
Needs lm-eval, torch and transformers; ten minutes of processor time, most of them of transformers:

    python3 -m venv /tmp/lme && /tmp/lme/bin/pip install lm-eval==0.4.13 torch transformers==5.17.0 accelerate
    /tmp/lme/bin/python tests/reference/lm_eval_check.py build/cpu/bin/lfm2_stage build/cpu/bin/weights-tools
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(ROOT / "python"))

import lm_eval  # noqa: E402
import torch  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from lfm2_stage_eval import LFM2Stage  # noqa: E402

TASKS = ROOT / "tests/evaluation"
MODEL = ROOT / "tests/golden/kjv-moe"
PLAIN, CHAT = ["kjv_choices", "kjv_texts", "kjv_beginnings"], ["kjv_choices", "kjv_beginnings", "kjv_verses", "kjv_begun_verses"]
TOLERANCE = 1e-4  # of a token's log-probability
FIGURES = 1e-4    # of a task's figure, relative


def without_bos(folder):
    """A copy of the model whose tokenizer puts nothing in front of a text."""
    shutil.copytree(MODEL, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def evaluate(model, tasks, chat):
    return lm_eval.simple_evaluate(model=model, tasks=tasks, task_manager=TaskManager(include_path=str(TASKS)), apply_chat_template=chat,
                                   log_samples=True, bootstrap_iters=0)


def answers(results):
    """(task, document, request) and what the model answered, in one order for all models."""
    for task in sorted(results["samples"]):
        for sample in sorted(results["samples"][task], key=lambda one: one["doc_id"]):
            for request, (arguments, answer) in enumerate(zip(sample["arguments"], sample["resps"], strict=True)):
                yield (task, sample["doc_id"], request), arguments, answer[0]


def compare(name, ours, theirs, encode):
    """Ends the script where the results differ by more than rounding."""
    worst, requests, texts = 0.0, 0, 0
    for (where, arguments, own), (other_place, other_arguments, other) in zip(answers(ours), answers(theirs), strict=True):
        assert (where, arguments) == (other_place, other_arguments), (where, arguments, other_arguments)
        if isinstance(own, str):
            texts += 1
            assert own == other, f"{name}: {where}: {own!r}, transformers {other!r}, of {arguments}"
            continue
        value, greedy = own if isinstance(own, (list, tuple)) else (own, None)
        expected, expected_greedy = other if isinstance(other, (list, tuple)) else (other, None)
        tokens = max(1, len(encode(arguments[-1])))
        requests += 1
        worst = max(worst, abs(value - expected) / tokens)
        assert greedy == expected_greedy, f"{name}: {where}: {greedy}, transformers {expected_greedy}, of {arguments}"
        assert abs(value - expected) <= TOLERANCE * tokens, f"{name}: {where}: {value}, transformers {expected}, of {tokens} tokens: {arguments}"
    assert requests + texts > 0, f"{name}: no requests"
    figures = 0
    for task, values in theirs["results"].items():
        for figure, value in values.items():
            if isinstance(value, float) and "stderr" not in figure:
                found = ours["results"][task][figure]
                assert abs(found - value) <= FIGURES * abs(value), f"{name}: {task} {figure}: {found}, transformers {value}"
                figures += 1
                print(f"    {task} {figure.split(',')[0]}: {found:.6g}")
    print(f"{name}: {requests} log-likelihoods differ by at most {worst:.1e} a token, {texts} texts and {figures} figures are equal")


@torch.inference_mode()
def compare_tokens(name, work, model):
    """The log-probability of every scored token, on the very ids that the program was given."""
    worst = tokens = 0
    for requests in sorted(work.glob("*score-requests.jsonl")):
        given = [json.loads(line) for line in requests.read_text().splitlines()]
        found = [json.loads(line) for line in requests.with_name(requests.name.replace("requests", "answers")).read_text().splitlines()]
        for line, answer in zip(given, found, strict=True):
            target = torch.tensor(line["target"])
            ids = torch.tensor(line["input_ids"] + line["target"][:-1])
            logits = model(ids[None], use_cache=False).logits[0, -len(target):].double()
            exact = logits.log_softmax(-1).gather(1, target[:, None])[:, 0]
            difference = (exact - torch.tensor(answer["logprobs"], dtype=torch.float64)).abs().max().item()
            assert difference <= TOLERANCE, f"{name}: a token differs by {difference}: {line}"  # here, because max passes over NaN
            worst = max(worst, difference)
            tokens += len(target)
    assert tokens > 0, f"{name}: no tokens"
    print(f"{name}: {tokens} log-probabilities of tokens differ by at most {worst:.1e}")


def main():
    stage, tools = (os.path.abspath(path) for path in sys.argv[1:3])
    os.chdir(TASKS)  # the tasks' files are named from here
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def ours(shards, ranks, work=None, dtype="fp32"):
            return LFM2Stage(shards=str(shards), ranks=ranks, program=stage, tools=tools, options=f"--dtype {dtype} --device cpu", work=work)

        for model, ranks, runs in ((MODEL, (1, 2, 4), (False, True)), (without_bos(folder / "without-bos"), (2,), (False,))):
            shards = folder / f"{model.name}-shards"
            subprocess.run([tools, "split", model, "--stages", "4", "--out", shards, "-q"], check=True)
            hf = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=1)
            for chat in runs:
                tasks = CHAT if chat else PLAIN
                theirs = evaluate(hf, tasks, chat)
                first = None
                for count in ranks:
                    what = f"{model.name}{', chat template' if chat else ''}, {count} ranks"
                    work = folder / f"{model.name}-{chat}-{count}"
                    mine = ours(shards, count, str(work))
                    results = evaluate(mine, tasks, chat)
                    if first is None:
                        compare(what, results, theirs, lambda text: hf.tok_encode(text, add_special_tokens=False))
                        compare_tokens(what, work, hf.model)
                        first = results
                    assert list(answers(results)) == list(answers(first)), f"{what}: other bits"
                    assert mine._starts == len({kind for _, kind in kinds(results)}), f"{what}: {mine._starts} starts"
                print(f"{model.name}: the same bits for {', '.join(map(str, ranks))} ranks")
        results = evaluate(ours(folder / "kjv-moe-shards", 2, dtype="bf16"), PLAIN, False)
        expected = evaluate(HFLM(pretrained=str(MODEL), dtype="bfloat16", device="cpu", batch_size=1), ["kjv_texts"], False)
        pair = [one["results"]["kjv_texts"]["byte_perplexity,none"] for one in (results, expected)]
        assert abs(pair[0] / pair[1] - 1) < 0.01, f"bf16: byte_perplexity {pair[0]}, transformers {pair[1]}"
        print(f"bf16: byte_perplexity {pair[0]:.5f}, transformers {pair[1]:.5f}")
    print("VALID")


def kinds(results):
    """The kinds of requests of an evaluation: each is one start of the program."""
    for task, config in results["configs"].items():
        yield task, "loglikelihood" if config["output_type"] == "multiple_choice" else config["output_type"]


if __name__ == "__main__":
    main()
