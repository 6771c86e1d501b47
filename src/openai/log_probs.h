// "logprobs" of an answer, as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/sample_rules.h"
#include "stage/pipeline/completion.h"
#include "text/stream_decoder.h"

namespace lfm2 {

// For each token of a choice the number of characters of its text that precede the token. A token that continues a
// character which earlier tokens began counts from the beginning of that character.
class TokenOffsets {
 public:
  // The tokenizer must outlive this; if it is null, all offsets are 0.
  explicit TokenOffsets(const Tokenizer* tokenizer);
  std::vector<int64_t> of(std::span<const int32_t> ids);  // of the next tokens
  void end();                                             // the next token begins a new character

 private:
  const Tokenizer* tokenizer_;
  std::optional<StreamDecoder> decoder_;
  int64_t before_ = 0;
};

// "logprobs" of a choice in the form `form`: of all tokens of `completion`, with echo preceded by those of prompt_ids.
// null if the request asks for none. `offsets` continues the offsets of the choice if earlier tokens were answered
// before.
OrderedJson log_probs_json(const Completion& completion, const ResponseForm& form, const Tokenizer* tokenizer,
                           TokenOffsets& offsets);

}  // namespace lfm2
