// JSON text of strangers as a tree that keeps the text of numbers, the order of keys and the place of every value.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lfm2::grammar {

struct JsonNode {
  enum class Kind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

  bool is(Kind other) const { return kind == other; }
  // The value of a key of an object; null where it has none, or is no object.
  const JsonNode* find(std::string_view name) const;
  // Where it stands: a JSON pointer (RFC 6901); empty for the whole.
  std::string pointer() const;

  Kind kind = Kind::kNull;
  std::string text;                  // kString: the value; kNumber: as it was written
  std::string key;                   // of the member of an object, or the index in an array
  const JsonNode* parent = nullptr;  // null: the whole
  std::vector<const JsonNode*> children;
};

class JsonTree {
 public:
  // Refusal for what is no JSON, for more than 100 levels, 200,000 values or 1 MiB, and for keys that stand twice.
  explicit JsonTree(std::string_view text);
  JsonTree(const JsonTree&) = delete;
  JsonTree& operator=(const JsonTree&) = delete;

  const JsonNode& root() const { return nodes_.front(); }
  size_t size() const { return nodes_.size(); }

 private:
  std::deque<JsonNode> nodes_;  // nodes point at each other, so none may move
};

// The value as JSON on one line, for messages, cut off after 80 bytes.
std::string excerpt(const JsonNode& value);

}  // namespace lfm2::grammar
