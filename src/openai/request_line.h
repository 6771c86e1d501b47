// One line of .jsonl or .txt as a sample: its ids, its name, and how it is to be continued.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "openai/request_fields.h"
#include "openai/sample_rules.h"

namespace lfm2 {

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

// The fields of /v1/embeddings: ids, inputs and base64 of the line.
void read_embeddings(FieldReader& fields, RequestLine& line);

// What a line asks for, by its keys. kNone: it is no JSON.
enum class LineKind : uint8_t { kNone, kScored, kContinued, kBatch, kEmbeddings };
LineKind kind_of_line(std::string_view line);
constexpr bool is_batch(LineKind kind) { return kind == LineKind::kBatch || kind == LineKind::kEmbeddings; }

}  // namespace lfm2
