// Samples of .bin and .npy, of numbers that cost nothing, and random ones.
#include "stage/io/inputs/input_file.h"

#include <limits>

#include "stage/hdf5/h5.h"
#include "support/read_input.h"

namespace lfm2::test {
namespace {

using InputFileTest = ReadInputTest;

// As numpy.save() writes it, in version 1.
std::string npy(const std::string& description, const std::string& elements) {
  const std::string header = "{" + description + "}" + std::string(20, ' ') + "\n";
  return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header + elements;
}

TEST_F(InputFileTest, Bin) {
  write_values<int32_t>(folder_ / "a.bin", {2, 3, 1, 2, 3, 4, 5, 99});
  const Samples samples = read_samples(folder_ / "a.bin", kLimits);
  EXPECT_EQ(samples.ids, (TokenIds{1, 2, 3, 4, 5, 99}));
  EXPECT_EQ(samples.offsets, (SampleOffsets{0, 3, 6}));
  const Samples first = read_samples(folder_ / "a.bin", {100, 8, 1});
  EXPECT_EQ(first.offsets, (SampleOffsets{0, 3}));
}

TEST_F(InputFileTest, BinRefused) {
  const std::vector<std::tuple<std::vector<int32_t>, std::string>> cases = {
      {{2}, "8 bytes expected"},
      {{2, 3, 1, 2, 3, 4, 5}, "28 bytes, but 2 samples of 3 tokens need 32"},
      {{1, 1, 1, 1}, "need 12"},
      {{-1, 3}, "-1 samples"},
      {{2000000000, 2000000000, 1}, "need 16000000000000000008"},
      {{0, 5}, "no samples"},
      {{1, 0}, "0 tokens, expected 1 to max_position_embeddings = 8"},
      {{1, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "9 tokens"},
      {{1, 2, 5, 100}, "sample 0: token 1 is 100, expected 0 to 99"},
      {{2, 1, 5, -7}, "sample 1: token 0 is -7"}};
  for (const auto& [values, reason] : cases) {
    write_values(folder_ / "bad.bin", values);
    expect_refused(folder_ / "bad.bin", ExitCode::kData, reason);
  }
  write_text(folder_ / "empty.bin", "");
  expect_refused(folder_ / "empty.bin", ExitCode::kData, "the file has 0 bytes");
  expect_refused(folder_ / "missing.bin", ExitCode::kNoInput, "No such file");
  std::filesystem::create_directory(folder_ / "folder.bin");
  expect_refused(folder_ / "folder.bin", ExitCode::kData, "not a regular file");
  expect_refused(folder_ / "inputs.json", ExitCode::kUsage, "expected a name ending in");
  expect_refused(folder_ / "inputs.txt", ExitCode::kNoInput, "No such file");
}

TEST_F(InputFileTest, Npy) {
  const std::string begin = "'descr': '<i2', 'fortran_order': False, 'shape': ", two({1, 0, 2, 0, 3, 0, 99, 0});
  write_text(folder_ / "a.npy", npy(begin + "(2, 2), ", two));
  EXPECT_EQ(read_samples(folder_ / "a.npy", kLimits).ids, (TokenIds{1, 2, 3, 99}));
  EXPECT_EQ(read_samples(folder_ / "a.npy", kLimits).offsets, (SampleOffsets{0, 2, 4}));
  EXPECT_EQ(read_samples(folder_ / "a.npy", {100, 8, 1}).offsets, (SampleOffsets{0, 2}));
  write_text(folder_ / "a.npy", npy("'shape': (1, 3), 'fortran_order': False, 'descr': '|u1'", "abc"));
  EXPECT_EQ(read_samples(folder_ / "a.npy", kLimits).ids, (TokenIds{97, 98, 99}));
  std::string version2 = npy(begin + "(2, 2), ", two);
  version2[6] = 2;
  version2.insert(10, 2, '\0');
  write_text(folder_ / "a.npy", version2);
  EXPECT_EQ(read_samples(folder_ / "a.npy", kLimits).count(), 2);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a text that is long enough", "is no .npy file"},
      {"\x93NUMPY\x04 and so on", "version 4, expected 1 to 3"},
      {npy("'descr': '>i4', 'fortran_order': False, 'shape': (1, 1)", "abcd"),
       "elements of type '>i4', expected little"},
      {npy("'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)", "abcd"), "elements of type '<f4'"},
      {npy("'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1, 1)", "abcd"),
       "elements of type [('a', '<i4')]"},
      {npy("'descr': '<i2', 'fortran_order': True, 'shape': (2, 2)", two), "'fortran_order' is True, expected False"},
      {npy(begin + "(4,)", two), "an array of shape (4,), expected (samples, length)"},
      {npy(begin + "(2, 3)", two), "but 2 rows of 3 elements need"},
      {npy(begin + "(2, 1)", two), "but 2 rows of 1 elements need"},
      {npy(begin + "(9223372036854775807, 9)", two), "a.npy"},
      {npy(begin + "(5, 0)", ""), "sample 0: 0 tokens"},
      {npy(begin + "(0, 5)", ""), "no samples"},
      {npy(begin + "(2, 2)", std::string({1, 0, 2, 0, 3, 0, -2, -1})), "sample 1: token 1 is -2, expected 0 to 99"}};
  for (const auto& [bytes, reason] : cases) {
    write_text(folder_ / "a.npy", bytes);
    expect_refused(folder_ / "a.npy", ExitCode::kData, reason);
  }
}

// Small files with numbers that once made the reader ask for gigabytes, or take hours.
TEST_F(InputFileTest, NumbersInAFileCostNothing) {
  write_values<int32_t>(folder_ / "wide.bin", {0, std::numeric_limits<int32_t>::max()});
  expect_refused(folder_ / "wide.bin", ExitCode::kData, "no samples");
  write_values<int32_t>(folder_ / "tall.bin", {std::numeric_limits<int32_t>::max(), 0});
  expect_refused(folder_ / "tall.bin", ExitCode::kData, "sample 0: 0 tokens");
  for (const bool chunked : {false, true}) {
    {
      const h5::File file = h5::File::create(folder_ / "f.h5");
      const hsize_t dims[2] = {hsize_t{1} << (chunked ? 30 : 40), chunked ? 1u : 0u}, chunk[2] = {1, 1};
      const h5::Id space{H5Screate_simple(2, dims, nullptr), H5Sclose}, list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
      if (chunked) H5Pset_chunk(list.get(), 2, chunk);
      const h5::Id set{
          H5Dcreate2(file.id(), "input_ids", H5T_STD_I32LE, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
          H5Dclose};
      ASSERT_TRUE(set);
    }
    expect_refused(folder_ / "f.h5", ExitCode::kData, chunked ? "which no file of" : "has shape [1099511627776, 0]");
  }
  write_text(folder_ / "lines.jsonl", std::string(4 << 20, '\n') + "{}");
  expect_refused(folder_ / "lines.jsonl", ExitCode::kData, "line 4194305: expected an object with");
}

TEST(RandomSamplesTest, EachSampleDependsOnSeedAndNumber) {
  const Samples many = random_samples(50, 20, 3, 77), few = random_samples(10, 20, 3, 77),
                other = random_samples(50, 20, 4, 77);
  EXPECT_TRUE(std::equal(few.ids.begin(), few.ids.end(), many.ids.begin()));
  EXPECT_NE(many.ids, other.ids);
  for (int32_t id : many.ids) EXPECT_TRUE(id >= 0 && id < 77);
}

}  // namespace
}  // namespace lfm2::test
