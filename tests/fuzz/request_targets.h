// The entry points for what clients of the server ask for, and for what its model answers.
#pragma once

#include <cstddef>
#include <span>

namespace lfm2::fuzz {

void openai_request(std::span<const std::byte> bytes);
void embeddings_request(std::span<const std::byte> bytes);
void call_reader(std::span<const std::byte> bytes);
void thought_reader(std::span<const std::byte> bytes);

}  // namespace lfm2::fuzz
