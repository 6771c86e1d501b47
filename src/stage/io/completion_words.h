// Completions as words of a message.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "stage/io/completion.h"

namespace lfm2 {

void append_words(std::vector<int32_t>& words, const Completion& completion);
// Hands out the completions that append_words() has put one behind the other.
void for_each_completion(std::span<const int32_t> words, const std::function<void(const Completion&)>& take);

}  // namespace lfm2
