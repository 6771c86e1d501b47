// The entry points for what a client of the HTTP server sends.
#pragma once

#include <cstddef>
#include <span>

namespace lfm2::fuzz {

void http_connection(std::span<const std::byte> bytes);
void multipart(std::span<const std::byte> bytes);

}  // namespace lfm2::fuzz
