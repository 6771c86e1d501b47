// Reads input files as a job that scores does, without a tokenizer, and expects refusals of them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "base/thread_pool.h"
#include "openai/request_line.h"
#include "stage/hdf5/h5.h"
#include "stage/io/inputs/line_samples.h"
#include "stage/io/lines/line_reader.h"
#include "support/weights_support.h"

namespace lfm2::test {

// Integers [samples, columns], contiguous or in one chunk that is packed.
inline void write_table(const h5::File& file, const char* name, const std::vector<int64_t>& values, hsize_t columns,
                        bool packed = false) {
  const hsize_t dims[] = {values.size() / columns, columns};
  const h5::Id space{H5Screate_simple(2, dims, nullptr), H5Sclose}, list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  if (packed) H5Pset_chunk(list.get(), 2, dims);
  if (packed) H5Pset_deflate(list.get(), 1);
  const h5::Id set{H5Dcreate2(file.id(), name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
                   H5Dclose};
  H5Dwrite(set.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

class ReadInputTest : public testing::Test {
 protected:
  static constexpr InputLimits kLimits{.vocab = 100, .max_positions = 8, .max_samples = 0};

  static void write_text(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }

  static Samples read_input(const std::filesystem::path& path) {
    if (!is_input_of_lines(path)) return read_samples(path, kLimits);
    LineReader reader(path);
    ThreadPool threads(2);
    const LineContext context{.vocab = kLimits.vocab, .max_positions = kLimits.max_positions, .text_error = "no text"};
    return read_lines(reader, context, kLimits.max_samples, threads);
  }

  static void expect_refused(const std::filesystem::path& path, ExitCode code, const std::string& reason) {
    try {
      read_input(path);
      ADD_FAILURE() << path << " was accepted, expected: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(path.filename()), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "more than one line";
    }
  }

  TemporaryFolder folder_;
};

}  // namespace lfm2::test
