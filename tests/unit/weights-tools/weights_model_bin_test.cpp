// Everything that can be wrong in the table of a model.bin, and the table that is written.
#include "support/weights_support.h"
#include "weights-tools/formats/formats.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::HandTensor;
using test::little_endian;
using test::TemporaryFolder;

RawTensors read_model_bin(const std::string& file) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "model.bin", file);
  return read_model_bin_header(CheckedFile(folder / "model.bin"));
}

std::string entry(const std::string& name, const std::vector<uint64_t>& dims, uint64_t offset, uint64_t bytes) {
  std::string text = little_endian(name.size(), 4) + name + little_endian(dims.size(), 4);
  for (uint64_t extent : dims) text += little_endian(extent, 4);
  return text + little_endian(offset, 8) + little_endian(bytes, 8);
}

TEST(ModelBinTest, ReadsTheTable) {
  const std::string file = test::model_bin_text({{"embed_tokens.weight", "F32", {2, 3}, std::string(24, 'a')},
                                                 {"lm_head.weight", "F32", {1, 1, 1, 2}, std::string(8, 'b')}});
  const RawTensors tensors = read_model_bin(file);
  ASSERT_EQ(tensors.size(), 2u);
  // With the leading "model.", which the file leaves out.
  const RawTensor& embedding = tensors.at("model.embed_tokens.weight");
  EXPECT_EQ(embedding.dims, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(embedding.dtype, DType::kF32);
  EXPECT_EQ(file.substr(embedding.offset, embedding.bytes), std::string(24, 'a'));
  const RawTensor& head = tensors.at("lm_head.weight");  // its name never had "model." in front
  EXPECT_EQ(file.substr(head.offset, head.bytes), std::string(8, 'b'));
}

TEST(ModelBinTest, AcceptsGapsAndAnyOrderOfData) {
  const size_t table = 4 + 2 * (4 + 1 + 4 + 4 + 16);
  const std::string file =
      little_endian(2, 4) + entry("a", {1}, table + 12, 4) + entry("b", {1}, table + 2, 4) + std::string(16, 'x');
  EXPECT_EQ(read_model_bin(file).size(), 2u);
}

TEST(ModelBinTest, RefusesLies) {
  struct Lie {
    std::string what, file;
    std::vector<std::string> parts;
  };
  const size_t one = 4 + 4 + 1 + 4 + 4 + 16;  // bytes of the table of one tensor "a" of rank 1
  const size_t two = 2 * one - 4;
  const auto single = [&](const std::string& text) { return little_endian(1, 4) + text + std::string(64, 'x'); };
  const std::vector<Lie> lies = {
      {"empty", "", {"past the end"}},
      {"three bytes", "abc", {"past the end"}},
      {"no tensors", little_endian(0, 4), {"counts 0"}},
      {"too many tensors", little_endian(65537, 4) + std::string(64, 'x'), {"65537", "65536"}},
      {"2^32 - 1 tensors", little_endian(UINT32_MAX, 4) + std::string(64, 'x'), {"4294967295"}},
      {"table cut off", little_endian(2, 4) + entry("a", {1}, 8, 4), {"past the end"}},
      {"name of 2^32 - 1 bytes", little_endian(1, 4) + little_endian(UINT32_MAX, 4) + "a", {"4294967295", "256"}},
      {"name of 257 bytes", single(entry(std::string(257, 'a'), {1}, 400, 4)), {"257"}},
      {"empty name", single(entry("", {1}, 40, 4)), {"0 bytes"}},
      {"name with a slash", single(entry("a/b", {1}, 40, 4)), {"letters"}},
      {"name with NUL", single(entry(std::string("a\0b", 3), {1}, 40, 4)), {"letters"}},
      {"name cut off", little_endian(1, 4) + little_endian(200, 4) + "abc", {"past the end"}},
      {"rank 5", single(entry("a", {1, 1, 1, 1, 1}, 60, 4)), {"rank 5"}},
      {"rank 2^32 - 1",
       little_endian(1, 4) + little_endian(1, 4) + "a" + little_endian(UINT32_MAX, 4),
       {"rank 4294967295"}},
      {"shape overflows", single(entry("a", {UINT32_MAX, UINT32_MAX, UINT32_MAX}, 60, 4)), {"64 bits"}},
      {"size overflows", single(entry("a", {UINT32_MAX, 1u << 31}, 60, 4)), {"64 bits"}},
      {"size of another type", single(entry("a", {4}, one, 8)), {"8 bytes", "needs 16"}},
      {"past the end", single(entry("a", {16}, one + 4, 64)), {"offset", "bytes"}},
      {"offset past the end", single(entry("a", {1}, 10000, 4)), {"offset 10000"}},
      {"offset wraps around", single(entry("a", {2}, UINT64_MAX - 3, 8)), {"offset"}},
      {"size wraps around", single(entry("a", {2147483647, 2147483649}, 60, UINT64_MAX - 3)), {"18446744073709551612"}},
      {"inside the table", single(entry("a", {1}, 4, 4)), {"offset 4", std::to_string(one)}},
      {"overlap",
       little_endian(2, 4) + entry("a", {2}, two, 8) + entry("b", {2}, two + 4, 8) + std::string(64, 'x'),
       {"begins at offset " + std::to_string(two + 4)}},
      {"same place",
       little_endian(2, 4) + entry("a", {2}, two, 8) + entry("b", {2}, two, 8) + std::string(64, 'x'),
       {"begins at"}},
      {"stands twice",
       little_endian(2, 4) + entry("a", {2}, two, 8) + entry("a", {2}, two + 8, 8) + std::string(64, 'x'),
       {"twice"}},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    std::vector<std::string> parts = lie.parts;
    parts.push_back("model.bin");
    expect_error([&] { read_model_bin(lie.file); }, ExitCode::kData, parts);
  }
}

// Compares the writer's table with one that the test builds by hand.
TEST(ModelBinTest, LayoutIsTheDocumentedOne) {
  for (const std::string& name : test::kGoldenCases) {
    const auto model = open_model(test::golden_dir() / name);
    std::vector<HandTensor> tensors = test::load_tensors(*model);
    for (HandTensor& tensor : tensors) {
      if (tensor.name.starts_with("model.")) tensor.name = tensor.name.substr(6);
      if (tensor.dtype == "BF16") tensor.bytes = std::string(tensor.bytes.size() * 2, '\0');
    }
    const std::string expected = test::model_bin_text(tensors);
    const FileLayout layout = model_bin_layout(*model);
    EXPECT_EQ(layout.bytes, expected.size()) << name;
    EXPECT_EQ(layout.header, expected.substr(0, layout.header.size())) << name;
  }
}

}  // namespace
}  // namespace lfm2
