// The target of a line with --score: the text that is scored behind another one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lfm2 {

class Tokenizer;

// Whether Python counts the character as whitespace.
bool is_python_space(uint32_t point);

// Makes `ids` those of the text and its target, tokenised as one, and returns how many of them, the last ones, are the
// target's: those behind as many tokens as the text has alone. Blanks at the end of the text go to the target first. So
// does lm-evaluation-harness (_encode_pair), with which scores are compared. Not above 0 where the cut leaves the
// target nothing.
int64_t join_target(std::string text, std::string target, const Tokenizer& tokenizer, std::vector<int32_t>& ids);

}  // namespace lfm2
