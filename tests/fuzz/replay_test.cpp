// Runs the corpus, with every input that was ever found to break a parser, through the same entry points without
// libFuzzer.
#include <gtest/gtest.h>

#include <random>

#include "fuzz/targets.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

namespace fs = std::filesystem;

class FuzzReplayTest : public ::testing::TestWithParam<fuzz::Target> {};

TEST_P(FuzzReplayTest, CorpusAndCutsOfIt) {
  const fs::path folder = fs::path(LFM2_FUZZ_CORPUS_DIR) / GetParam().name;
  std::mt19937 random(3);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path());
    ++files;
    std::string bytes = test::read_bytes(entry.path());
    GetParam().run(std::as_bytes(std::span(bytes)));
    for (int change = 0; change < 100 && !bytes.empty(); ++change) {
      std::string changed = bytes.substr(0, change % 4 == 0 ? random() % bytes.size() : bytes.size());
      if (!changed.empty()) changed[random() % changed.size()] = static_cast<char>(random());
      GetParam().run(std::as_bytes(std::span(changed)));
    }
  }
  EXPECT_GT(files, 0u);
}

INSTANTIATE_TEST_SUITE_P(Parsers, FuzzReplayTest, ::testing::ValuesIn(fuzz::targets().begin(), fuzz::targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace lfm2
