// Strict JSON. nlohmann's parser keeps the last of two equal keys and accepts any depth; its callback refuses both
// here.
#include "base/json/json.h"

#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json/large_json.h"
#include "base/utf8.h"

template class nlohmann::basic_json<>;
template class nlohmann::ordered_map<std::string, nlohmann::ordered_json>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace lfm2 {

namespace {
constexpr int kMaxDepth = 16;

// The parser's message without the parser's name, without a line number (the text is one line), and without the quoted
// input, which may be long.
std::string short_message(const nlohmann::detail::exception& error) {
  std::string message = error.what();
  for (const std::string_view begin : {"] ", "parse error at ", "line 1, "})
    if (const size_t at = message.find(begin); at != std::string::npos) message.erase(0, at + begin.size());
  const size_t end = message.find("; last read");
  if (end != std::string::npos) message.resize(end);
  return message;
}

// Builds the JSON values. nlohmann's own builder compares each key with all previous ones, and does not provide the
// text of a number.
class OrderedBuilder : public nlohmann::json_sax<OrderedJson> {
 public:
  OrderedBuilder(const std::string& what, LargeIntegers large, RepeatedKeys repeated)
      : what_(what), large_(large), repeated_(repeated) {}
  ~OrderedBuilder() override { empty_json(root_); }
  OrderedBuilder(const OrderedBuilder&) = delete;
  OrderedBuilder& operator=(const OrderedBuilder&) = delete;
  OrderedJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool integer = text.find_first_of(".eE") == std::string::npos;
    if (integer && large_ == LargeIntegers::kDigits) return add(OrderedJson::binary({text.begin(), text.end()}));
    if (integer) throw Error(ExitCode::kData, fmt::format("{}: the integer {} has more than 64 bits", what_, text));
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t) override {
    open(OrderedJson::object());
    return true;
  }
  bool key(string_t& name) override {
    const size_t next = open_.back()->size();
    const auto [found, is_new] = keys_.back().try_emplace(name, next);
    if (!is_new && repeated_ == RepeatedKeys::kRefused)
      throw Error(ExitCode::kData, fmt::format("{}: JSON key \"{}\" stands twice", what_, name));
    key_ = std::move(name);
    at_ = found->second;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override {
    open(OrderedJson::array());
    return true;
  }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw Error(ExitCode::kData, fmt::format("{}: not valid JSON: {}", what_, short_message(error)));
  }

 private:
  OrderedJson& place(OrderedJson&& value) {
    if (open_.empty()) return root_ = std::move(value);
    OrderedJson& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return parent.back();
    }
    auto& entries = parent.get_ref<OrderedJson::object_t&>();
    if (at_ == entries.size()) {
      entries.push_back({std::move(key_), std::move(value)});
      return entries.back().second;
    }
    OrderedJson& earlier = entries.data()[at_].second;
    empty_json(earlier);
    return earlier = std::move(value);
  }
  template <class T>
  bool add(T&& value) {
    place(OrderedJson(std::forward<T>(value)));
    return true;
  }
  void open(OrderedJson&& container) {
    if (open_.size() >= kMaxConversationDepth)
      throw Error(ExitCode::kData, fmt::format("{}: JSON nested deeper than {} levels", what_, kMaxConversationDepth));
    OrderedJson& placed = place(std::move(container));
    open_.push_back(&placed);
    keys_.emplace_back();
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const std::string& what_;
  const LargeIntegers large_;
  const RepeatedKeys repeated_;
  OrderedJson root_;
  std::vector<OrderedJson*> open_;  // each is the last element of the previous one, so none moves while it is open
  std::vector<std::map<std::string, size_t>> keys_;  // of the objects that are open: key -> index
  std::string key_;
  size_t at_ = 0;  // index of key_
};

void refuse_nul(std::string_view text, const std::string& what) {
  if (const std::string_view kind = file_kind(text); !kind.empty())
    throw Error(ExitCode::kData, fmt::format("{}: not valid JSON: {}", what, kind));
  if (text.find('\0') != std::string_view::npos)  // a NUL would end the text for the parser
    throw Error(ExitCode::kData, fmt::format("{}: not valid JSON: a NUL character", what));
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= kMaxDepth)  // the outermost object or array has depth 0
      throw Error(ExitCode::kData, fmt::format("{}: JSON nested deeper than {} levels", what, kMaxDepth));
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second)
          throw Error(ExitCode::kData,
                      fmt::format("{}: JSON key \"{}\" stands twice", what, parsed.get<std::string>()));
        break;
      case Json::parse_event_t::array_start:
      case Json::parse_event_t::array_end:
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  refuse_nul(text, what);
  try {
    return Json::parse(text, callback);
  } catch (const Json::exception& error) {
    throw Error(ExitCode::kData, fmt::format("{}: not valid JSON: {}", what, short_message(error)));
  }
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& what, LargeIntegers large,
                               RepeatedKeys repeated) {
  refuse_nul(text, what);
  OrderedBuilder builder(what, large, repeated);
  OrderedJson::sax_parse(text, &builder);
  return builder.take();
}

void empty_json(OrderedJson& value) noexcept {
  if (auto* items = value.get_ptr<OrderedJson::array_t*>()) {
    for (OrderedJson& item : *items) empty_json(item);
    items->clear();
  } else if (auto* entries = value.get_ptr<OrderedJson::object_t*>()) {
    for (auto& [key, item] : *entries) empty_json(item);
    entries->clear();
  }
}

void EmptyAndDelete::operator()(OrderedJson* json) const noexcept {
  empty_json(*json);
  delete json;
}

LargeJson parse_large_json(std::string_view text, const std::string& what, LargeIntegers large, RepeatedKeys repeated) {
  return LargeJson(new OrderedJson(parse_ordered_json(text, what, large, repeated)));
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string json_text(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string json_text_with_digits(const OrderedJson& value) {
  if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
  if (!value.is_structured()) return json_text(value);
  std::string text;
  for (const auto& [key, element] : value.items()) {
    if (!text.empty()) text += ',';
    if (value.is_object()) text += json_text(OrderedJson(key)) + ':';
    text += json_text_with_digits(element);
  }
  return value.is_object() ? '{' + text + '}' : '[' + text + ']';
}

std::string json_excerpt(const Json& value) { return cut_short(json_text(value)); }
std::string json_excerpt(const OrderedJson& value) { return cut_short(json_text_with_digits(value)); }

uint64_t json_unsigned(const Json& value, uint64_t limit, const std::string& what, std::string_view key) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > limit)
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is {}, expected an integer from 0 to {}", what, key,
                                             json_excerpt(value), limit));
  return value.get<uint64_t>();
}

}  // namespace lfm2
