// Compiles a grammar and walks along one text of it. The input is the text of the grammar, a NUL, and the choices among
// the tokens of each mask.
#include "fuzz/grammar_targets.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/large_json.h"
#include "fuzz/parser_files.h"
#include "fuzz/targets.h"
#include "grammar/call_list.h"
#include "grammar/gbnf.h"
#include "grammar/matcher/matcher.h"
#include "grammar/regex_choice.h"
#include "grammar/schema/schema_grammar.h"

namespace lfm2::fuzz {

namespace {

using grammar::CompiledGrammar;
using grammar::Grammar;
using grammar::Matcher;

constexpr TokenId kEnd = 256, kStartCalls = 257, kEndCalls = 258;
constexpr size_t kMaxWalk = 200;

// Small, so that hostile inputs meet them soon.
grammar::Limits small_limits() {
  grammar::Limits limits;
  limits.expression_nodes = 20'000;
  limits.expression_steps = limits.mask_steps = 100'000;
  limits.max_places = 256;
  limits.max_state_bytes = size_t{1} << 20;
  limits.max_mask_bytes = size_t{1} << 16;
  limits.mask_fuel = 20'000;
  return limits;
}

// Each byte, three tokens without text, and some of several bytes.
std::shared_ptr<const grammar::TokenTable> tokens() {
  static const auto table = [] {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    texts.resize(kEndCalls + 1);
    for (const char* text :
         {"{\"", "\": ", "\", \"", "true", "null", "-1", "0.5", "e+", "  ", "\\u00", "é", "的", "\"}", "]]", "ab"})
      texts.emplace_back(text);
    return std::make_shared<const grammar::TokenTable>(std::move(texts));
  }();
  return table;
}

std::vector<TokenId> allowed(Matcher& matcher) {
  std::vector<uint32_t> mask(tokens()->mask_words());
  matcher.mask(mask);
  std::vector<TokenId> ids;
  for (size_t id = 0; id < tokens()->size(); ++id)
    if (mask[id / 32] >> (id % 32) & 1) ids.push_back(static_cast<TokenId>(id));
  return ids;
}

// Walks by the choices until the text ends. Every mask has a token; a token is taken if and only if its mask has it; a
// text may end if and only if the end is in the mask. Returns the whole text; nothing where it did not end.
std::string walk(Grammar grammar, std::string_view choices) {
  Matcher matcher(std::make_shared<CompiledGrammar>(std::move(grammar), tokens()), {kEnd});
  std::string text;
  try {
    for (size_t place = 0; place < kMaxWalk; ++place) {
      const std::vector<TokenId> ids = allowed(matcher);
      require(!ids.empty(), "a mask without a token");
      const auto choice = static_cast<uint8_t>(place < choices.size() ? choices[place] : 0);
      const auto other = static_cast<TokenId>(choice * 7 % tokens()->size());
      Matcher copy = matcher;
      require(copy.take(other) == (std::find(ids.begin(), ids.end(), other) != ids.end()), "a mask and take() differ");
      const bool may_end = ids.size() > 1 ? matcher.may_end() : ids.front() == kEnd;
      require(may_end == (std::find(ids.begin(), ids.end(), kEnd) != ids.end()), "a mask and may_end() differ");
      const bool ends = may_end && (place >= choices.size() || ids.size() == 1);
      const TokenId id = ends ? kEnd : ids[choice % ids.size()];
      require(matcher.take(id), "a token of the mask is not taken");
      if (id == kEnd) return text;
      text += tokens()->bytes(id);
    }
  } catch (const grammar::OutOfFuel&) {
  }
  return {};
}

void compile_and_walk(Bytes bytes, const auto& compile, const auto& check) {
  const std::string_view input(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t end = std::min(input.find('\0'), input.size());
  expect_only_errors([&] {
    const std::string text = walk(compile(input.substr(0, end)), end < input.size() ? input.substr(end + 1) : "");
    if (!text.empty()) check(text);
  });
}

}  // namespace

// What is written is JSON.
void schema(Bytes bytes) {
  compile_and_walk(
      bytes, [](std::string_view text) { return grammar::schema_grammar(text, {}, small_limits()); },
      [](const std::string& text) {
        try {
          parse_large_json(text, "what a schema accepts", LargeIntegers::kDigits, RepeatedKeys::kLastCounts);
        } catch (const Error& error) {
          const bool large = std::string_view(error.what()).find("number overflow") != std::string_view::npos;
          require(large, error.what());  // JSON has numbers of any size
        }
      });
}

void pattern(Bytes bytes) {
  compile_and_walk(
      bytes, [](std::string_view text) { return grammar::regex_grammar(text, small_limits()); },
      [](const std::string&) {});
}

void gbnf(Bytes bytes) {
  compile_and_walk(
      bytes, [](std::string_view text) { return grammar::gbnf_grammar(text, small_limits()); },
      [](const std::string&) {});
}

// The list stands in its brackets.
void call_list(Bytes bytes) {
  compile_and_walk(
      bytes,
      [](std::string_view text) {
        return grammar::call_list_grammar(text, {.start = kStartCalls, .end = kEndCalls, .only = {}, .parallel = true},
                                          small_limits());
      },
      [](const std::string& text) { require(text.front() == '[' && text.back() == ']', "a list of calls"); });
}

}  // namespace lfm2::fuzz
