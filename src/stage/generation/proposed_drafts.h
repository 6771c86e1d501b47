// Drafts that the last stage makes and returns with the tokens that they follow.
#pragma once

#include <algorithm>
#include <utility>

#include "stage/generation/drafter.h"

namespace lfm2 {

class ProposedDrafts : public Drafter {
 public:
  void on_asked() override { ++asked_; }
  void on_proposed(std::vector<int32_t> drafts, int64_t tokens) override {
    --asked_;
    drafts_ = std::move(drafts);
    tokens_ = tokens;
  }
  std::vector<int32_t> propose(std::span<const int32_t> tokens, int64_t most) override {
    if (std::ssize(tokens) != tokens_) return {};
    const auto count = std::min(drafts_.size(), static_cast<size_t>(most));
    return {drafts_.begin(), drafts_.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  bool may_propose(std::span<const int32_t> /*tokens*/, int64_t /*awaited*/) override { return asked_ > 0; }

 private:
  int64_t asked_ = 0;  // by how many steps in flight
  std::vector<int32_t> drafts_;
  int64_t tokens_ = 0;  // of the text that drafts_ follow
};

}  // namespace lfm2
