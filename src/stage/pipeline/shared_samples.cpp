#include "stage/pipeline/shared_samples.h"

#include <algorithm>

namespace lfm2 {

SharedSamples::SharedSamples(std::unique_ptr<RequestSource> all, size_t replicas, const Capacity& each)
    : all_(std::move(all)), each_(each) {
  for (size_t number = 0; number < replicas; ++number) replicas_.emplace_back(*this);
}

bool SharedSamples::Replica::has_room() const {
  return open_ < shared_.each_.sequences && waiting_tokens_ < shared_.each_.waiting_tokens;
}

int64_t SharedSamples::Replica::waiting() const {
  return has_room() ? std::ssize(choices_) + shared_.all_->waiting() : 0;
}

std::optional<Request> SharedSamples::Replica::next() {
  if (!has_room()) return {};
  if (choices_.empty()) {
    std::optional<Request> first = shared_.all_->next();
    if (!first) return {};
    const int32_t choices = first->choices;
    choices_.push_back(std::move(*first));
    for (int32_t choice = 1; choice < choices; ++choice) choices_.push_back(*shared_.all_->next());
    shared_.open_ += choices;
  }
  Request request = std::move(choices_.front());
  choices_.pop_front();
  ++open_;
  waiting_tokens_ += std::ssize(request.prompt);
  not_begun_[request.sample] = std::ssize(request.prompt);
  return request;
}

void SharedSamples::Replica::begun(int32_t sample, int64_t) {
  const auto found = not_begun_.find(sample);
  if (found == not_begun_.end()) return;
  waiting_tokens_ -= found->second;
  not_begun_.erase(found);
}

void SharedSamples::Replica::drawn(std::vector<SampleToken> tokens) {
  const auto ended = std::ranges::count_if(tokens, [](const SampleToken& one) { return one.token.ends.has_value(); });
  open_ -= ended;
  shared_.open_ -= ended;
}

}  // namespace lfm2
