#!/usr/bin/env python3
"""Names that were retired: none of them comes back into code, scripts or documents. The glossary says what each thing is called now.

Ends with 1 and the places where one is found. A name enters this list in the commit that renames it.
"""
import pathlib, re, sys

# Maps a retired name to what it is called now. Names are whole words, in all files below; a trailing * stands for the
# rest of the word.
RETIRED = {
    "AnswerBuilder": "ResponseBuilder",
    "AnswerFacts": "ResponseFacts",
    "AnswerForm": "ResponseForm",
    "AnswerShape": "ResponseShape",
    "as_product_weight": "prepacked",
    "batch_answer": "batch_response",
    "choose_item": "choose_transfer_size",
    "cut_tails": "prune_tokens",
    "cuts_tails": "prunes_tokens",
    "EmbeddingAnswer": "EmbeddingResponse",
    "error_answer": "error_response",
    "gemm_few_rows*": "gemm_skinny",
    "gemm_planes*": "gemm_bf16x3",
    "gets_tails": "starts_pruned",
    "give_registers": "setmaxnreg_dec",
    "H5Answers": "H5Reference",
    "kActionsOfItem": "kActionsOfMicroBatch",
    "kItemRowBytes": "kTransferRowBytes",
    "kItemTokens": "kTransferTokens",
    "kLargest*": "kMax*",
    "kLongest*": "kMax*",
    "kMaxItemBytes": "kMaxTransferBytes",
    "kMost*": "kMax*",
    "kSlots": "kBuffers",
    "largest_rows": "max_rows",
    "leave_to_transfers": "reserve_sms",
    "let_next_start": "pdl_trigger",
    "LFM2_FAKE_AMX_TESTS": "LFM2_STAND_IN_TESTS",
    "lfm2_options": "lfm2_compile_flags",
    "likeliest_of": "top_logprobs_of",
    "link test": "link measurement",
    "link_test": "link_speed",
    "LinkTest": "LinkMeasurement",
    "longest_chunk": "max_chunk",
    "longest_doctor_seconds": "max_doctor_seconds",
    "longest_refusal_seconds": "max_refusal_seconds",
    "look_for_taken_back": "release_cancelled",
    "make_plan": "MicroBatches",
    "measure_stage": "stage_memory",
    "measure_stage_cost": "measure_stage_time",
    "ModelAnswers": "ModelInfo",
    "most_array_bytes": "max_array_bytes",
    "most_buffers": "max_buffers",
    "most_new": "max_new",
    "most_new_tokens": "max_new_tokens",
    "most_parts": "max_parts",
    "most_records": "max_records",
    "most_sequences": "max_sequences",
    "most_tokens": "max_tokens",
    "most_words": "max_words",
    "norms_in_passing": "fuses_norm",
    "on_item": "on_micro_batch",
    "open_answers": "open_reference",
    "OpenAnswer": "PendingResponse",
    "plain_answer": "plain_response",
    "prefers_few_rows": "prefers_skinny",
    "prompt_alone": "prefill_only",
    "put_in_order": "prepack",
    "put_in_tiles": "prepack",
    "rows_normed_in_passing": "max_fused_norm_rows",
    "RowTaker": "RowConsumer",
    "RunItem": "RunUnit",
    "slot_index": "buffer_index",
    "StageCost": "StageMemory",
    "StageCostModel": "StageTime",
    "step_compute": "step_runner",
    "StepCompute": "StepRunner",
    "take_finished": "pop_finished",
    "take_registers": "setmaxnreg_inc",
    "take_up": "leave_out_finished",
    "taken_back": "cancelled",
    "TileWalk": "TileScheduler",
    "wait_for_free_slot": "wait_for_free_buffer",
    "wait_for_previous": "pdl_wait",
    "WantedRows": "OutputRows",
}
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("src", "operators", "weights-tools", "include", "examples", "launch", "python", "packaging", "cmake", "docs", "tests")
SUFFIXES = {".h", ".c", ".cpp", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".cmake", ".in", ".json", ".sbatch", ".pbs", ".lsf"}
HISTORY = ROOT / "docs/lab"  # dated entries
ALLOWED = {"retired_words.py", "glossary.md"}


def main():
    pattern = "|".join(re.escape(name).replace(r"\*", r"\w*") for name in sorted(RETIRED)) or r"(?!)"
    expression = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)")
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    paths = [path for path in paths if path.is_file() and path.suffix in SUFFIXES and path.name not in ALLOWED]
    paths = [path for path in paths if HISTORY not in path.parents]
    found = 0
    for path in sorted(paths):
        where = path.relative_to(ROOT)
        for number, line in enumerate([str(where)] + path.read_text(encoding="utf-8", errors="replace").splitlines()):
            for match in expression.finditer(line):
                word = next(name for name in RETIRED if re.fullmatch(re.escape(name).replace(r"\*", r"\w*"), match[0]))
                print(f"{where}:{number}: {match[0]}, which is now: {RETIRED[word]}")
                found += 1
    if not found:
        print(f"{len(RETIRED)} retired names, in none of {len(paths)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
