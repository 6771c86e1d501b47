// Samples of lines, also packed, and what is refused of them.
#include "stage/io/inputs/line_samples.h"

#include <zlib.h>
#include <zstd.h>

#include <random>

#include "support/read_input.h"

namespace lfm2::test {
namespace {

using LineSamplesTest = ReadInputTest;

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

TEST_F(LineSamplesTest, Jsonl) {
  write_text(
      folder_ / "a.jsonl",
      "{\"input_ids\": [1, 2], \"id\": \"x\\n\\u00e9\"}\n\n{\"id\": 7, \"input_ids\": [3]}\r\n{\"input_ids\": [4]}");
  const Samples samples = read_input(folder_ / "a.jsonl");
  EXPECT_EQ(samples.ids, (TokenIds{1, 2, 3, 4}));
  EXPECT_EQ(samples.offsets, (SampleOffsets{0, 2, 3, 4}));
  EXPECT_EQ(samples.names, (SampleNames{"\"x\\né\"", "7", ""}));
}

TEST_F(LineSamplesTest, JsonlLongerThanOneRead) {
  std::string text;
  for (int i = 0; i < 90000; ++i) text += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, " + std::to_string(i % 100) + "]}\n";
  write_text(folder_ / "long.jsonl", text);
  const Samples samples = read_input(folder_ / "long.jsonl");
  ASSERT_EQ(samples.count(), 90000);
  for (int i = 0; i < 90000; ++i) ASSERT_EQ(samples.ids[static_cast<size_t>(i) * 8 + 7], i % 100);
}

TEST_F(LineSamplesTest, JsonlRefused) {
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

TEST_F(LineSamplesTest, PackedLines) {
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

TEST_F(LineSamplesTest, ReadingSeesARequestToStop) {
  write_values<int32_t>(folder_ / "a.bin", {2, 2, 1, 2, 3, 4});
  h5::File file = h5::File::create(folder_ / "a.h5");
  write_table(file, "input_ids", {1, 2, 3, 4}, 2);
  file.close();
  const auto stop = [] { throw Error(ExitCode::kStopped, "stopped"); };
  for (const char* name : {"a.bin", "a.h5"})
    test::expect_error([&] { read_samples(folder_ / name, kLimits, stop); }, ExitCode::kStopped, {"stopped"});
}

}  // namespace
}  // namespace lfm2::test
