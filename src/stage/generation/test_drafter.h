// Drafters whose drafts are known to be right or wrong, for tests and measurements: an oracle that knows the texts.
#pragma once

#include <filesystem>
#include <string>

#include "stage/generation/drafter.h"

namespace lfm2 {

struct TestDrafts {
  enum class Kind : uint8_t {
    kRight,  // each draft is right with the probability `share`, independently
    kLate,   // each draft is the right token of the place before
    kRandom  // of any number; right ones, others, and ids that are no tokens
  };
  Kind kind = Kind::kRight;
  double share = 1;
  int64_t vocab = 0;
};

class TestDrafter : public Drafter {
 public:
  // `text`: what is drawn after a prompt of `prompt` tokens. `seed` decides which drafts are wrong.
  TestDrafter(TestDrafts drafts, std::vector<int32_t> text, int64_t prompt, uint64_t seed)
      : drafts_(drafts), text_(std::move(text)), prompt_(prompt), seed_(seed) {}
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int64_t most) override;

 private:
  const TestDrafts drafts_;
  const std::vector<int32_t> text_;
  const int64_t prompt_;
  const uint64_t seed_;
};

// The drafters of `--draft test:right@0.7:FILE`, or wrong, late or random. FILE has the completions of the same job
// without drafts, as lines of "token_ids". Error(kUsage) for another name.
DrafterFactory test_drafters(const std::string& name, int64_t vocab);

}  // namespace lfm2
