// Speculative decoding: guesses of a sequence's next tokens (drafts), which a step verifies together. A draft is right
// if the model draws the same token at its place, so drafts change no token, whoever makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "stage/pipeline/request.h"

namespace lfm2 {

// Makes drafts for one sequence. `tokens` is always its prompt and the text so far, which only grows between calls.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Reads tokens early, so that propose() has less to do.
  virtual void read(std::span<const int32_t> /*tokens*/) {}
  // Up to `most` token ids that may follow. A draft that is no token of the model is dropped, with those after it.
  virtual std::vector<int32_t> propose(std::span<const int32_t> tokens, int64_t most) = 0;
  // Whether propose() may return drafts once `awaited` more tokens are known. If so, the sequence waits for them
  // instead of running ahead.
  virtual bool may_propose(std::span<const int32_t> /*tokens*/, int64_t /*awaited*/) { return true; }
  // Of drafts that the last stage makes: a step asks for them, and the tokens that it returns may bring some, which
  // follow a text of `tokens` tokens.
  virtual void on_asked() {}
  virtual void on_proposed(std::vector<int32_t> /*drafts*/, int64_t /*tokens*/) {}
};

// Makes the drafter of a sequence from its request, which comes without its prompt, and the prompt's length.
using DrafterFactory = std::function<std::unique_ptr<Drafter>(const Request& request, int64_t prompt)>;

}  // namespace lfm2
