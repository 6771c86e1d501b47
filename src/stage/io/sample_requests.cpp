#include "stage/io/sample_requests.h"

namespace lfm2 {

SampleRequests::SampleRequests(const Samples& samples, SampleRange range, RequestDefaults defaults,
                               int64_t max_positions)
    : samples_(samples), range_(range), defaults_(std::move(defaults)), max_positions_(max_positions) {
  for (int64_t i = 0; i < range.count; ++i)
    if (samples.offsets.length(range.first + i) > 0)
      waiting_ += samples.rules.choices(samples.numbers[range.first + i]);
}

std::optional<Request> SampleRequests::next() {
  if (waiting_ == 0) return {};
  while (samples_.offsets.length(range_.first + given_) == 0) ++given_;
  --waiting_;
  const int64_t sample = range_.first + given_, length = samples_.offsets.length(sample);
  const int64_t number = samples_.numbers[sample];
  const auto prompt = samples_.tokens(samples_.offsets[sample], length);
  Request request = request_by_rules(defaults_, samples_.rules[number], number);
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_new = max_new_tokens(length, request.max_new, max_positions_);
  request.choice = choice_;
  request.rule.seed = seed_of_choice(request.rule.seed, choice_);
  if (choice_ > 0) {
    request.first = request.sample;
    request.sample = extra_--;
  }
  if (++choice_ < request.choices) return request;
  choice_ = 0;
  ++given_;
  return request;
}

}  // namespace lfm2
