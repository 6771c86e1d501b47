// Where the requests of a generation come from, a list that is known in advance or clients that come and go, and what
// comes back.
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

  virtual int64_t waiting() const = 0;        // requests that next() would give now
  virtual std::optional<Request> next() = 0;  // empty where no request waits
  virtual bool ended() const = 0;             // whether no request waits and none will come
  // The samples that were cancelled since the last call, because nobody wants their completions any more. They may be
  // waiting, running, or finished already.
  virtual std::vector<int32_t> cancelled() { return {}; }
  // Called once for each sample that is begun, with the number of tokens of its prompt that the prefix cache had.
  virtual void begun(int32_t, int64_t) {}
  // Called with the tokens that a step has drawn, but for those of samples that were cancelled.
  virtual void drawn(std::vector<SampleToken>) {}
  // Called at the interval that GenerationPlan sets: the seconds that a stage was busy, of the seconds since the run
  // began; and the numbers of sequence slots and pages of the caches in use.
  virtual void stage_seconds(int64_t /*stage*/, double /*busy*/, double /*total*/) {}
  virtual void caches(int64_t /*used_slots*/, int64_t /*used_pages*/) {}
};

}  // namespace lfm2
