// The entry points for tokenizers and chat templates.
#pragma once

#include <cstddef>
#include <span>

namespace lfm2::fuzz {

void tokenizer_json(std::span<const std::byte> bytes);
void tokenizer_text(std::span<const std::byte> bytes);
void chat_template(std::span<const std::byte> bytes);

}  // namespace lfm2::fuzz
