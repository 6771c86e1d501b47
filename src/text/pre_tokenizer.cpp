// Translates text into symbols and runs PCRE2 over them. All PCRE2 calls of the project stand here.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/utf8.h"

namespace lfm2 {

namespace {

// Patterns with repeated groups need a stack for backtracking. The common patterns have none and need almost no memory.
constexpr size_t kMinJitStack = 32 << 10, kMaxJitStack = 16 << 20;
// How often a match may backtrack, and how many bytes it may read, before this counts as work (WorkLimit), as it does
// for a long run of spaces.
constexpr uint32_t kStepsOfMatch = 2000;
constexpr size_t kWindow = 256;

std::string pcre2_message(int code) {
  PCRE2_UCHAR8 text[256];
  return pcre2_get_error_message_8(code, text, sizeof text) < 0 ? fmt::format("PCRE2 error {}", code)
                                                                : reinterpret_cast<const char*>(text);
}

size_t length_of(const char* ascii_begin, const char* end) {
  return static_cast<size_t>(std::find_if(ascii_begin, end, [](char c) { return static_cast<uint8_t>(c) >= 0x80; }) -
                             ascii_begin);
}

}  // namespace

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free_8(code); }
void PreTokenizer::Scratch::Free::operator()(pcre2_real_match_data_8* data) const { pcre2_match_data_free_8(data); }
void PreTokenizer::Scratch::Free::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free_8(context);
}
void PreTokenizer::Scratch::Free::operator()(pcre2_real_jit_stack_8* stack) const { pcre2_jit_stack_free_8(stack); }

PreTokenizer::Scratch::Scratch()
    : stack_(pcre2_jit_stack_create_8(kMinJitStack, kMaxJitStack, nullptr)),
      context_(pcre2_match_context_create_8(nullptr)),
      match_(pcre2_match_data_create_8(1, nullptr)) {
  if (!context_ || !match_) throw std::bad_alloc();
  pcre2_set_match_limit_8(context_.get(), kStepsOfMatch);
  if (stack_) pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
}

PreTokenizer::PreTokenizer(const std::vector<SplitPattern>& patterns, const std::string& what)
    : table_(patterns, what), what_(what) {
  for (const SplitPattern& pattern : patterns) {
    const std::string translated = table_.translated(pattern);
    int error = 0;
    size_t offset = 0;
    Pattern compiled;
    compiled.name = fmt::format("the pattern {}", pattern.expression());
    compiled.code.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                                        PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error, &offset, nullptr));
    if (!compiled.code)
      throw Error(ExitCode::kData,
                  fmt::format("{}: {} does not compile: {}", what, compiled.name, pcre2_message(error)));
    uint32_t matches_empty = 0;
    pcre2_pattern_info_8(compiled.code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0)
      throw Error(ExitCode::kData,
                  fmt::format("{}: {} matches empty text, which is not supported", what, compiled.name));
    // Fails if the system forbids new machine code; then PCRE2 interprets the pattern.
    compiled.compiled_to_machine_code =
        pcre2_jit_compile_8(compiled.code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    patterns_.push_back(std::move(compiled));
  }
}

std::string_view PreTokenizer::symbols(std::string_view text, Scratch& scratch) const {
  const char* const end = text.data() + text.size();
  size_t ascii = length_of(text.data(), end);
  if (ascii == text.size()) return text;  // its own symbols
  std::vector<uint8_t>& symbols = scratch.symbols_;
  if (symbols.size() < text.size()) symbols.resize(text.size());
  std::copy_n(text.data(), ascii, symbols.data());
  size_t count = ascii;
  text.remove_prefix(ascii);
  while (!text.empty()) {
    if (static_cast<uint8_t>(text[0]) < 0x80) {
      symbols[count++] = static_cast<uint8_t>(text[0]);
      text.remove_prefix(1);
      continue;
    }
    const Utf8Character character = first_character(text);
    // Each byte that is not UTF-8 has a separate symbol, so that the number of bytes follows from the symbols.
    const size_t length = character.valid ? character.length : 1;
    symbols[count++] = character.valid ? table_[character.point] : SymbolTable::kInvalid;
    text.remove_prefix(length);
  }
  return {reinterpret_cast<const char*>(symbols.data()), count};
}

size_t PreTokenizer::bytes_of(std::string_view symbols, std::string_view text) {
  size_t bytes = 0;
  for (const char symbol : symbols) {
    if (static_cast<uint8_t>(symbol) < 0x80 || static_cast<uint8_t>(symbol) == SymbolTable::kInvalid) {
      ++bytes;
      continue;
    }
    const auto lead = static_cast<uint8_t>(text[bytes]);
    bytes += lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  }
  return bytes;
}

int PreTokenizer::run(const Pattern& pattern, std::string_view symbols, size_t from, uint32_t options,
                      const Work& work) const {
  pcre2_real_match_context_8* const context = work.scratch.context_.get();
  const auto match = [&] {
    const auto function = pattern.compiled_to_machine_code ? pcre2_jit_match_8 : pcre2_match_8;
    return function(pattern.code.get(), reinterpret_cast<PCRE2_SPTR8>(symbols.data()), symbols.size(), from, options,
                    work.scratch.match_.get(), context);
  };
  int found = match();
  for (uint64_t steps = kStepsOfMatch; found == PCRE2_ERROR_MATCHLIMIT && work.limit.left() > 0;) {
    steps = std::min({8 * steps, work.limit.left(), uint64_t{UINT32_MAX}});
    work.limit.charge(steps, pattern.name);
    pcre2_set_match_limit_8(context, static_cast<uint32_t>(steps));
    found = match();
    pcre2_set_match_limit_8(context, kStepsOfMatch);
  }
  return found;
}

// A match sees the text up to a window's end. If it needs more text, PCRE2 reports a partial match, and the window
// grows. So the result equals that without windows, and the distance that the match looked ahead is known.
PreTokenizer::Match PreTokenizer::next_match(const Pattern& pattern, std::string_view symbols, size_t from,
                                             const Work& work) const {
  work.limit.check_stop();
  for (size_t window = kWindow;;) {
    const size_t end = from + std::min(window, symbols.size() - from);
    const bool all = end == symbols.size();
    const int found = run(pattern, symbols.substr(0, end), from, all ? 0 : PCRE2_PARTIAL_HARD, work);
    if (found == PCRE2_ERROR_NOMATCH && all) return {symbols.size(), symbols.size()};
    if (found == PCRE2_ERROR_NOMATCH) {
      from = end;
    } else if (found == PCRE2_ERROR_PARTIAL) {
      work.limit.charge(window, pattern.name);
      window *= 2;
    } else if (found < 0) {
      throw Error(ExitCode::kData, fmt::format("{}: {} cannot be matched with this text: {}", what_, pattern.name,
                                               pcre2_message(found)));
    } else {
      const size_t* const place = pcre2_get_ovector_pointer_8(work.scratch.match_.get());
      return {place[0], place[1]};
    }
  }
}

}  // namespace lfm2
