// The entry points for what becomes a grammar: schemas, expressions, GBNF and lists of tools.
#pragma once

#include <cstddef>
#include <span>

namespace lfm2::fuzz {

void schema(std::span<const std::byte> bytes);
void pattern(std::span<const std::byte> bytes);
void gbnf(std::span<const std::byte> bytes);
void call_list(std::span<const std::byte> bytes);

}  // namespace lfm2::fuzz
