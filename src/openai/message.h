// The message of an answer as JSON, whole and in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/answer/answer_reader.h"
#include "stage/pipeline/completion.h"

namespace lfm2 {

// {"role", "content", "refusal"}, and where the answer has them "reasoning_content" and "reasoning", which are equal,
// and "tool_calls". The ids of calls are `call_ids` with their numbers.
OrderedJson message_json(const std::vector<AnswerPart>& parts, std::string_view call_ids);
// The deltas of a stream, one after the other. The first delta of a call has its id and name, the next its arguments.
// `calls`: how many calls there were before.
std::vector<OrderedJson> message_deltas(const std::vector<AnswerPart>& parts, std::string_view call_ids, int64_t calls);
// "tool_calls" where the text ended by itself and has calls.
std::string_view finish_reason(FinishReason reason, int64_t calls);
int64_t calls_in(const std::vector<AnswerPart>& parts);

}  // namespace lfm2
