// What a job reads: samples of every form, and random ones.
#include "stage/io/inputs/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/thread_pool.h"
#include "openai/request_line.h"
#include "stage/hdf5/h5.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/inputs/line_samples.h"
#include "stage/io/lines/line_reader.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

constexpr InputLimits kLimits{.vocab = 100, .max_positions = 8, .max_samples = 0};

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// As a job that scores reads an input, without a tokenizer.
Samples read_input(const std::filesystem::path& path) {
  if (!is_input_of_lines(path)) return read_samples(path, kLimits);
  LineReader reader(path);
  ThreadPool threads(2);
  const LineContext context{.vocab = kLimits.vocab, .max_positions = kLimits.max_positions, .text_error = "no text"};
  return read_lines(reader, context, kLimits.max_samples, threads);
}

void expect_refused(const std::filesystem::path& path, ExitCode code, const std::string& reason) {
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

std::string packed_with_gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 1, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

std::string packed_with_zstd(const std::string& text) {
  std::string packed(::ZSTD_compressBound(text.size()), '\0');
  packed.resize(::ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

class InputFileTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

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

TEST_F(InputFileTest, Jsonl) {
  write_text(
      folder_ / "a.jsonl",
      "{\"input_ids\": [1, 2], \"id\": \"x\\n\\u00e9\"}\n\n{\"id\": 7, \"input_ids\": [3]}\r\n{\"input_ids\": [4]}");
  const Samples samples = read_input(folder_ / "a.jsonl");
  EXPECT_EQ(samples.ids, (TokenIds{1, 2, 3, 4}));
  EXPECT_EQ(samples.offsets, (SampleOffsets{0, 2, 3, 4}));
  EXPECT_EQ(samples.names, (SampleNames{"\"x\\né\"", "7", ""}));
}

TEST_F(InputFileTest, JsonlLongerThanOneRead) {
  std::string text;
  for (int i = 0; i < 90000; ++i) text += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, " + std::to_string(i % 100) + "]}\n";
  write_text(folder_ / "long.jsonl", text);
  const Samples samples = read_input(folder_ / "long.jsonl");
  ASSERT_EQ(samples.count(), 90000);
  for (int i = 0; i < 90000; ++i) ASSERT_EQ(samples.ids[static_cast<size_t>(i) * 8 + 7], i % 100);
}

TEST_F(InputFileTest, JsonlRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"input_ids\": [1]}\nnonsense\n", "line 2: not valid JSON"},
      {"{\"input_ids\": [100]}", "line 1: \"input_ids\" is 100, expected token ids from 0 to 99"},
      {"{\"input_ids\": [-1]}", "\"input_ids\" is -1"},
      {"{\"input_ids\": [1.5]}", "\"input_ids\" is 1.5"},
      {"{\"input_ids\": [99999999999999999999]}", "line 1: \"input_ids\" is 99999999999999999999, expected token ids"},
      {"{\"input_ids\": []}", "line 1: 0 tokens"},
      {"{\"input_ids\": 5}", "line 1: \"input_ids\" is 5, expected a list of token ids"},
      {"[1, 2]", "line 1: [1,2], expected an object"},
      {"{\"ids\": [1]}", "expected an object with \"input_ids\""},
      {"{\"input_ids\": [1], \"max\": 3}", "unknown key \"max\""},
      {"{\"input_ids\": [1], \"input_ids\": [2]}", "stands twice"},
      {"{\"input_ids\": [1], \"id\": [2]}", "\"id\" is neither text nor integer"},
      {"{\"input_ids\": [1], \"id\": \"\xff\"}", "not valid JSON"},
      {std::string(101, '[') + std::string(101, ']'), "nested deeper than 100"},
      {"", "no samples"},
      {"\n\n", "no samples"}};
  for (const auto& [text, reason] : cases) {
    write_text(folder_ / "bad.jsonl", text);
    expect_refused(folder_ / "bad.jsonl", ExitCode::kData, reason);
  }
}

TEST_F(InputFileTest, H5FlatWithOffsets) {
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

// Integers [samples, columns], contiguous or in one chunk that is packed.
void write_table(const h5::File& file, const char* name, const std::vector<int64_t>& values, hsize_t columns,
                 bool packed = false) {
  const hsize_t dims[] = {values.size() / columns, columns};
  const h5::Id space{H5Screate_simple(2, dims, nullptr), H5Sclose}, list{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  if (packed) H5Pset_chunk(list.get(), 2, dims);
  if (packed) H5Pset_deflate(list.get(), 1);
  const h5::Id set{H5Dcreate2(file.id(), name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT),
                   H5Dclose};
  H5Dwrite(set.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
}

// As numpy.save() writes it, in version 1.
std::string npy(const std::string& description, const std::string& elements) {
  const std::string header = "{" + description + "}" + std::string(20, ' ') + "\n";
  return std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(header.size()) + '\0' + header + elements;
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

TEST_F(InputFileTest, PackedLines) {
  std::mt19937 random(1);  // so that what is packed has several pieces, too
  std::string text;
  for (int i = 0; i < 60000; ++i) text += fmt::format("{{\"input_ids\": [{}, {}]}}\n", random() % 100, random() % 100);
  text += std::string(400000, ' ') + "{\"input_ids\": [1]}\n";
  write_text(folder_ / "a.jsonl", text);
  const Samples plain = read_input(folder_ / "a.jsonl");
  for (const bool gzip : {true, false}) {
    const std::string name = gzip ? "a.jsonl.gz" : "a.jsonl.zst";
    const auto pack = gzip ? packed_with_gzip : packed_with_zstd;
    // Two members, as pigz and cat make them.
    const std::string packed = pack(text.substr(0, text.size() / 2)) + pack(text.substr(text.size() / 2));
    write_text(folder_ / name, packed);
    const Samples samples = read_input(folder_ / name);
    EXPECT_EQ(samples.ids, plain.ids);
    EXPECT_EQ(samples.source, plain.source) << "a run may go on with the other one";
    for (const auto& [bytes, reason] : std::vector<std::pair<std::string, std::string>>{
             {packed.substr(0, packed.size() - 1), "the file ends within it"},
             {"", "the file ends within it"},
             {packed + "more", gzip ? "incorrect header check" : "Unknown frame descriptor"},
             {"{\"input_ids\": [1]}\n", gzip ? "incorrect header check" : "Unknown frame descriptor"}}) {
      write_text(folder_ / name, bytes);
      expect_refused(folder_ / name, ExitCode::kData,
                     (gzip ? ": gzip cannot be unpacked: " : ": Zstandard cannot be unpacked: ") + reason);
    }
    write_text(folder_ / name, pack(std::string(size_t{17} << 20, 'a')));
    expect_refused(folder_ / name, ExitCode::kData, "line 1: longer than 16777216 bytes");
  }
  EXPECT_TRUE(is_input_of_lines("a.b.txt.zst"));
  EXPECT_FALSE(is_input_of_lines("a.gz"));
  EXPECT_FALSE(is_input_of_lines("a.bin.gz"));
}

TEST_F(InputFileTest, ReadingSeesARequestToStop) {
  write_values<int32_t>(folder_ / "a.bin", {2, 2, 1, 2, 3, 4});
  h5::File file = h5::File::create(folder_ / "a.h5");
  write_table(file, "input_ids", {1, 2, 3, 4}, 2);
  file.close();
  const auto stop = [] { throw Error(ExitCode::kStopped, "stopped"); };
  for (const char* name : {"a.bin", "a.h5"})
    test::expect_error([&] { read_samples(folder_ / name, kLimits, stop); }, ExitCode::kStopped, {"stopped"});
}

TEST_F(InputFileTest, H5PaddedOnTheRight) {
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
TEST_F(InputFileTest, H5OneChunkIsUnpackedOnce) {
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

TEST_F(InputFileTest, H5ThatIsStillWrittenIsRefused) {
  {
    const h5::File file = h5::File::create(folder_ / "w.h5");
    write_table(file, "input_ids", {1, 2, 3, 4}, 2);
  }
  const FileDescriptor writer(::open((folder_ / "w.h5").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(writer.get(), LOCK_EX | LOCK_NB), 0);
  expect_refused(folder_ / "w.h5", ExitCode::kData, "another program is writing it");
}

TEST_F(InputFileTest, H5Refused) {
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

// Contiguous integers of every type are read without the library, with the right values.
TEST_F(InputFileTest, H5IntegersOfEveryType) {
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
TEST_F(InputFileTest, H5ReadsOnlyTheSamplesAskedFor) {
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
TEST_F(InputFileTest, H5RefusesWhatIsNotThere) {
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

TEST(RandomSamplesTest, EachSampleDependsOnSeedAndNumber) {
  const Samples many = random_samples(50, 20, 3, 77), few = random_samples(10, 20, 3, 77),
                other = random_samples(50, 20, 4, 77);
  EXPECT_TRUE(std::equal(few.ids.begin(), few.ids.end(), many.ids.begin()));
  EXPECT_NE(many.ids, other.ids);
  for (int32_t id : many.ids) EXPECT_TRUE(id >= 0 && id < 77);
}

}  // namespace
}  // namespace lfm2::test
