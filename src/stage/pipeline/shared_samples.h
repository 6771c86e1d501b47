// The samples of a generation for several replicas, on rank 0. A replica gets the next sample when it has room, which
// is a free sequence slot and fewer waiting prompt tokens than its next steps compute. So no replica is idle while
// samples are left.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "stage/pipeline/request_source.h"

namespace lfm2 {

class SharedSamples : public SharedRequests {
 public:
  // `all` returns the choices of a sample one after another. All of them go to the same replica, whose last stage joins
  // them.
  SharedSamples(std::unique_ptr<RequestSource> all, size_t replicas, const Capacity& each);

  RequestSource& replica(size_t number) override { return replicas_[number]; }

 private:
  class Replica : public RequestSource {
   public:
    explicit Replica(SharedSamples& shared) : shared_(shared) {}
    int64_t waiting() const override;
    std::optional<Request> next() override;
    bool ended() const override { return shared_.all_->ended() && shared_.open_ == 0; }
    void begun(int32_t sample, int64_t cached) override;
    void drawn(std::vector<SampleToken> tokens) override;

   private:
    bool has_room() const;

    SharedSamples& shared_;
    std::deque<Request> choices_;                     // further choices of a sample that it got
    std::unordered_map<int32_t, int64_t> not_begun_;  // the prompt's tokens of each sample that waits at the replica
    int64_t open_ = 0, waiting_tokens_ = 0;           // sequences at the replica, and the sum of not_begun_
  };

  const std::unique_ptr<RequestSource> all_;
  const Capacity each_;
  std::deque<Replica> replicas_;
  int64_t open_ = 0;  // sequences at all replicas, and choices that will follow
};

}  // namespace lfm2
