// Measures how fast constraints are compiled and masks are made, over lines of standard input. The first line names
// the tokenizer; each further one is a constraint with texts to follow:
//
//   {"tokenizer": FILE, "vocab": 65536, "eos": 7}                    -> {"name": TEXT}
//   {"schema": S, "tests": [{"text": T, "ids": [..]}]}               -> {"refused": WHY}, or
//       {"compile_us": N, "tests": [{"accepts": BOOL, "mask_us": [..]}]}
//
// In place of "schema": "regex", "choice", "grammar", or "tools" with "tool_choice" and "parallel_tool_calls". For each
// id the mask is made, the id looked up in it, and taken; then the end is looked up in a last mask. An id that is not
// in its mask ends the text. Times are processor time of the thread in microseconds.
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json/json.h"
#include "grammar/call_list.h"
#include "grammar/expression/refusal.h"
#include "grammar/gbnf.h"
#include "grammar/matcher/matcher.h"
#include "grammar/regex_choice.h"
#include "grammar/schema/schema_grammar.h"
#include "text/tokenizer.h"

namespace lfm2::grammar {
namespace {

double thread_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ExitCode::kNoInput, path + ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The schema as it stands in the line: it may lie deeper than JSON of requests, and its numbers must keep their digits.
std::string_view schema_text(std::string_view line) {
  constexpr std::string_view kBegin = "{\"schema\":";
  const size_t tests = line.rfind("\"tests\":");
  if (!line.starts_with(kBegin) || tests == std::string_view::npos) return {};
  return line.substr(kBegin.size(), line.find_last_of(',', tests) - kBegin.size());
}

class Bench {
 public:
  explicit Bench(const Json& hello)
      : tokenizer_(Tokenizer::parse(content_of(hello["tokenizer"]), "tokenizer.json")),
        tokens_(std::make_shared<TokenTable>(tokenizer_, hello["vocab"].get<size_t>())),
        end_(hello["eos"].get<TokenId>()) {}

  Json answer(std::string_view line) {
    const std::string_view schema = schema_text(line);
    const OrderedJson request = schema.empty() ? parse_ordered_json(line, "a line") : OrderedJson();
    const Json tests = schema.empty() ? Json(parse_json(request["tests"].dump(), "tests")) : tests_of(line);
    std::shared_ptr<CompiledGrammar> grammar;
    const double begin = thread_us();
    try {
      grammar = std::make_shared<CompiledGrammar>(schema.empty() ? compile(request) : schema_grammar(schema), tokens_);
    } catch (const Error& error) {
      return {{"refused", error.what()}};
    }
    Json result = {{"compile_us", thread_us() - begin}, {"tests", Json::array()}};
    for (const Json& test : tests) {
      try {
        result["tests"].push_back(follow(grammar, test["ids"].get<std::vector<TokenId>>()));
      } catch (const OutOfFuel& error) {
        return {{"failed", error.what()}};
      }
    }
    return result;
  }

 private:
  static Json tests_of(std::string_view line) {
    const std::string_view tests = line.substr(line.rfind("\"tests\":"));
    return parse_json("{" + std::string(tests), "a line")["tests"];
  }

  TokenId id_of(std::string_view text) const {
    const auto id = tokenizer_.find(text);
    if (!id) throw Error(ExitCode::kData, std::string(text) + " is no token of the tokenizer");
    return *id;
  }

  Grammar compile(const OrderedJson& request) const {
    if (request.contains("regex")) return regex_grammar(request["regex"].get<std::string>());
    if (request.contains("choice")) return choice_grammar(request["choice"].get<std::vector<std::string>>());
    if (request.contains("grammar")) return gbnf_grammar(request["grammar"].get<std::string>());
    if (!request.contains("tools"))
      throw Refusal("", "", "another constraint", "schema, regex, choice, grammar or tools");
    CallListOptions options;
    options.start = id_of("<|tool_call_start|>");
    options.end = id_of("<|tool_call_end|>");
    options.parallel = request.value("parallel_tool_calls", true);
    const auto choice = request.find("tool_choice");
    if (choice != request.end() && choice->is_object()) options.only = (*choice)["function"]["name"];
    return call_list_grammar(request["tools"].dump(), options);
  }

  Json follow(const std::shared_ptr<CompiledGrammar>& grammar, std::vector<TokenId> ids) const {
    Matcher matcher(grammar, {end_});
    std::vector<uint32_t> words(tokens_->mask_words());
    std::vector<double> times;
    ids.push_back(end_);
    bool accepts = true;
    for (const TokenId id : ids) {
      const double begin = thread_us();
      matcher.mask(words);
      accepts = words[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
      if (accepts) matcher.take(id);
      times.push_back(thread_us() - begin);
      if (!accepts) break;
    }
    return {{"accepts", accepts}, {"mask_us", times}};
  }

  Tokenizer tokenizer_;
  std::shared_ptr<const TokenTable> tokens_;
  TokenId end_;
};

void run() {
  std::string line;
  std::getline(std::cin, line);
  Bench bench(parse_json(line, "the first line"));
  std::cout << Json{{"name", "lfm2_stage"}}.dump() << std::endl;
  while (std::getline(std::cin, line))
    std::cout << bench.answer(line).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}

}  // namespace
}  // namespace lfm2::grammar

int main() {
  try {
    lfm2::grammar::run();
  } catch (const std::exception& error) {
    std::cerr << "bench_grammar: " << error.what() << '\n';
    return 1;
  }
}
