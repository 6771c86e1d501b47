// One line of .jsonl or .txt as a sample: its ids, its name, and how it is to be continued.
#pragma once

#include <atomic>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_fwd.h"
#include "openai/sample_rules.h"

namespace lfm2 {

class FieldReader;
class TextModel;
struct Line;

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

struct RequestLine {
  std::vector<int32_t> ids;
  std::string name;  // "id" or "custom_id" as JSON text; "": it has none
  SampleRules rules;
  int64_t scored = 0;                // with --score: how many ids, the last ones, are scored
  std::vector<int32_t> inputs = {};  // of /v1/embeddings: how many ids each of its inputs has
  bool base64 = false;               // of /v1/embeddings: the answer is to be in base64
  std::string error = {};            // of a batch line: why it is answered with an error; such a line has no ids
};

// A batch line that is answered with an error.
RequestLine faulty_line(std::string name, LineForm form, std::string error);

// {"input_ids": [...]}, {"text": "..."} (with --score each with "target"), {"prompt": "..." or [...]}, {"messages":
// [...], "tools": [...]}, each with "id" and, where the job continues samples, with the fields of a request; or a batch
// line, {"custom_id", "method", "url", "body"}, whose faults become its error. Error(kData) naming `where`, found and
// expected for any other fault. May be called by many threads at once.
RequestLine parse_request_line(std::string_view line, const LineContext& context, const std::string& where);
// A line of .txt: its text as it stands.
RequestLine parse_text_line(std::string_view line, const LineContext& context, const std::string& where);

// The parts of a request, for the server, whose bodies have the same fields. How it is to be continued:
void read_rules(FieldReader& fields, SampleRules& rules);
// "echo" of /v1/completions, before read_rules(): with it no token may be asked for.
void read_echo(FieldReader& fields, SampleRules& rules);
// "logprobs" as in /v1/completions (a number of tokens), and as in /v1/chat/completions (whether; "top_logprobs").
void read_log_probs(FieldReader& fields, SampleRules& rules);
void read_chat_log_probs(FieldReader& fields, SampleRules& rules);
// "messages", "tools" and "chat_template_kwargs" through the chat template, up to where the assistant goes on, or up to
// their end.
std::vector<int32_t> ids_of_messages(FieldReader& fields, bool goes_on = true);
std::vector<int32_t> encode(std::string_view text, bool special, const LineContext& context, const std::string& where);
// "add_special_tokens": whether a prompt gets the tokenizer's own, as BOS, as it does where nothing is said.
bool adds_special_tokens(FieldReader& fields);
// The fields of /v1/embeddings: ids, inputs and base64 of the line.
void read_embeddings(FieldReader& fields, RequestLine& line);
// Error(kData) where so many tokens are none, or leave no room in the model's positions: for a `field` of OpenAI's
// interface in its words.
void check_length(const std::vector<int32_t>& ids, const LineContext& context, const std::string& where,
                  std::string_view field = {});
// The most tokens of a sample, in words.
std::string max_length_text(int64_t most, bool scores);

// What decides the kind of a job: the first of the lines that is JSON; empty where none is.
std::string_view deciding_line(const std::vector<Line>& lines);
// Whether that line is meant as a batch line, and as one of /v1/embeddings.
bool is_batch_line(std::string_view line);
bool is_embeddings_line(std::string_view line);
// Whether a job without --generate continues its samples.
bool is_continued(std::string_view deciding_line);

}  // namespace lfm2
