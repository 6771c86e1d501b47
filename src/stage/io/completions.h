// Output files of a generation: .jsonl and .h5.
#pragma once

#include <filesystem>
#include <memory>

#include "stage/io/output_file.h"
#include "stage/pipeline/completion.h"

namespace lfm2 {

class CompletionFile : public JobOutput, public CompletionConsumer {};

// Error(kUsage) if the ending of the file's name is not a form for completions.
void check_completion_form(const std::filesystem::path& path);
// A .jsonl file has a line for each sample: {"id", "token_ids", "finish_reason"}, and "error" if the reason is "error".
// With --top-logprobs each line also has "logprobs" [tokens], "top_ids" and "top_logprobs" [tokens, k]. An .h5 file has
// token_ids [all tokens], offsets [samples + 1] and finish_reasons [samples] (0 stop, 1 length, 2 error). With
// --top-logprobs it also has logprobs [all tokens], top_ids and top_logprobs [all tokens, k]. Here k is
// `job.kind.top_k`, and `job.samples()` completions are expected.
std::unique_ptr<CompletionFile> create_completion_file(const std::filesystem::path& path, const OutputJob& job);
// Continues the file of an earlier run of the same job, and removes records that are not intact from `begun.content`.
std::unique_ptr<CompletionFile> resume_completion_file(const std::filesystem::path& path, const OutputJob& job,
                                                       Unfinished& begun);

}  // namespace lfm2
