// The inside of a TextSet, for text_set.cpp and spelling.cpp alone.
#pragma once

#include "grammar/expression/text_set.h"

namespace lfm2::grammar {

struct TextSet::Node {
  enum class Kind : uint8_t { kAny, kNone, kText, kPoints, kConcat, kEither, kBoth, kComplement, kRepeat };

  Kind kind = Kind::kNone;
  bool has_empty = false;
  uint32_t depth = 0;          // of sets inside each other
  uint32_t min = 0, max = 0;   // kRepeat
  std::u32string text;         // kText
  CodePointSet points;         // kPoints: not empty, without surrogates
  std::vector<TextSet> parts;  // all others; one part for kComplement and kRepeat
};

// All code points but surrogates.
const CodePointSet& all_characters();

}  // namespace lfm2::grammar
