// The files that finished samples of a generation go to.
#pragma once

#include <filesystem>
#include <memory>

#include "stage/io/completion.h"
#include "stage/io/output_file.h"

namespace lfm2 {

class CompletionFile : public JobOutput, public CompletionConsumer {};

// Refuses endings that hold no completions: Error(kUsage).
void check_completion_form(const std::filesystem::path& path);
// .jsonl: a line a sample, {"id", "token_ids", "finish_reason"}, with --top-logprobs also "logprobs" [tokens],
// "top_ids" and "top_logprobs" [tokens, k]. .h5: token_ids [all tokens], offsets [samples + 1], finish_reasons
// [samples] (0 stop, 1 length), and with --top-logprobs logprobs [all tokens], top_ids and top_logprobs [all tokens,
// k]. `job.kind.top_k` says how many; `job.samples()` are expected.
std::unique_ptr<CompletionFile> create_completion_file(const std::filesystem::path& path, const OutputJob& job);
// Goes on with what a run of the same job left; `begun.content` becomes what of it is intact.
std::unique_ptr<CompletionFile> resume_completion_file(const std::filesystem::path& path, const OutputJob& job,
                                                       Unfinished& begun);

}  // namespace lfm2
