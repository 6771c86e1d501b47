// The constraints of requests by their text, compiled once: shared by whoever reads requests, which refuses what is not
// computed, and by the last stage, which draws under their masks.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "grammar/matcher/matcher.h"

namespace lfm2 {
class Tokenizer;
}

namespace lfm2::grammar {

// The grammar of a constraint in its text form, a JSON object with one of these keys:
//   {"json_schema": schema, "any_whitespace": bool}   a JSON text that the schema accepts; SchemaOptions has
//                                                     "any_whitespace", and "closed_objects", which may be here too
//   {"regex": pattern}                                a text that the whole expression matches
//   {"choice": [text, ...]}                           one of the texts
//   {"grammar": text}                                 a text of a grammar in llama.cpp's form, GBNF
//   {"calls": tools, "only": name, "parallel": bool}  calls of the tools, as LFM2 writes them
// With "thought" a thought precedes that: "open", the text begins inside it; "may", it may begin with one. Special
// tokens are those of the tokenizer. Refusal for what is not computed.
Grammar compile_constraint(std::string_view text, const Tokenizer& tokenizer);

// May be used by many threads at once.
class ConstraintCache {
 public:
  // `tokenizer` must outlive this; `vocab`: the number of logits.
  ConstraintCache(const Tokenizer& tokenizer, int64_t vocab);
  ConstraintCache(const ConstraintCache&) = delete;
  ConstraintCache& operator=(const ConstraintCache&) = delete;

  // Compiles the constraint unless it is here. Refusal where it cannot be.
  void check(const std::string& text) { get(text); }
  // The matcher of a text under the constraint, which ends with one of `ends`.
  Matcher begin(const std::string& text, std::vector<TokenId> ends);
  // Calls f(row) for each of `rows`, on several threads. One caller at a time.
  void parallel_for(size_t rows, const std::function<void(size_t row)>& f);

 private:
  struct Entry {
    std::shared_ptr<CompiledGrammar> grammar;  // null while it is compiled
    uint64_t used = 0;                         // when, in uses of the cache
  };
  std::shared_ptr<CompiledGrammar> get(const std::string& text);
  void make_room();

  const Tokenizer& tokenizer_;
  const size_t vocab_;
  std::mutex mutex_;
  std::condition_variable compiled_;
  std::shared_ptr<const TokenTable> tokens_;  // made for the first constraint
  std::map<std::string, Entry> entries_;
  uint64_t uses_ = 0;
  std::unique_ptr<ThreadPool> threads_;  // made for the first masks
};

}  // namespace lfm2::grammar
