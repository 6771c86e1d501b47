// Cuts text into the pieces that are encoded one by one, by the Split patterns of tokenizer.json, with PCRE2.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/split_pattern.h"
#include "text/work_limit.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace lfm2 {

class PreTokenizer {
 public:
  // The working memory of one thread.
  class Scratch {
   public:
    Scratch();

   private:
    friend class PreTokenizer;
    struct Free {
      void operator()(pcre2_real_match_data_8* data) const;
      void operator()(pcre2_real_match_context_8* context) const;
      void operator()(pcre2_real_jit_stack_8* stack) const;
    };
    std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
    std::unique_ptr<pcre2_real_match_context_8, Free> context_;
    std::unique_ptr<pcre2_real_match_data_8, Free> match_;
    std::vector<uint8_t> symbols_;  // of the text, if it is not ASCII
  };

  // Each pattern cuts the pieces of the previous pattern further: both the matches and the text between them become
  // pieces. Error(kData) naming `what` if a pattern does not compile or can match an empty text.
  PreTokenizer(const std::vector<SplitPattern>& patterns, const std::string& what);

  // Calls on_piece(piece) for every piece, in order; the pieces together are the text. Bytes that are not UTF-8 match
  // nothing. Error(kData) if a pattern exceeds the limit.
  template <class OnPiece>
  void split(std::string_view text, Scratch& scratch, WorkLimit& limit, OnPiece&& on_piece) const {
    split_symbols(symbols(text, scratch), 0, text, {scratch, limit}, [&](std::string_view piece) { on_piece(piece); });
  }

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct Pattern {
    std::unique_ptr<pcre2_real_code_8, FreeCode> code;
    std::string name;  // for messages, with its expression
    bool compiled_to_machine_code;
  };
  struct Match {
    size_t begin, end;
  };
  struct Work {
    Scratch& scratch;
    WorkLimit& limit;
  };

  std::string_view symbols(std::string_view text, Scratch& scratch) const;
  // The first match that begins at `from` or later; if there is none, `begin` is the number of symbols.
  Match next_match(const Pattern& pattern, std::string_view symbols, size_t from, const Work& work) const;
  // Runs PCRE2 on these symbols and returns its result.
  int run(const Pattern& pattern, std::string_view symbols, size_t from, uint32_t options, const Work& work) const;

  template <class OnPiece>
  void split_symbols(std::string_view symbols, size_t level, std::string_view& text, const Work& work,
                     const OnPiece& on_piece) const {
    if (level == patterns_.size()) {
      if (symbols.empty()) return;
      const size_t bytes = bytes_of(symbols, text);
      on_piece(text.substr(0, bytes));
      text.remove_prefix(bytes);
      return;
    }
    size_t at = 0;
    while (at < symbols.size()) {
      const Match match = next_match(patterns_[level], symbols, at, work);
      if (match.begin > at) split_symbols(symbols.substr(at, match.begin - at), level + 1, text, work, on_piece);
      if (match.end > match.begin)
        split_symbols(symbols.substr(match.begin, match.end - match.begin), level + 1, text, work, on_piece);
      at = match.end;
    }
  }

  // The number of bytes of `text` that its first symbols, `symbols`, represent.
  static size_t bytes_of(std::string_view symbols, std::string_view text);

  SymbolTable table_;
  std::vector<Pattern> patterns_;
  std::string what_;
};

}  // namespace lfm2
