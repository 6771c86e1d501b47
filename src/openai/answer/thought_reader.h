// The thought with which a model's text may begin, apart from its answer, while the text comes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat/tool_call_text.h"

namespace lfm2 {

// Whether a prompt ends in a tag that begins a thought, or in blanks after one: then the text begins in the
// thought.
bool ends_in_thought(std::string_view prompt);

// Whether the source of a chat template names the tag that ends a thought: then an answer may begin with one.
bool template_knows_thoughts(std::string_view source);

// A thought begins at the beginning of the text, after blanks at most, and ends with the first tag that ends it;
// without one it is the whole text. All other tags are text. Where the text begins in the thought, a tag that begins it
// once more is left out. Tags may be text, cut in any way, or special tokens.
class ThoughtReader {
 public:
  enum class Kind { kThought, kTag, kAnswer };  // kTag: a tag, with the blanks before it
  struct Piece {
    Kind kind;
    std::string bytes;
  };
  explicit ThoughtReader(bool in_thought) : begins_in_thought_(in_thought) {}

  // The next bytes. What may be the beginning of a tag waits for the rest.
  std::vector<Piece> feed(std::string_view bytes);
  // The next token is special: a tag, or another one.
  std::vector<Piece> begin_tag();
  std::vector<Piece> end_tag();
  std::vector<Piece> flush();  // also at the end of the text

  bool in_answer() const { return place_ == Place::kAnswer; }
  bool thinks() const { return place_ == Place::kThought; }
  bool thought() const { return thought_; }  // whether there is one, as far as the text has come

 private:
  enum class Place { kStart, kThought, kAnswer };

  void settle(std::vector<Piece>& pieces);
  void read_start(std::vector<Piece>& pieces);
  void read_thought(std::vector<Piece>& pieces);

  const bool begins_in_thought_;
  Place place_ = Place::kStart;
  bool thought_ = false;
  std::string held_;  // bytes that may be blanks before a tag, or the beginning of one
};

}  // namespace lfm2
