// How a model's text becomes the message of an answer.
#pragma once

#include <compare>
#include <cstdint>

namespace lfm2 {

// What becomes of the thought with which a text may begin, between <think> and </think>.
enum class Thoughts : uint8_t {
  kNone,    // nothing is looked for: the text of /v1/completions
  kApart,   // it has fields of its own
  kAsText,  // it stays in the content, with its tags
  kLeftOut
};

struct MessageForm {
  Thoughts thoughts = Thoughts::kNone;
  bool in_thought = false;  // the prompt ends inside a thought
  bool calls = false;       // calls of tools are looked for
  bool one_call = false;    // and only the first one counts
  bool operator==(const MessageForm&) const = default;
  auto operator<=>(const MessageForm&) const = default;

  // Five bits.
  int32_t to_word() const {
    return static_cast<int32_t>(thoughts) | (in_thought ? 4 : 0) | (calls ? 8 : 0) | (one_call ? 16 : 0);
  }
  static MessageForm from_word(int32_t word) {
    return {static_cast<Thoughts>(word & 3), (word & 4) != 0, (word & 8) != 0, (word & 16) != 0};
  }
};

}  // namespace lfm2
