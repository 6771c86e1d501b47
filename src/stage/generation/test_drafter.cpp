#include "stage/generation/test_drafter.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/json/json.h"
#include "base/split_mix.h"

namespace lfm2 {

std::vector<int32_t> TestDrafter::propose(std::span<const int32_t> tokens, int64_t most) {
  const int64_t drawn = std::ssize(tokens) - prompt_;
  std::vector<int32_t> drafts;
  if (drafts_.kind == TestDrafts::Kind::kRandom)
    most = static_cast<int64_t>(split_mix(seed_, static_cast<uint64_t>(drawn)) % static_cast<uint64_t>(most + 1));
  for (int64_t place = drawn; place < drawn + most && place < std::ssize(text_); ++place) {
    const int32_t right = text_[static_cast<size_t>(place)];
    const uint64_t random = split_mix(seed_ + 1, static_cast<uint64_t>(place));
    const bool hits = static_cast<double>(random >> 11) < drafts_.share * 0x1p53;
    const auto any = static_cast<int32_t>(random % static_cast<uint64_t>(drafts_.vocab + 2)) - 1;
    if (drafts_.kind == TestDrafts::Kind::kLate)
      drafts.push_back(place > 0 ? text_[static_cast<size_t>(place - 1)] : right);
    else if (drafts_.kind == TestDrafts::Kind::kRandom)
      drafts.push_back(random % 3 == 0 ? any : right);
    else
      drafts.push_back(hits ? right : static_cast<int32_t>((right + 1) % drafts_.vocab));
  }
  return drafts;
}

namespace {

// The text of each line.
std::vector<std::vector<int32_t>> read_texts(const std::string& file) {
  std::ifstream lines(file);
  if (!lines) throw Error(ExitCode::kNoInput, fmt::format("{}: cannot be opened", file));
  std::vector<std::vector<int32_t>> texts;
  for (std::string line; std::getline(lines, line);) {
    const Json completion = Json::parse(line);
    texts.push_back(completion.value("token_ids", std::vector<int32_t>()));
  }
  return texts;
}

}  // namespace

DrafterFactory test_drafters(const std::string& name, int64_t vocab) {
  const std::string_view text(name);
  const size_t end = text.find(':');
  std::string_view kind = text.substr(0, end);
  TestDrafts drafts{.vocab = vocab};
  if (const size_t at = kind.find('@'); at != std::string_view::npos) {
    const std::string_view share = kind.substr(at + 1);
    std::from_chars(share.data(), share.data() + share.size(), drafts.share);
    kind = kind.substr(0, at);
  }
  if (kind == "wrong")
    drafts.share = 0;
  else if (kind == "late")
    drafts.kind = TestDrafts::Kind::kLate;
  else if (kind == "random")
    drafts.kind = TestDrafts::Kind::kRandom;
  if (end == std::string_view::npos || (kind != "right" && kind != "wrong" && kind != "late" && kind != "random"))
    throw Error(ExitCode::kUsage, fmt::format("--draft test:{}: expected right@SHARE:FILE, wrong:FILE, late:FILE or "
                                              "random:FILE",
                                              name));
  auto texts = std::make_shared<const std::vector<std::vector<int32_t>>>(read_texts(name.substr(end + 1)));
  return [drafts, texts](const Request& request, int64_t prompt) -> std::unique_ptr<Drafter> {
    const auto sample = static_cast<size_t>(request.sample);  // of further choices it is negative: no text
    if (sample >= texts->size()) return nullptr;
    return std::make_unique<TestDrafter>(drafts, (*texts)[sample], prompt, sample);
  };
}

}  // namespace lfm2
