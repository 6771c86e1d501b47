// The fields of a request, read alike from lines and from bodies: by type and range, then as what they mean.
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

// What lines are read with. max_positions: no sample has more tokens.
struct LineContext {
  int64_t vocab = 0, max_positions = 0, hidden = 0;
  const TextModel* text = nullptr;          // null: lines of ids only
  std::string text_error = {};              // then what a line of text is refused with
  bool strict = false;                      // a faulty batch line is an error like any other
  bool continues = false;                   // the job continues samples, so their lines may say how
  bool scores = false;                      // --score: lines may name a target
  bool states = false;                      // --hidden
  bool embeddings = false;                  // the lines are batch lines of /v1/embeddings
  std::time_t now = 0;                      // the date of templates that ask for it
  const std::atomic<bool>* stop = nullptr;  // soon after it became true, reading ends with Error(kStopped)
};

// The value where it is an integer of 64 bits, which JSON may write as 5.0, too.
std::optional<int64_t> whole_number(const OrderedJson& value);
// Error(kData) naming where, key, found and expected.
[[noreturn]] void refuse_field(const std::string& where, std::string_view key, const OrderedJson& found,
                               std::string_view expected);
// The context's tokenizer and template. Error(kData) where there are none.
const TextModel& text_model(const LineContext& context, const std::string& where);

// Reads one JSON object, and knows which of its keys nobody asked for. A field that is absent is as one that is null.
// Each reader: Error(kData) where the value is of another type or outside of its range.
class FieldReader {
 public:
  // All three must outlive the reader.
  FieldReader(const OrderedJson& object, const LineContext& context, const std::string& where)
      : object_(object), context_(context), where_(where) {}

  const OrderedJson* find(const std::string& key);  // null where the object has no such field
  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most);
  std::optional<float> number(const std::string& key, float least, float most);
  bool flag(const std::string& key);
  const std::string* text(const std::string& key);
  std::vector<int32_t> ids(const std::string& key);
  // The ids in `value`, which stands under `key`.
  std::vector<int32_t> ids(const std::string& key, const OrderedJson& value) const;
  std::vector<std::string> stops(const std::string& key);  // one text, or a list of them
  // {"id": bias}, as in OpenAI's interface; sorted by id.
  std::vector<std::pair<int32_t, float>> biases(const std::string& key);
  // Error(kData) for a field with a value that nobody asked for: for any, or for any that other_field() does not let
  // pass.
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

// The fields of the table of sampling parameters, by their names in lines and bodies or in generation_config.json, in
// which no integer is negative.
void read_sampling(FieldReader& fields, SamplingOverrides& sampling, bool config = false);
// How a request is to be continued, in the names of OpenAI's interface and those that transformers and vLLM add. "echo"
// is read for kCompletion alone. "logprobs" is a number of tokens but for kChatCompletion, where it says whether, and
// "top_logprobs" how many.
void read_rules(FieldReader& fields, SampleRules& rules);
// "messages", "tools" and "chat_template_kwargs" through the chat template. With `goes_on` the generation prompt
// follows.
std::vector<int32_t> ids_of_messages(FieldReader& fields, bool goes_on = true);
std::vector<int32_t> encode(std::string_view text, bool special, const LineContext& context, const std::string& where);
// "add_special_tokens": whether a prompt gets the tokenizer's own, as BOS, as it does where nothing is said.
bool adds_special_tokens(FieldReader& fields);
// Error(kData) for no ids, or for more than leave room in the model's positions. With a `field` of OpenAI's interface
// the message uses OpenAI's words.
void check_length(const std::vector<int32_t>& ids, const LineContext& context, const std::string& where,
                  std::string_view field = {});
// The most tokens of a sample, in words.
std::string max_length_text(int64_t most, bool scores);

}  // namespace lfm2
