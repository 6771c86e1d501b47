#include "grammar/schema/json_tree.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/json/json.h"
#include "base/utf8.h"
#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxNodes = 200'000;
constexpr size_t kMaxDepth = 100;

// Builds the tree from the events of nlohmann's parser, which has no recursion and gives the text of numbers.
class TreeBuilder : public nlohmann::json_sax<OrderedJson> {
 public:
  explicit TreeBuilder(std::deque<JsonNode>& nodes) : nodes_(nodes) {}

  bool null() override { return add(JsonNode::Kind::kNull, {}); }
  bool boolean(bool value) override { return add(value ? JsonNode::Kind::kTrue : JsonNode::Kind::kFalse, {}); }
  bool number_integer(number_integer_t value) override { return add(JsonNode::Kind::kNumber, std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(JsonNode::Kind::kNumber, std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return add(JsonNode::Kind::kNumber, text); }
  bool string(string_t& value) override { return add(JsonNode::Kind::kString, std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(JsonNode::Kind::kObject); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      throw Refusal(open_.back()->pointer(), name, "a key that stands twice", "each key once");
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(JsonNode::Kind::kArray); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const bool range = error.id == 406;
    throw Refusal("", "", fmt::format("{} at byte {}", range ? "a number out of range" : "no valid JSON", position),
                  range ? "numbers that a double can hold" : "a JSON text");
  }

 private:
  bool add(JsonNode::Kind kind, std::string text) {
    if (nodes_.size() >= kMaxNodes) throw Refusal("", "", "a text of more than 200,000 values", "a smaller one");
    JsonNode& node = nodes_.emplace_back();
    node.kind = kind;
    node.text = std::move(text);
    if (open_.empty()) return true;
    node.parent = open_.back();
    node.key =
        open_.back()->is(JsonNode::Kind::kArray) ? std::to_string(open_.back()->children.size()) : std::move(key_);
    open_.back()->children.push_back(&node);
    return true;
  }
  bool open(JsonNode::Kind kind) {
    if (open_.size() >= kMaxDepth) throw Refusal("", "", "JSON of more than 100 levels", "at most 100");
    add(kind, {});
    open_.push_back(&nodes_.back());
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  std::deque<JsonNode>& nodes_;
  std::vector<JsonNode*> open_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
};

void append_excerpt(const JsonNode& value, std::string& text) {
  if (text.size() > 80) return;
  const bool array = value.is(JsonNode::Kind::kArray);
  switch (value.kind) {
    case JsonNode::Kind::kNull:
      text += "null";
      return;
    case JsonNode::Kind::kFalse:
      text += "false";
      return;
    case JsonNode::Kind::kTrue:
      text += "true";
      return;
    case JsonNode::Kind::kNumber:
      text += value.text;
      return;
    case JsonNode::Kind::kString:
      text += json_text(Json(value.text));
      return;
    case JsonNode::Kind::kArray:
    case JsonNode::Kind::kObject:
      break;
  }
  text += array ? '[' : '{';
  for (const JsonNode* child : value.children) {
    if (child != value.children.front()) text += ", ";
    if (!array) text += json_text(Json(child->key)) + ": ";
    append_excerpt(*child, text);
  }
  text += array ? ']' : '}';
}

}  // namespace

const JsonNode* JsonNode::find(std::string_view name) const {
  if (kind != Kind::kObject) return nullptr;
  const auto at =
      std::find_if(children.begin(), children.end(), [&](const JsonNode* child) { return child->key == name; });
  return at == children.end() ? nullptr : *at;
}

std::string JsonNode::pointer() const {
  std::vector<const JsonNode*> path;
  for (const JsonNode* node = this; node->parent; node = node->parent) path.push_back(node);
  std::string pointer;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    pointer += '/';
    for (const char letter : (*node)->key)
      pointer += letter == '~' ? "~0" : letter == '/' ? "~1" : std::string(1, letter);
  }
  return pointer;
}

JsonTree::JsonTree(std::string_view text) {
  if (text.size() > kMaxBytes) throw Refusal("", "", "a text of more than 1 MiB", "a smaller one");
  if (text.find('\0') != std::string_view::npos) throw Refusal("", "", "a NUL character", "a JSON text");
  TreeBuilder builder(nodes_);
  OrderedJson::sax_parse(text, &builder);
}

std::string excerpt(const JsonNode& value) {
  std::string text;
  append_excerpt(value, text);
  return cut_short(std::move(text));
}

}  // namespace lfm2::grammar
