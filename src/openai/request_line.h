// Parses one line of .jsonl or .txt into a sample: its ids, its name and its generation fields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "openai/request_fields.h"
#include "openai/sample_rules.h"

namespace lfm2 {

struct RequestLine {
  std::vector<int32_t> ids;
  std::string name;  // "id" or "custom_id" as JSON text; "": none
  SampleRules rules;
  int64_t scored = 0;                // with --score: the number of ids at the end that are scored
  std::vector<int32_t> inputs = {};  // of /v1/embeddings: the number of ids of each input
  bool base64 = false;               // of /v1/embeddings: the answer is to be in base64
  std::string error = {};            // of a faulty batch line: the error that answers it; such a line has no ids
};

// A batch line that is answered with an error.
RequestLine faulty_line(std::string name, LineForm form, std::string error);

// Parses a line of JSON. Its forms are {"input_ids": [...]} and {"text": "..."} (with --score optionally with
// "target"), {"prompt": "..." or [...]} and {"messages": [...], "tools": [...]}. Each may have "id" and, in a
// generation, the fields of a request. A batch line {"custom_id", "method", "url", "body"} is a further form; its
// faults become its `error`. Any other fault is Error(kData) naming `where`, found and expected. Many threads may call
// it at once.
RequestLine parse_request_line(std::string_view line, const LineContext& context, const std::string& where);
// A line of .txt: the line itself is the text.
RequestLine parse_text_line(std::string_view line, const LineContext& context, const std::string& where);

// Reads the fields of /v1/embeddings into `ids`, `inputs` and `base64` of the line.
void read_embeddings(FieldReader& fields, RequestLine& line);

// What a line asks for, by its keys. kNone: it is not JSON.
enum class LineKind : uint8_t { kNone, kScored, kContinued, kBatch, kEmbeddings };
LineKind kind_of_line(std::string_view line);
constexpr bool is_batch(LineKind kind) { return kind == LineKind::kBatch || kind == LineKind::kEmbeddings; }

}  // namespace lfm2
