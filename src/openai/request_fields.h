// Reads the fields of a request from input lines and HTTP bodies alike: checks type and range, then interprets them.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/sample_rules.h"

namespace lfm2 {

class TextModel;
namespace grammar {
class ConstraintCache;
}

// The context in which lines and bodies are read. max_positions: the most tokens of a sample.
struct LineContext {
  int64_t vocab = 0, max_positions = 0, hidden = 0;
  const TextModel* text = nullptr;                  // null: lines of ids only
  std::string text_error = {};                      // the refusal of a line of text if `text` is null
  grammar::ConstraintCache* constraints = nullptr;  // null if `text` is null
  bool strict = false;                              // a faulty batch line ends the job, as other faults do
  bool continues = false;                           // the job generates, so lines may have sampling fields
  bool scores = false;                              // --score: lines may name a target
  bool states = false;                              // --hidden
  bool embeddings = false;                          // the lines are batch lines of /v1/embeddings
  bool drafts = false;                              // --draft: lines may ask for drafts
  std::time_t now = 0;                              // the date of templates that ask for it
  const std::atomic<bool>* stop = nullptr;          // if it becomes true, reading ends soon with Error(kStopped)
};

// The value if it is an integer of at most 64 bits. JSON may write it as 5.0, too.
std::optional<int64_t> whole_number(const OrderedJson& value);
// Error(kData) naming where, key, found and expected.
[[noreturn]] void refuse_field(const std::string& where, std::string_view key, const OrderedJson& found,
                               std::string_view expected);
// The context's tokenizer and template. Error(kData) if there are none.
const TextModel& text_model(const LineContext& context, const std::string& where);

// Reads one JSON object and remembers which keys were read. A field that is null counts as absent. Every reader throws
// Error(kData) for a value of a wrong type or out of range.
class FieldReader {
 public:
  // All three must outlive the reader.
  FieldReader(const OrderedJson& object, const LineContext& context, const std::string& where)
      : object_(object), context_(context), where_(where) {}

  const OrderedJson* find(const std::string& key);  // null if the object has no such field
  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most);
  std::optional<float> number(const std::string& key, float least, float most);
  bool flag(const std::string& key);
  const std::string* text(const std::string& key);
  std::vector<int32_t> ids(const std::string& key);
  // The ids in `value`, the value of `key`.
  std::vector<int32_t> ids(const std::string& key, const OrderedJson& value) const;
  std::vector<std::string> stops(const std::string& key);  // one text, or a list of them
  // {"id": bias}, as in OpenAI's interface; sorted by id.
  std::vector<std::pair<int32_t, float>> biases(const std::string& key);
  // Error(kData) for a field that was not read: for any such field (kRefused), or only for those that other_field()
  // calls unsupported (kListed).
  enum class Others { kRefused, kListed };
  void expect_all_known(Others others) const;

  const std::string& where() const { return where_; }
  const LineContext& context() const { return context_; }

 private:
  const OrderedJson& object_;
  const LineContext& context_;
  const std::string& where_;
  std::vector<std::string> known_;
};

// Reads the fields of kSamplingFields, by their names in lines and bodies or, with `config`, by those in
// generation_config.json, where no integer may be negative.
void read_sampling(FieldReader& fields, SamplingOverrides& sampling, bool config = false);
// Reads the generation fields of a request by OpenAI's names and the names that transformers and vLLM add. "echo" is
// read only for kCompletion. "logprobs" is a number of tokens, except for kChatCompletion: there it is a boolean, and
// "top_logprobs" is the number.
// `in_thought`: the prompt ends inside a thought, which precedes a constrained answer. `responses`: see
// read_constraint().
void read_rules(FieldReader& fields, SampleRules& rules, bool in_thought = false, bool responses = false);
struct ChatPrompt {
  std::vector<int32_t> ids;
  bool in_thought;  // it ends inside a thought (ends_in_thought)
};
// Renders "messages", "tools" and "chat_template_kwargs" by the chat template. As in vLLM the generation prompt follows
// unless "add_generation_prompt" is false, and with "continue_final_message" the text ends in the last message.
ChatPrompt prompt_of_messages(FieldReader& fields);
// "truncate_prompt_tokens": the number of last tokens that a prompt keeps. With -1, as in vLLM, it
// keeps those that fit `max_positions` together with the tokens that `rules` themselves ask for, or with one: defaults
// of the job do not count. INT64_MAX without the field.
int64_t read_truncation(FieldReader& fields, const SampleRules& rules, int64_t max_positions);
void truncate_prompt(std::vector<int32_t>& ids, int64_t kept);
// What the message of an answer to a chat has: "tools", "tool_choice" and "parallel_tool_calls"; "separate_reasoning"
// of SGLang, "reasoning_format" of llama.cpp and "include_reasoning" of vLLM. `in_thought`: of the prompt.
MessageForm read_message_form(FieldReader& fields, bool in_thought);
std::vector<int32_t> encode(std::string_view text, bool special, const LineContext& context, const std::string& where);
// "add_special_tokens": whether a prompt gets the tokenizer's special tokens such as BOS; the default is true.
bool adds_special_tokens(FieldReader& fields);
// Error(kData) if there are no ids, or too many for the model's positions. With a `field` of OpenAI's interface the
// message uses OpenAI's words.
void check_length(const std::vector<int32_t>& ids, const LineContext& context, const std::string& where,
                  std::string_view field, int64_t max_positions, bool continues);
inline void check_length(const std::vector<int32_t>& ids, const LineContext& context, const std::string& where,
                         std::string_view field = {}) {
  check_length(ids, context, where, field, context.max_positions, context.continues);
}
// A text that states the maximum number of tokens of a sample.
std::string max_length_text(int64_t most, bool scores);

}  // namespace lfm2
