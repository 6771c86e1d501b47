// Reads .npy, NumPy's file of one array, as a row-major table of integers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/checked_file.h"

namespace lfm2 {

class NpyFile {
 public:
  // Error(kNoInput) for a missing file; Error(kData), naming found and expected, for any other content.
  explicit NpyFile(const std::filesystem::path& path);

  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  // Rows [first, first + count), back to back. Unsigned values above INT64_MAX become INT64_MAX.
  std::vector<int64_t> read(uint64_t first, uint64_t count) const;

 private:
  void read_header(std::string_view header);

  CheckedFile file_;
  uint64_t rows_ = 0, columns_ = 0, begin_ = 0;  // `begin_`: offset of the first element
  size_t width_ = 0;
  bool is_signed_ = false;
};

}  // namespace lfm2
