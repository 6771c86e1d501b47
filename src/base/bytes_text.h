// Amounts of memory for people; all tables and messages use this one form.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace lfm2 {

inline std::string bytes_text(uint64_t bytes) {  // such as "16.68 GB"
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (bytes >= 1'000'000) return fmt::format("{:.2f} MB", value / 1e6);
  if (bytes >= 1000) return fmt::format("{:.2f} kB", value / 1e3);
  return fmt::format("{} B", bytes);
}

}  // namespace lfm2
