// .npy, NumPy's file of one array, as far as samples need it: a table of integers, row by row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/checked_file.h"

namespace lfm2 {

class NpyFile {
 public:
  // Error(kNoInput) for a missing file; Error(kData), naming what was found and expected, for one that is no such
  // table.
  explicit NpyFile(const std::filesystem::path& path);

  uint64_t rows() const { return rows_; }
  uint64_t columns() const { return columns_; }
  // Rows [first, first + count), back to back. Unsigned values beyond the largest int64_t become that.
  std::vector<int64_t> read(uint64_t first, uint64_t count) const;

 private:
  void read_header(std::string_view header);

  CheckedFile file_;
  uint64_t rows_ = 0, columns_ = 0, begin_ = 0;  // `begin_`: the first element's byte
  size_t width_ = 0;
  bool is_signed_ = false;
};

}  // namespace lfm2
