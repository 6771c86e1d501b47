// What a file is that was given in place of another one, by its first bytes: for messages.
#pragma once

#include <string_view>
#include <utility>

namespace lfm2 {

// "is gzip: unpack it first" and the like; empty where the bytes are none of these.
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

}  // namespace lfm2
