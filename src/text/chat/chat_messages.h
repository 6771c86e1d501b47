// Converts conversations of OpenAI's interface into the form that chat templates expect.
#pragma once

#include <string>
#include <string_view>

#include "base/json/large_json.h"

namespace lfm2 {

// What a template does with messages, by its source.
struct TemplateTraits {
  // It takes "content" as a list of parts: then it asks which of them are text. (Templates that only put whatever is no
  // text into JSON do not.)
  bool takes_parts = false;
  // What becomes of the thought of an assistant: nothing, a part of the content between its tags, which the template
  // looks for there, or fields.
  enum class Thought { kNone, kInContent, kFields };
  Thought thought = Thought::kNone;
  bool calls_as_text = false;  // it writes no calls of tools: they become a part of the content, as LFM2 writes them
};
// `has_call_tokens`: the tokenizer has the tokens that begin and end calls.
TemplateTraits template_traits(std::string_view source, bool has_call_tokens);

// The messages in the form that templates expect.
// - "content" that is null, or is missing beside tool calls, becomes "". Parts of text of any name ("text",
//   "input_text", "output_text", "refusal", or a plain string) become those of "text"; unless the template takes parts,
//   they become their text, with line feeds between them, as in vLLM and llama.cpp.
// - The thought of an assistant comes as "reasoning_content", "reasoning", "thinking" or a part of "thinking", and goes
//   into all three fields, or where the traits say. One that is null or empty is none.
// - "tool_calls" of an assistant that are null or empty go. Their arguments become objects: JSON text, in which of a
//   repeated key the later value counts; none, null and "" are an empty object.
// Everything else stays as it is. Error(kData), naming the place, for a message without a role or without content, for
// a part that is no text, and for arguments that are no object.
LargeJson template_messages(const OrderedJson& messages, const TemplateTraits& traits);

// For a conversation whose last message is continued: mark_end() puts a mark after the content of the last message of
// `taken`, which template_messages() made of `messages`, and text_before_mark() returns the rendered text up to there.
// If the template trims blanks from contents, they are trimmed before the mark, too. Error(kData) unless the message is
// an assistant's without calls of tools, if a message has the mark's code point U+FDD0, and if the template leaves the
// content out.
void mark_end(const OrderedJson& messages, OrderedJson& taken);
std::string text_before_mark(std::string text);

}  // namespace lfm2
