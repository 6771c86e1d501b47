// The target of a line with --score: the text that is scored as the continuation of another text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lfm2 {

class Tokenizer;

// Whether Python counts the character as whitespace.
bool is_python_space(uint32_t point);

// Tokenises the text and its target together into `ids`, and returns how many ids at the end belong to the target.
// First, blanks at the end of the text move to the target. The text gets the number of tokens that it has when
// tokenised alone; all further tokens belong to the target. lm-evaluation-harness does the same (_encode_pair), so
// scores can be compared. The result is at most 0 if no token is left for the target.
int64_t join_target(std::string text, std::string target, const Tokenizer& tokenizer, std::vector<int32_t>& ids);

}  // namespace lfm2
