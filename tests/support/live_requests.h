// Requests that come and are cancelled while others run, at times that are counted in the scheduler's looks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "stage/pipeline/request_source.h"

namespace lfm2::test {

class LiveRequests : public RequestSource {
 public:
  // At the n-th look requests[i] has come where n >= comes[i] (which ascend), and is cancelled where n == leaves[i],
  // if it was given out by then.
  LiveRequests(std::vector<Request> requests, std::vector<int64_t> comes, std::vector<int64_t> leaves)
      : requests_(std::move(requests)), comes_(std::move(comes)), leaves_(std::move(leaves)) {}

  int64_t waiting() const override {
    const auto come = std::count_if(comes_.begin(), comes_.end(), [this](int64_t look) { return look <= looks_; });
    return come - static_cast<int64_t>(given_);
  }
  std::optional<Request> next() override {
    if (waiting() <= 0) return {};
    return requests_[given_++];
  }
  bool ended() const override { return given_ == requests_.size(); }
  std::vector<int32_t> cancelled() override {
    ++looks_;
    std::vector<int32_t> samples;
    for (size_t i = 0; i < given_; ++i)
      if (leaves_[i] == looks_) samples.push_back(requests_[i].sample);
    gone.insert(samples.begin(), samples.end());
    return samples;
  }
  void drawn(std::vector<SampleToken> tokens) override {
    for (const auto& [sample, token] : tokens) {
      EXPECT_FALSE(gone.contains(sample)) << "a token of a sample that was cancelled";
      told[sample].push_back(token);
    }
  }

  std::set<int32_t> gone;
  std::map<int32_t, std::vector<DrawnToken>> told;

 private:
  std::vector<Request> requests_;
  std::vector<int64_t> comes_, leaves_;
  int64_t looks_ = 0;
  size_t given_ = 0;
};

}  // namespace lfm2::test
