// Which replica gets a request. The rule: requests wait in one queue, and the oldest one gets a replica as soon as any
// has room, which is a free sequence slot and fewer waiting prompt tokens than its next steps compute. Of the replicas
// with room, those count that have at most a quarter, or 4, more open sequences than the least loaded of them. The
// request goes to the one among these that was sent the longest prefix of its prompt before. If several were, it goes
// to the least loaded, then to the one whose newest request is the oldest. What was sent tells what the prefix cache
// holds, but for pages that were evicted since. The choice changes no bits.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "stage/job/traffic.h"
#include "stage/pipeline/request.h"

namespace lfm2::serve {

// A prompt as far as the choice depends on it.
struct PromptPages {
  int64_t tokens = 0;
  std::vector<uint64_t> pages = {};  // a hash for each full page, of its tokens and all tokens before them
  bool may_use_prefix = false;       // see Request
};

// The pages that a replica was sent most recently, at most `capacity` of them.
class SentPages {
 public:
  explicit SentPages(int64_t capacity) : capacity_(capacity) {}
  int64_t count_known(std::span<const uint64_t> pages) const;  // the number of leading pages that are remembered
  void add(std::span<const uint64_t> pages);

 private:
  int64_t capacity_;
  std::list<uint64_t> by_use_;  // the newest first; of a prompt its first page
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

class ReplicaChoice {
 public:
  // All replicas have the capacity `each`. A single replica always has room.
  ReplicaChoice(size_t replicas, const Capacity& each);

  PromptPages pages_of(const Request& request) const;  // on any thread
  // The replica for a sequence, whose prompt then waits there; empty while none has room.
  std::optional<size_t> choose(const PromptPages& prompt);
  void begun(size_t replica, int64_t prompt_tokens);  // a prompt waits no longer
  void ended(size_t replica);                         // a sequence has left

 private:
  struct Load {
    int64_t sequences = 0;      // open ones
    int64_t prompt_tokens = 0;  // of prompts that wait
    int64_t newest = 0;         // when it was chosen last, in choices
    SentPages sent;
  };
  bool has_room(const Load& load) const;

  const Capacity each_;
  std::vector<Load> loads_;
  int64_t choices_ = 0;
};

}  // namespace lfm2::serve
