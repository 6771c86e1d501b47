// What samples are called in .h5: `ids` of inputs in every form, and of outputs.
#include <array>
#include <cstring>

#include "stage/io/inputs/input_file.h"
#include "stage/io/output_file.h"
#include "support/h5_scan_support.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

class SampleIdsTest : public H5ScanTest {
 protected:
  static h5::Id text_type(size_t bytes, H5T_str_t padding = H5T_STR_NULLTERM) {
    h5::Id type{H5Tcopy(H5T_C_S1), H5Tclose};
    H5Tset_size(type.get(), bytes);
    H5Tset_strpad(type.get(), padding);
    return type;
  }
  // Three samples and their ids, in a chunk that is packed where it says so.
  void write_input(hid_t type, const void* ids, bool packed = false, H5F_libver_t low = H5F_LIBVER_V110,
                   hsize_t count = 3) const {
    write(low, [&](hid_t file) {
      const std::vector<int64_t> tokens{1, 2, 3};
      const h5::Id plain = properties([](hid_t) {}), chunked = properties([&](hid_t list) {
                                                       H5Pset_chunk(list, 1, &count);
                                                       H5Pset_deflate(list, 1);
                                                     });
      const h5::Id samples = add_dataset(file, "input_ids", H5T_STD_I64LE, simple_space({3, 1}).get(), plain.get());
      H5Dwrite(samples.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data());
      const h5::Id set = add_dataset(file, "ids", type, simple_space({count}).get(), (packed ? chunked : plain).get());
      ASSERT_GE(H5Dwrite(set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids), 0);
    });
  }
  SampleNames names(int64_t max_samples = 0) const {
    return read_samples(path(), {.vocab = 9, .max_positions = 9, .max_samples = max_samples}).names;
  }
  void expect_input_refused(const std::vector<std::string>& parts) const {
    expect_error([&] { names(); }, ExitCode::kData, parts);
  }
  // An output of two samples with these names; returns its path.
  std::filesystem::path write_output(const std::string& name, const SampleNames& names) const {
    const SampleOffsets offsets{0, 1, 2};
    const std::vector<float> logits{1, 2};
    const auto file = create_output(folder_ / name, {.kind = {},
                                                     .vocab = 1,
                                                     .size = offsets.job_size(),
                                                     .offsets = &offsets,
                                                     .names = &names,
                                                     .facts = {"lfm2", "fp32", "00", "test"}});
    file->consume({.first = 0, .count = 2, .logits = logits});
    file->commit();
    return folder_ / name;
  }

  TemporaryFolder folder_;
};

// Of several files, some have names.
TEST_F(SampleIdsTest, SeveralInputs) {
  const std::array<const char*, 3> ids{"a", "b", "c"};
  const auto as = [&](const char* name) {
    std::filesystem::rename(path(), folder_ / name);
    return folder_ / name;
  };
  write_input(text_type(H5T_VARIABLE).get(), ids.data());
  const std::filesystem::path named = as("named.h5");
  write(H5F_LIBVER_V110, [](hid_t file) {
    const std::vector<int64_t> tokens{4, 5};
    const h5::Id plain = properties([](hid_t) {});
    const h5::Id samples = add_dataset(file, "input_ids", H5T_STD_I64LE, simple_space({2, 1}).get(), plain.get());
    H5Dwrite(samples.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data());
  });
  const std::filesystem::path plain = as("plain.h5");
  const auto read = [&](const std::vector<std::filesystem::path>& paths, int64_t max_samples) {
    return read_samples(paths, {.vocab = 9, .max_positions = 9, .max_samples = max_samples});
  };
  EXPECT_EQ(read({plain, named, plain}, 0).ids, (TokenIds{4, 5, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read({plain, named, plain}, 0).names, (SampleNames{"", "", "\"a\"", "\"b\"", "\"c\"", "", ""}));
  EXPECT_EQ(read({plain, named, plain}, 4).names, (SampleNames{"", "", "\"a\"", "\"b\""}));
  EXPECT_EQ(read({plain, plain}, 3).ids, (TokenIds{4, 5, 4}));
  EXPECT_TRUE(read({plain, plain}, 0).names.empty());
}

TEST_F(SampleIdsTest, StringsOfAnInput) {
  const std::string large(5000, 'x');
  const char* variable[] = {"é\n", "", large.c_str()};
  const SampleNames expected{"\"é\\n\"", "", '"' + large + '"'};
  for (const H5Format& format : kH5Formats)
    for (const bool packed : {false, true}) {
      write_input(text_type(H5T_VARIABLE).get(), variable, packed, format.low);
      EXPECT_EQ(names(), expected) << format.name << packed;
      EXPECT_EQ(names(2), (SampleNames{"\"é\\n\"", ""})) << format.name << packed;
    }
  for (const bool packed : {false, true}) {
    write_input(text_type(4).get(), "ab\0xabc\0\0\0\0\0", packed);
    EXPECT_EQ(names(), (SampleNames{"\"ab\"", "\"abc\"", ""}));
    write_input(text_type(4, H5T_STR_NULLPAD).get(), "a\0b\0abcd\0\0\0\0", packed);
    EXPECT_EQ(names(), (SampleNames{"\"a\\u0000b\"", "\"abcd\"", ""}));
    write_input(text_type(4, H5T_STR_SPACEPAD).get(), "    a b abcd", packed);
    EXPECT_EQ(names(), (SampleNames{"", "\"a b\"", "\"abcd\""}));
  }
  const char* none[] = {"", "", ""};
  write_input(text_type(H5T_VARIABLE).get(), none);
  EXPECT_TRUE(names().empty());
}

TEST_F(SampleIdsTest, IntegersOfAnInput) {
  for (const bool packed : {false, true}) {
    const int16_t small[] = {-7, 0, 7};
    write_input(H5T_STD_I16LE, small, packed);
    EXPECT_EQ(names(), (SampleNames{"-7", "0", "7"}));
    const uint64_t large[] = {0, uint64_t{1} << 63, ~uint64_t{0}};
    write_input(H5T_STD_U64LE, large, packed);
    EXPECT_EQ(names(), (SampleNames{"0", "9223372036854775808", "18446744073709551615"}));
  }
}

TEST_F(SampleIdsTest, IdsOfAnInputAreRefused) {
  const double floats[] = {1, 2, 3};
  write_input(H5T_IEEE_F64LE, floats);
  expect_input_refused({"f.h5: dataset ids holds 64-bit float, expected strings or integers"});
  write_input(H5T_STD_I64LE, floats, false, H5F_LIBVER_V110, 2);
  expect_input_refused({"f.h5: dataset ids has shape [2], expected [3], one for each sample"});
  const std::string wide(3 << 21, 'x');
  write_input(text_type(2 << 20).get(), wide.data());
  expect_input_refused({"dataset ids: strings of 2097152 bytes, expected 1 to 1048576"});
  const char* variable[] = {"good", "bad\xff", "good"};
  write_input(text_type(H5T_VARIABLE).get(), variable);
  expect_input_refused({"f.h5: sample 1: its id in dataset ids is not UTF-8"});
  EXPECT_EQ(names(1), SampleNames{"\"good\""});
}

// The file's global heap with some of its bytes changed.
TEST_F(SampleIdsTest, DamagedHeapIsRefused) {
  const char* ids[] = {"first", "second", "third"};
  write_input(text_type(H5T_VARIABLE).get(), ids);
  const std::string good = read_bytes(path());
  const size_t heap = good.find("GCOL"), elements = h5::scan(CheckedFile(path())).datasets.at("ids").offset;
  const auto refused = [&](size_t at, const std::string& bytes, const std::string& reason) {
    write_bytes(path(), std::string(good).replace(at, bytes.size(), bytes));
    expect_input_refused({"the global heap at byte", reason});
  };
  refused(heap, "G0OL", "signature GCOL");
  refused(heap + 8, little_endian(15, 8), "15 bytes, expected 16");
  refused(heap + 8, little_endian(uint64_t{1} << 27, 8), "but the file ends");
  refused(heap + 16, little_endian(9, 2), "has no object 1");
  refused(heap + 24, little_endian(uint64_t{1} << 40, 8), "object 1 of 1099511627776 bytes");
  refused(elements, little_endian(6, 4), "a string of 6 bytes, expected at most 5");
  refused(elements + 4, little_endian(heap + 16, 8), "signature GCOL");
  refused(elements + 4, little_endian(~uint64_t{0}, 8), "the file ends");
}

TEST_F(SampleIdsTest, OutputsHaveTheNames) {
  const std::filesystem::path named = write_output("named.h5", {"\"é\\n\\\"\"", "123456789012345678901"});
  const h5::File file = h5::File::open(CheckedFile(named));
  EXPECT_EQ(file.read_texts("ids", 0, 2), (std::vector<std::string>{"é\n\"", "123456789012345678901"}));
  EXPECT_EQ(h5::File::open(CheckedFile(write_output("some.h5", {"", "\"b\""}))).read_texts("ids", 0, 2),
            (std::vector<std::string>{"", "b"}));
  EXPECT_EQ(read_bytes(named), read_bytes(write_output("again.h5", {"\"é\\n\\\"\"", "123456789012345678901"})));
  EXPECT_FALSE(h5::scan(CheckedFile(write_output("none.h5", {}))).datasets.contains("ids"));
}

TEST_F(SampleIdsTest, NamesWithANulAreForLines) {
  expect_ids_for_h5({"\"a\\\\u0000\"", "", "1"});
  expect_error(
      [] {
        expect_ids_for_h5({"", "\"a\\u0000\""});
      },
      ExitCode::kData, {"sample 1: its id \"a\\u0000\" has a NUL"});
}

}  // namespace
}  // namespace lfm2::test
