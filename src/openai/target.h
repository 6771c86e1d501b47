// The target of a line with --score: the text that is scored as the continuation of another text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lfm2 {

class Tokenizer;

// Whether Python counts the character as whitespace.
bool is_python_space(uint32_t point);

// Makes `ids` the tokens of the text and its target, tokenised together, and returns the number of them, at the end,
// that are the target's. The text keeps the number of tokens that it has alone; all others are the target's. Blanks at
// the end of the text go to the target first. So does lm-evaluation-harness (_encode_pair), with which scores are
// compared. Not above 0 where the cut leaves the target nothing.
int64_t join_target(std::string text, std::string target, const Tokenizer& tokenizer, std::vector<int32_t>& ids);

}  // namespace lfm2
