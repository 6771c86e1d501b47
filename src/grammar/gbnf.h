// Grammars as text in GBNF, llama.cpp's form of Backus-Naur:
//
//   # a remark
//   root  ::= "[" item ("," item){0,9} "]"
//   item  ::= [0-9]+ | "\"" [^"\\\n]* "\"" | root
//
// Names are letters, digits, - and _. In texts and classes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH are
// escapes.
// `.` is any character. * + ? {n} {n,} {n,m} repeat what stands before them. A rule ends with its line, but a line may
// be broken in brackets, after ::= and at |. Tokens by name, such as <|im_end|>, are refused: they have no text.
#pragma once

#include <string_view>

#include "grammar/matcher/grammar.h"

namespace lfm2::grammar {

// The grammar of the rule `root`, finished. Refusal naming `grammar` and the line.
Grammar gbnf_grammar(std::string_view text, Limits limits = {});

}  // namespace lfm2::grammar
