// Everything that can be wrong in a safetensors header, and the header that Hugging Face's library would write.
#include "support/weights_support.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::safetensors_text;
using test::TemporaryFolder;

std::string header_entry(const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

RawTensors read_safetensors(const std::string& file) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "m.safetensors", file);
  return read_safetensors_header(CheckedFile(folder / "m.safetensors"), 3);
}

TEST(SafetensorsTest, ReadsAnyOrderOfKeys) {
  const std::string header = fmt::format("{{{}", header_entry("b", "BF16", "[2,3]", "[8,20]")) +
                             ",\"__metadata__\":{\"k\":\"v\"}," + header_entry("a", "F32", "[2]", "[0,8]") + "," +
                             header_entry("s", "F16", "[]", "[20,22]") + "}   ";
  const RawTensors tensors = read_safetensors(safetensors_text(header, std::string(22, 'x')));
  ASSERT_EQ(tensors.size(), 3u);
  const RawTensor& b = tensors.at("b");
  EXPECT_EQ(b.dtype, DType::kBf16);
  EXPECT_EQ(b.dims, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b.file, 3u);
  EXPECT_EQ(b.offset, 8 + header.size() + 8);
  EXPECT_EQ(b.bytes, 12u);
  EXPECT_EQ(tensors.at("s").bytes, 2u);
}

struct FalseHeader {
  std::string what, file;
  std::vector<std::string> parts;
};

std::vector<FalseHeader> lies_about_the_header() {
  const std::string good = fmt::format("{{{}}}", header_entry("a", "F32", "[2]", "[0,8]"));
  std::vector<FalseHeader> lies = {
      {"empty file", "", {"0 bytes"}},
      {"seven bytes", "1234567", {"7 bytes"}},
      {"no header", test::little_endian(0, 8), {"'{'"}},
      {"header past the end", test::little_endian(1000, 8) + good, {"1000", "bytes"}},
      {"header by one too long", test::little_endian(good.size() + 1, 8) + good, {std::to_string(good.size() + 1)}},
      {"header of 2^64 - 1", test::little_endian(UINT64_MAX, 8) + good, {"18446744073709551615", "16777216"}},
      {"header of 2^64 - 8", test::little_endian(UINT64_MAX - 7, 8) + good, {"16777216"}},
      {"header above the limit", test::little_endian(16'777'217, 8) + good, {"16777217", "16777216"}},
      {"leading space", safetensors_text(fmt::format(" {}", good), std::string(8, 'x')), {"'{'"}},
      {"list", safetensors_text("[1]", ""), {"'{'"}},
      {"bad JSON", safetensors_text("{\"a\":}", ""), {"not valid JSON"}},
      {"text after the JSON", safetensors_text(good + "x", std::string(8, 'x')), {"not valid JSON"}},
      {"deep nesting", safetensors_text("{\"a\":" + std::string(100000, '['), ""), {"deeper"}},
      {"invalid UTF-8", safetensors_text("{\"\xff\":1}", ""), {"not valid JSON"}},
      {"metadata of numbers", safetensors_text("{\"__metadata__\":{\"a\":1}}", ""), {"__metadata__"}},
      {"metadata as list", safetensors_text("{\"__metadata__\":[]}", ""), {"__metadata__"}},
  };
  const std::string twice = header_entry("a", "F32", "[2]", "[0,8]");
  lies.push_back(
      {"equal keys", safetensors_text(fmt::format("{{{},{}}}", twice, twice), std::string(8, 'x')), {"stands twice"}});
  return lies;
}

std::vector<FalseHeader> lies_about_tensors() {
  struct Bad {
    std::string what, header;
    size_t data;
    std::vector<std::string> parts;
  };
  const std::string a = header_entry("a", "F32", "[2]", "[0,8]");
  const std::vector<Bad> bad = {
      {"type too wide", header_entry("a", "F64", "[1]", "[0,8]"), 8, {"tensor a", "F64", "expected F32"}},
      {"integer type", header_entry("a", "I32", "[2]", "[0,8]"), 8, {"I32"}},
      {"type is no text", "\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}", 8, {"tensor a", "dtype"}},
      {"size of another type", header_entry("a", "BF16", "[2]", "[0,8]"), 8, {"tensor a", "8 bytes", "needs 4"}},
      {"shape too large", header_entry("a", "F32", "[3]", "[0,8]"), 8, {"needs 12"}},
      {"shape overflows", header_entry("a", "F32", "[4294967296,4294967296]", "[0,8]"), 8, {"64 bits"}},
      {"shape times size overflows", header_entry("a", "F32", "[4611686018427387906]", "[0,8]"), 8, {"64 bits"}},
      {"shape beyond 64 bits", header_entry("a", "F32", "[99999999999999999999999]", "[0,8]"), 8, {"unsigned"}},
      {"negative extent", header_entry("a", "F32", "[-2]", "[0,8]"), 8, {"unsigned"}},
      {"fractional extent", header_entry("a", "F32", "[2.0]", "[0,8]"), 8, {"unsigned"}},
      {"rank 9", header_entry("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8, {"at most 8"}},
      {"shape is no list", header_entry("a", "F32", "2", "[0,8]"), 8, {"shape"}},
      {"end before begin", header_entry("a", "F32", "[2]", "[8,0]"), 8, {"data_offsets"}},
      {"one offset", header_entry("a", "F32", "[2]", "[8]"), 8, {"data_offsets"}},
      {"three offsets", header_entry("a", "F32", "[2]", "[0,8,8]"), 8, {"data_offsets"}},
      {"past the end", header_entry("a", "F32", "[2]", "[0,8]"), 7, {"8 bytes", "7"}},
      {"far past the end",
       a + "," + header_entry("b", "F32", "[2]", "[18446744073709551600,18446744073709551608]"),
       8,
       {"hole"}},
      {"end wraps around", a + "," + header_entry("b", "F32", "[4611686018427387903]", "[8,4]"), 8, {"data_offsets"}},
      {"bytes after the last", a, 9, {"8 bytes", "9"}},
      {"hole", a + "," + header_entry("b", "F32", "[1]", "[12,16]"), 16, {"tensor b", "hole"}},
      {"hole at the start", header_entry("a", "F32", "[2]", "[4,12]"), 12, {"tensor a", "hole"}},
      {"overlap", a + "," + header_entry("b", "F32", "[2]", "[4,12]"), 12, {"tensor b", "overlap"}},
      {"same place", a + "," + header_entry("b", "F32", "[2]", "[0,8]"), 8, {"overlap"}},
      {"inside another", a + "," + header_entry("b", "F32", "[1]", "[2,6]"), 8, {"overlap"}},
      {"no tensors but data", "", 8, {"0 bytes", "8"}},
      {"shape missing", "\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}", 8, {"tensor a", "shape"}},
      {"one key more", "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}", 8, {"exactly"}},
      {"tensor is a number", "\"a\":1", 0, {"tensor a"}},
  };
  std::vector<FalseHeader> lies;
  for (const Bad& b : bad)
    lies.push_back({b.what, safetensors_text(fmt::format("{{{}}}", b.header), std::string(b.data, 'x')), b.parts});
  return lies;
}

void expect_refused(const std::vector<FalseHeader>& lies) {
  for (const FalseHeader& lie : lies) {
    SCOPED_TRACE(lie.what);
    std::vector<std::string> parts = lie.parts;
    parts.push_back("m.safetensors");
    expect_error([&] { read_safetensors(lie.file); }, ExitCode::kData, parts);
  }
}

TEST(SafetensorsTest, RefusesLiesAboutTheHeader) { expect_refused(lies_about_the_header()); }
TEST(SafetensorsTest, RefusesLiesAboutTensors) { expect_refused(lies_about_tensors()); }

// Whichever byte of a header is changed, the file is refused, or all tensors are still inside it.
TEST(SafetensorsTest, AnyChangedByteIsSafe) {
  const std::string good =
      test::safetensors_text({{"a", "F32", {2}, std::string(8, 'x')}, {"b", "BF16", {2, 2}, std::string(8, 'y')}});
  size_t refused = 0, tried = 0;
  for (size_t at = 0; at < good.size() - 16; ++at) {
    for (const int flip : {1, 4, 32, 128}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      ++tried;
      try {
        for (const auto& [name, raw] : read_safetensors(bad)) EXPECT_LE(raw.offset + raw.bytes, bad.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, tried / 2);
}

TEST(SafetensorsTest, LayoutIsThatOfTheLibrary) {
  for (const std::string& name : test::kGoldenCases) {
    const auto model = open_model(test::golden_dir() / name);
    const FileLayout layout = safetensors_layout(*model);
    const std::string file = test::read_bytes(test::golden_dir() / name / "model.safetensors");
    EXPECT_EQ(layout.bytes, file.size()) << name;
    EXPECT_EQ(layout.header, file.substr(0, layout.header.size())) << name;
    EXPECT_EQ(layout.header.size() % 8, 0u);
  }
}

}  // namespace
}  // namespace lfm2
