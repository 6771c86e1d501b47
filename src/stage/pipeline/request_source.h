// The source of a generation's requests, either a list known in advance or clients, and the receiver of its tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stage/pipeline/completion.h"
#include "stage/pipeline/request.h"

namespace lfm2 {

struct SampleToken {
  int32_t sample = 0;
  DrawnToken token;
};

// Used only by the first stage, between steps, on one thread. No function blocks.
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
};

}  // namespace lfm2
