// One thread compiles a constraint while those that ask for the same one wait for it.
#include "grammar/constraint_cache.h"

#include <algorithm>
#include <new>
#include <thread>

#include "base/error.h"
#include "base/json/large_json.h"
#include "grammar/call_list.h"
#include "grammar/expression/text_set.h"
#include "grammar/gbnf.h"
#include "grammar/regex_choice.h"
#include "grammar/schema/schema_grammar.h"
#include "text/tokenizer.h"

namespace lfm2::grammar {

namespace {

constexpr int kThreads = 4;  // for the masks of a step
// Constraints that no text uses stay up to these limits; the one whose last use is longest ago goes first.
constexpr size_t kMaxUnused = 256, kMaxUnusedBytes = size_t{512} << 20;

TokenId special_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<TokenId> found = tokenizer.find(text);
  if (!found) throw Refusal("", "", fmt::format("no token {} in the tokenizer", text), "a model that calls tools");
  return *found;
}

// The tag is a special token of some models, and text of others.
Symbol tag(Grammar& grammar, const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<TokenId> found = tokenizer.find(text);
  return found && tokenizer.is_special(*found) ? Symbol::token(*found) : Symbol::text(grammar.expressions().text(text));
}

// Any text up to the first </think>, then blanks, then a text of the grammar.
void add_thought(Grammar& grammar, const Tokenizer& tokenizer, bool open) {
  constexpr std::string_view kEnd = "</think>";
  Expressions& expressions = grammar.expressions();
  const TextSet any = any_text();
  const Expr thought = lower(complement(concat({any, lfm2::grammar::text(kEnd), any})), Spelling::kRaw, expressions);
  ByteSet blank;
  blank.set(' ').set('\n');
  const Symbol blanks = Symbol::text(expressions.repeat(expressions.bytes(blank), 0));
  const RuleId answer = grammar.start_rule(), whole = grammar.add_rule();
  const Sequence inside{Symbol::text(thought), tag(grammar, tokenizer, kEnd), blanks, Symbol::rule(answer)};
  std::vector<Sequence> alternatives{inside};
  if (!open) {
    alternatives.front().insert(alternatives.front().begin(), tag(grammar, tokenizer, "<think>"));
    alternatives.push_back({Symbol::rule(answer)});
  }
  grammar.set_alternatives(whole, std::move(alternatives));
  grammar.set_start(whole);
  grammar.finish();
}

Grammar answer_grammar(const OrderedJson& json, const Tokenizer& tokenizer) {
  if (const auto found = json.find("regex"); found != json.end())
    return regex_grammar(found->get_ref<const std::string&>());
  if (const auto found = json.find("choice"); found != json.end())
    return choice_grammar(found->get<std::vector<std::string>>());
  if (const auto found = json.find("grammar"); found != json.end())
    return gbnf_grammar(found->get_ref<const std::string&>());
  if (const auto found = json.find("calls"); found != json.end())
    return call_list_grammar(json_text_with_digits(*found), {.start = special_token(tokenizer, "<|tool_call_start|>"),
                                                             .end = special_token(tokenizer, "<|tool_call_end|>"),
                                                             .only = json.value("only", std::string()),
                                                             .parallel = json.value("parallel", true)});
  const auto schema = json.find("json_schema");
  expect(schema != json.end(), "compile_constraint: a kind that is not known");
  return schema_grammar(json_text_with_digits(*schema), {.any_whitespace = json.value("any_whitespace", true),
                                                         .closed_objects = json.value("closed_objects", false)});
}

}  // namespace

Grammar compile_constraint(std::string_view text, const Tokenizer& tokenizer) try {
  const LargeJson parsed = parse_large_json(text, "constraint");
  Grammar grammar = answer_grammar(*parsed, tokenizer);
  if (const auto thought = parsed->find("thought"); thought != parsed->end())
    add_thought(grammar, tokenizer, *thought == "open");
  return grammar;
} catch (const std::bad_alloc&) {
  throw Refusal("", "", "a constraint that needs too much memory", "a smaller one");
}

ConstraintCache::ConstraintCache(const Tokenizer& tokenizer, int64_t vocab)
    : tokenizer_(tokenizer), vocab_(static_cast<size_t>(vocab)) {}

// Drops unused constraints beyond the limits. With the lock.
void ConstraintCache::make_room() {
  while (true) {
    size_t count = 0, bytes = 0;
    auto oldest = entries_.end();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.grammar == nullptr || it->second.grammar.use_count() > 1) continue;
      ++count;
      bytes += it->second.grammar->memory();
      if (oldest == entries_.end() || it->second.used < oldest->second.used) oldest = it;
    }
    if (count == 0 || (count <= kMaxUnused && bytes <= kMaxUnusedBytes)) return;
    entries_.erase(oldest);
  }
}

std::shared_ptr<CompiledGrammar> ConstraintCache::get(const std::string& text) {
  std::unique_lock lock(mutex_);
  for (auto found = entries_.find(text); found != entries_.end(); found = entries_.find(text)) {
    if (found->second.grammar != nullptr) {
      found->second.used = ++uses_;
      return found->second.grammar;
    }
    compiled_.wait(lock);
  }
  if (tokens_ == nullptr) tokens_ = std::make_shared<TokenTable>(tokenizer_, vocab_);  // may throw: before the entry
  entries_[text].used = ++uses_;
  lock.unlock();
  std::shared_ptr<CompiledGrammar> compiled;
  try {
    compiled = std::make_shared<CompiledGrammar>(compile_constraint(text, tokenizer_), tokens_);
  } catch (...) {
    lock.lock();
    entries_.erase(text);
    compiled_.notify_all();
    throw;
  }
  lock.lock();
  entries_[text].grammar = compiled;
  compiled_.notify_all();
  make_room();
  return compiled;
}

Matcher ConstraintCache::begin(const std::string& text, std::vector<TokenId> ends) {
  return {get(text), std::move(ends)};
}

void ConstraintCache::parallel_for(size_t rows, const std::function<void(size_t row)>& f) {
  if (threads_ == nullptr)
    threads_ =
        std::make_unique<ThreadPool>(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreads));
  threads_->parallel_for(rows, [&](size_t row, size_t) { f(row); });
}

}  // namespace lfm2::grammar
