// Recognises by its first bytes what kind of file a user gave instead of the expected one, for messages.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked_file.h"

namespace lfm2 {

// Returns a text such as "is gzip: unpack it first"; empty if the kind is not known.
inline std::string_view file_kind(std::string_view first_bytes) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"\x1f\x8b"sv, "is gzip: unpack it first"},
      {"\x28\xb5\x2f\xfd"sv, "is Zstandard: unpack it first"},
      {"PK\x03\x04"sv, "is a ZIP archive: unpack it first"},
      {"PAR1"sv, "is Parquet: write it as .jsonl or .h5 first"},
      {"\xff\xfe"sv, "is UTF-16: expected UTF-8"},
      {"\xfe\xff"sv, "is UTF-16: expected UTF-8"},
      {"\x89HDF\r\n\x1a\n"sv, "is HDF5"},
      {"GGUF"sv, "is GGUF: expected the model's files of Hugging Face"},
      {"version https://git-lfs.github.com/"sv, "is a Git LFS pointer: run git lfs pull"},
      {"<!DOCTYPE"sv, "is an HTML page: the download failed"},
      {"<!doctype"sv, "is an HTML page: the download failed"},
      {"<html"sv, "is an HTML page: the download failed"},
  };
  for (const auto& [bytes, kind] : kKinds)
    if (first_bytes.starts_with(bytes)) return kind;
  return {};
}

// Refuses the file with that text if its kind is known. Readers of binary formats call this only after their own
// signature did not match, because two bytes may be equal by chance.
inline void refuse_other_kind(const CheckedFile& file) {
  std::array<char, 64> bytes{};
  const size_t count = std::min<uint64_t>(bytes.size(), file.size());
  file.read(0, std::as_writable_bytes(std::span(bytes).first(count)));
  if (const std::string_view kind = file_kind({bytes.data(), count}); !kind.empty()) file.refuse(std::string(kind));
}

}  // namespace lfm2
