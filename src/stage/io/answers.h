// A completion as a line of .jsonl: as this program writes it, or as OpenAI's batches do.
#pragma once

#include <string>
#include <string_view>

#include "stage/io/completion.h"
#include "stage/io/lines/answer_form.h"
#include "stage/io/output_file.h"

namespace lfm2 {

// {"id", "token_ids", "text", "finish_reason"}; "text" where there is a tokenizer; where the request has them,
// "logprobs" [tokens], "top_ids" and "top_logprobs" [tokens, k]. With several choices {"id", "choices"}, where each of
// them has the fields behind "id". `name`: the sample's, as JSON text; "": its number
// stands for it.
std::string plain_answer(const Completion& completion, const AnswerForm& form, std::string_view name,
                         const OutputJob& job);

// {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}, with a body of /v1/completions or
// /v1/chat/completions. An error has status 400, no body, and {"message", "type", "param", "code"}. Nothing in it is
// random: ids are made of the sample's number, and "created" is the time of the job.
std::string batch_answer(const Completion& completion, const AnswerForm& form, std::string_view name,
                         const OutputJob& job);

}  // namespace lfm2
