// The source of a generation's requests, either a list known in advance or clients, and the receiver of its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "stage/pipeline/completion.h"
#include "stage/pipeline/request.h"

namespace lfm2 {

struct SampleToken {
  int32_t sample = 0;
  DrawnToken token;
};
void for_each_field(MaybeConst<SampleToken> auto& one, const auto& each) { each(one.sample, one.token); }

// Used only by the first stage, on one thread: poll() also while the stage waits, all else between steps. No function
// blocks.
class RequestSource {
 public:
  virtual ~RequestSource() = default;

  virtual int64_t waiting() const = 0;        // number of requests that next() would return now
  virtual std::optional<Request> next() = 0;  // empty if no request waits
  virtual bool ended() const = 0;             // whether no request waits and none will come
  // The samples that were cancelled since the last call. They may be waiting, running, or already finished.
  virtual std::vector<int32_t> cancelled() { return {}; }
  // Called once for each sample when it begins, with the number of its prompt tokens found in the prefix cache.
  virtual void begun(int32_t, int64_t) {}
  // Called with the tokens that a step has drawn, except those of cancelled samples.
  virtual void drawn(std::vector<SampleToken>) {}
  // Called at GenerationPlan's interval: the seconds that a stage was busy, of the seconds since the run began; and the
  // numbers of sequence slots and cache pages in use.
  virtual void stage_seconds(int64_t /*stage*/, double /*busy*/, double /*total*/) {}
  virtual void caches(int64_t /*used_slots*/, int64_t /*used_pages*/) {}
  virtual void poll() {}  // passes requests and tokens on, if they come from another rank or go to one
};

// What a pipeline has room for. All replicas have the same capacity.
struct Capacity {
  int64_t positions = 0;       // the most of a sequence
  int64_t sequences = 0;       // sequence slots
  int64_t waiting_tokens = 0;  // prompt tokens that its steps in flight and the next one compute at most
  int64_t kept_pages = 0;      // of the prefix cache; 0: there is none
  int64_t page_size = 0;
};

// The requests of all replicas, on rank 0.
class SharedRequests {
 public:
  virtual ~SharedRequests() = default;
  // They have ended once no replica has an open request, so that all replicas end together.
  virtual RequestSource& replica(size_t number) = 0;
  virtual void poll() {}  // see RequestSource
};

// Those of a single pipeline.
class UnsharedRequests : public SharedRequests {
 public:
  explicit UnsharedRequests(std::unique_ptr<RequestSource> source) : source_(std::move(source)) {}
  RequestSource& replica(size_t) override { return *source_; }

 private:
  std::unique_ptr<RequestSource> source_;
};

}  // namespace lfm2
