// Samples of .h5 in every layout and type, and what is refused of them.
#include "stage/io/inputs/h5_samples.h"

#include <fcntl.h>
#include <sys/file.h>

#include <numeric>

#include "stage/hdf5/h5.h"
#include "support/read_input.h"

namespace lfm2::test {
namespace {

using H5SamplesTest = ReadInputTest;

TEST_F(H5SamplesTest, H5FlatWithOffsets) {
  {
    h5::File file = h5::File::create(folder_ / "a.h5");
    file.write_i64("input_ids", {1, 2, 3, 4});
    file.write_i64("offsets", {0, 1, 4});
    file.close();
  }
  const Samples samples = read_samples(folder_ / "a.h5", kLimits);
  EXPECT_EQ(samples.ids, (TokenIds{1, 2, 3, 4}));
  EXPECT_EQ(samples.offsets, (SampleOffsets{0, 1, 4}));
}

TEST_F(H5SamplesTest, H5PaddedOnTheRight) {
  const auto read = [&](const char* beside, const std::vector<int64_t>& values, hsize_t columns) {
    h5::File file = h5::File::create(folder_ / "p.h5");
    write_table(file, "input_ids", {5, 6, 7, 0, 0, 1, 2, 3, 4, 5}, 5);
    if (columns == 0)
      file.write_i64(beside, values);
    else
      write_table(file, beside, values, columns);
    file.close();
  };
  read("attention_mask", {1, 1, 1, 0, 0, 1, 1, 1, 1, 1}, 5);
  EXPECT_EQ(read_samples(folder_ / "p.h5", kLimits).ids, (TokenIds{5, 6, 7, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read_samples(folder_ / "p.h5", kLimits).offsets, (SampleOffsets{0, 3, 8}));
  read("lengths", {3, 5}, 0);
  EXPECT_EQ(read_samples(folder_ / "p.h5", kLimits).ids, (TokenIds{5, 6, 7, 1, 2, 3, 4, 5}));
  const auto refused = [&](const std::string& reason) { expect_refused(folder_ / "p.h5", ExitCode::kData, reason); };
  read("attention_mask", {1, 0, 1, 0, 0, 1, 1, 1, 1, 1}, 5);
  refused("sample 0: attention_mask is not ones and then zeros");
  read("attention_mask", {0, 0, 0, 0, 0, 1, 1, 1, 1, 1}, 5);
  refused("sample 0: 0 tokens");
  read("attention_mask", {1, 1, 1, 1}, 2);
  refused("attention_mask has another shape");
  read("lengths", {3, 6}, 0);
  refused("sample 1: length 6, expected at most the 5 columns");
  read("labels", {3, 6}, 0);
  refused("dataset labels is not supported");
}

// Each of its rows is asked for by itself; unpacking the chunk for each would take minutes.
TEST_F(H5SamplesTest, H5OneChunkIsUnpackedOnce) {
  constexpr hsize_t kRows = 20000, kColumns = 100;
  std::vector<int64_t> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0);
  h5::File file = h5::File::create(folder_ / "c.h5");
  write_table(file, "rows", values, kColumns, true);
  file.close();
  const h5::File opened = h5::File::open(CheckedFile(folder_ / "c.h5"));
  std::vector<int64_t> row(kColumns);
  const std::clock_t begin = std::clock();
  for (uint64_t i = 0; i < kRows; ++i) {
    opened.read_rows("rows", i, 1, H5T_NATIVE_INT64, row.data());
    ASSERT_EQ(row[1], static_cast<int64_t>(i * kColumns + 1));
  }
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 20);
}

TEST_F(H5SamplesTest, H5ThatIsStillWrittenIsRefused) {
  {
    const h5::File file = h5::File::create(folder_ / "w.h5");
    write_table(file, "input_ids", {1, 2, 3, 4}, 2);
  }
  const FileDescriptor writer(::open((folder_ / "w.h5").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(writer.get(), LOCK_EX | LOCK_NB), 0);
  expect_refused(folder_ / "w.h5", ExitCode::kData, "another program is writing it");
}

TEST_F(H5SamplesTest, H5Refused) {
  const auto refused = [&](const std::vector<int64_t>& ids, const std::vector<int64_t>& offsets,
                           const std::string& reason) {
    {
      h5::File file = h5::File::create(folder_ / "bad.h5");
      if (!ids.empty()) file.write_i64("input_ids", ids);
      if (!offsets.empty()) file.write_i64("offsets", offsets);
      file.close();
    }
    expect_refused(folder_ / "bad.h5", ExitCode::kData, reason);
  };
  refused({}, {0}, "no dataset input_ids");
  refused({1, 2}, {}, "input_ids has 1 dimensions");
  refused({1, 2}, {0, 1}, "offsets do not rise from 0 to the 2 ids");
  refused({1, 2}, {1, 2}, "offsets do not rise");
  refused({1, 2, 3}, {0, 2, 1, 3}, "offsets do not rise");
  refused({1, 2}, {0, 0, 2}, "sample 0: 0 tokens");
  refused({1, 5000000000}, {0, 2}, "token 1 is 5000000000");
  write_text(folder_ / "text.h5", "this is no HDF5 file");
  expect_refused(folder_ / "text.h5", ExitCode::kData, "cannot be opened as HDF5");
}

// Contiguous integers of every type are read without the library, with the right values.
TEST_F(H5SamplesTest, H5IntegersOfEveryType) {
  for (const hid_t type : {H5T_STD_I8LE, H5T_STD_U8LE, H5T_STD_I16LE, H5T_STD_U16LE, H5T_STD_I32LE, H5T_STD_U32LE,
                           H5T_STD_I64LE, H5T_STD_U64LE, H5T_STD_I32BE}) {
    const auto write = [&](int64_t last) {
      const h5::File file = h5::File::create(folder_ / "f.h5");
      const hsize_t dims[2] = {2, 2};
      const int64_t values[4] = {0, 99, 7, last};
      const h5::Id space{H5Screate_simple(2, dims, nullptr), H5Sclose};
      const h5::Id set{H5Dcreate2(file.id(), "input_ids", type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose};
      ASSERT_GE(H5Dwrite(set.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    };
    write(12);
    EXPECT_EQ(read_samples(folder_ / "f.h5", kLimits).ids, (TokenIds{0, 99, 7, 12}));
    write(100);
    expect_refused(folder_ / "f.h5", ExitCode::kData, "sample 1: token 1 is 100");
    if (H5Tget_sign(type) == H5T_SGN_NONE) continue;
    write(-1);
    expect_refused(folder_ / "f.h5", ExitCode::kData, "sample 1: token 1 is -1");
  }
}

// Reads only as many rows as samples are asked for. Further rows are neither read nor checked.
TEST_F(H5SamplesTest, H5ReadsOnlyTheSamplesAskedFor) {
  const auto write = [&](bool chunked) {
    const h5::File file = h5::File::create(folder_ / "f.h5");
    const hsize_t dims[2] = {3, 2}, chunk[2] = {1, 2};
    const int64_t values[6] = {1, 2, 3, 4, -5, 600};
    const h5::Id space{H5Screate_simple(2, dims, nullptr), H5Sclose}, list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    if (chunked) H5Pset_chunk(list.get(), 2, chunk);
    const h5::Id set{
        H5Dcreate2(file.id(), "input_ids", H5T_STD_I64LE, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT), H5Dclose};
    ASSERT_GE(H5Dwrite(set.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
  };
  for (const bool chunked : {false, true}) {
    write(chunked);
    EXPECT_EQ(read_samples(folder_ / "f.h5", {100, 8, 2}).ids, (TokenIds{1, 2, 3, 4})) << chunked;
    expect_refused(folder_ / "f.h5", ExitCode::kData, "sample 2: token 0 is -5");
  }
  {
    h5::File file = h5::File::create(folder_ / "flat.h5");
    file.write_i64("input_ids", {1, 2, 3, -4});
    file.write_i64("offsets", {0, 1, 3, 4});
    file.close();
  }
  EXPECT_EQ(read_samples(folder_ / "flat.h5", {100, 8, 2}).offsets, (SampleOffsets{0, 1, 3}));
  EXPECT_EQ(read_samples(folder_ / "flat.h5", {100, 8, 2}).ids, (TokenIds{1, 2, 3}));
}

// A length that no sample has is refused before anything is read, and so are values that were never written.
TEST_F(H5SamplesTest, H5RefusesWhatIsNotThere) {
  const auto write = [&](hsize_t length, hid_t type, bool chunked) {
    const h5::File file = h5::File::create(folder_ / "f.h5");
    const hsize_t dims[2] = {2, length};
    const h5::Id space{H5Screate_simple(2, dims, nullptr), H5Sclose}, list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
    if (chunked) H5Pset_chunk(list.get(), 2, dims);
    if (chunked) H5Pset_alloc_time(list.get(), H5D_ALLOC_TIME_EARLY);
    const h5::Id set{H5Dcreate2(file.id(), "input_ids", type, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
                     H5Dclose};
    ASSERT_TRUE(set);
  };
  write(hsize_t{1} << 30, H5T_STD_I32LE, false);
  expect_refused(folder_ / "f.h5", ExitCode::kData, "no space allocated: nothing was written");
  write(9, H5T_STD_I32LE, true);
  expect_refused(folder_ / "f.h5", ExitCode::kData, "sample 0: 9 tokens, expected 1 to");
  const h5::Id narrow{H5Tcopy(H5T_STD_I32LE), H5Tclose};
  H5Tset_precision(narrow.get(), 12);
  write(4, narrow.get(), true);
  expect_refused(folder_ / "f.h5", ExitCode::kData, "holds another type, expected integers");
}

}  // namespace
}  // namespace lfm2::test
