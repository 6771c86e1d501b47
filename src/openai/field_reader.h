// Reads the fields of one JSON object by type and range, and knows which of its keys nobody asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json/json_fwd.h"

namespace lfm2 {

class TextModel;
struct LineContext;

// The value where it is an integer of 64 bits, which JSON may write as 5.0, too.
std::optional<int64_t> whole_number(const OrderedJson& value);
// Error(kData) naming where, key, found and expected.
[[noreturn]] void refuse_field(const std::string& where, std::string_view key, const OrderedJson& found,
                               std::string_view expected);
// The context's tokenizer and template. Error(kData) where there are none.
const TextModel& text_model(const LineContext& context, const std::string& where);

// A field that is absent is as one that is null. Each reader: Error(kData) where the value is of another type or
// outside of its range.
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

}  // namespace lfm2
