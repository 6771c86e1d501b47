// Reads tokenizer.json. Unknown fields are refused, because a field that a later version of tokenizers brings may
// change ids.
#include "text/tokenizer_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {

namespace {

constexpr uint64_t kMaxId = (1 << 20) - 1;
constexpr size_t kMaxPatterns = 16;
constexpr size_t kMaxAddedToken = 1024;  // bytes; each position of a text may cost that number of steps
// The pattern with which ByteLevel cuts if no Split precedes it.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A value of the file with its path, such as model.vocab.
class Field {
 public:
  Field(const Json& value, std::string place, const std::string& what)
      : value_(value), place_(std::move(place)), what_(what) {}

  const Json& value() const { return value_; }
  const std::string& what() const { return what_; }
  std::string name() const { return fmt::format("{}: {}", what_, place_); }
  bool is_null() const { return value_.is_null(); }

  [[noreturn]] void refuse(std::string_view expected) const {
    throw Error(ExitCode::kData, fmt::format("{} is {}, expected {}", name(), json_excerpt(value_), expected));
  }

  // Expects an object with no keys but these.
  const Field& object(std::initializer_list<std::string_view> keys) const {
    if (!value_.is_object()) refuse("an object");
    for (const auto& [key, ignored] : value_.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        throw Error(ExitCode::kData, fmt::format("{} has the key \"{}\", which is not supported; expected are only {}",
                                                 name(), key, fmt::join(keys, ", ")));
    return *this;
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  Field operator[](const char* key) const {
    if (!has(key)) throw Error(ExitCode::kData, fmt::format("{} has no \"{}\"", name(), key));
    return {value_.at(key), place_.empty() || place_ == kRoot ? key : fmt::format("{}.{}", place_, key), what_};
  }
  std::vector<Field> list() const {
    if (!value_.is_array()) refuse("a list");
    std::vector<Field> fields;
    for (const Json& element : value_)
      fields.emplace_back(element, fmt::format("{}[{}]", place_, fields.size()), what_);
    return fields;
  }
  const std::string& text() const {
    if (!value_.is_string()) refuse("a string");
    return value_.get_ref<const std::string&>();
  }
  bool flag() const {
    if (!value_.is_boolean()) refuse("true or false");
    return value_.get<bool>();
  }
  TokenId id() const { return static_cast<TokenId>(json_unsigned(value_, kMaxId, what_, place_)); }
  // The "type" of an object.
  const std::string& type() const { return (*this)["type"].text(); }

  static constexpr const char* kRoot = "the file";

 private:
  const Json& value_;
  std::string place_;
  const std::string& what_;
};

void expect_null(const Field& parent, const char* key) {
  if (parent.has(key) && !parent[key].is_null()) parent[key].refuse("null");
}

void expect_empty(const Field& parent, const char* key) {
  if (parent.has(key) && !parent[key].is_null() && parent[key].value() != "") parent[key].refuse("null or \"\"");
}

void read_vocabulary(const Field& model, TokenizerFile& file) {
  const Field vocabulary = model["vocab"];
  if (!vocabulary.value().is_object()) vocabulary.refuse("an object");
  for (const auto& [text, id] : vocabulary.value().items())
    file.vocabulary.add(static_cast<TokenId>(json_unsigned(id, kMaxId, vocabulary.name(), text)), text,
                        Vocabulary::Kind::kModel, vocabulary.name());
  for (int byte = 0; byte < 256; ++byte)
    if (!file.vocabulary.find(byte_level_character(static_cast<uint8_t>(byte))))
      throw Error(ExitCode::kData,
                  fmt::format("{} has no token for the byte 0x{:02x}, expected all of byte-level BPE (\"{}\")",
                              vocabulary.name(), byte, byte_level_character(static_cast<uint8_t>(byte))));
}

// The two texts of a merge: ["a", "b"] or "a b".
std::pair<std::string_view, std::string_view> merge_texts(const Field& merge, const Json& value) {
  std::string_view left, right;
  if (value.is_string()) {
    const std::string_view text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
  } else if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    left = value[0].get_ref<const std::string&>();
    right = value[1].get_ref<const std::string&>();
  }
  if (left.empty() || right.empty())
    throw Error(ExitCode::kData, fmt::format("{} holds {}, expected two tokens: [\"a\", \"b\"] or \"a b\"",
                                             merge.name(), json_excerpt(value)));
  return {left, right};
}

void read_merges(const Field& model, TokenizerFile& file) {
  const Field merges = model["merges"];
  if (!merges.value().is_array()) merges.refuse("a list");
  const bool lists = !merges.value().empty() && merges.value()[0].is_array();
  for (const Json& value : merges.value()) {
    if (value.is_array() != lists)
      throw Error(ExitCode::kData, fmt::format("{} holds both lists and strings, expected one of them", merges.name()));
    // tokenizers skips these lines of merges.txt.
    if (value.is_string() && value.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = merge_texts(merges, value);
    const auto id = [&](std::string_view text) {
      const std::optional<TokenId> found = file.vocabulary.find(text);
      if (!found)
        throw Error(ExitCode::kData, fmt::format("{} holds {}, but \"{}\" is not in model.vocab", merges.name(),
                                                 json_excerpt(value), text));
      return *found;
    };
    file.merges.push_back({id(left), id(right), id(std::string(left) + std::string(right))});
  }
}

void read_model(const Field& model, TokenizerFile& file) {
  model.object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.type() != "BPE") model["type"].refuse("\"BPE\"");
  if (model.has("dropout") && model["dropout"].value() != 0.0) expect_null(model, "dropout");
  expect_null(model, "unk_token");
  expect_empty(model, "continuing_subword_prefix");
  expect_empty(model, "end_of_word_suffix");
  if (model.has("byte_fallback") && model["byte_fallback"].flag())
    model["byte_fallback"].refuse("false, because bytes are tokens here");
  // Without an unknown token there is nothing to fuse.
  if (model.has("fuse_unk")) model["fuse_unk"].flag();
  file.ignore_merges = model.has("ignore_merges") && model["ignore_merges"].flag();
  read_vocabulary(model, file);
  read_merges(model, file);
}

// tokenizers uses the model's id of an added token, or the next number after the model's tokens; it ignores the id in
// the file. If that id differs, the file is broken.
void read_added_tokens(const Field& list, TokenizerFile& file) {
  auto next = static_cast<TokenId>(file.vocabulary.count());
  std::unordered_set<std::string> texts;
  for (const Field& entry : list.list()) {
    entry.object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = entry["id"].id();
    token.text = entry["content"].text();
    token.special = entry["special"].flag();
    token.normalized = entry["normalized"].flag();
    token.single_word = entry["single_word"].flag();
    token.lstrip = entry["lstrip"].flag();
    token.rstrip = entry["rstrip"].flag();
    if (token.text.empty() || token.text.size() > kMaxAddedToken)
      entry["content"].refuse(fmt::format("a text of 1 to {} bytes", kMaxAddedToken));
    if (!texts.insert(token.text).second) entry["content"].refuse("a text that no other added token has");
    const std::optional<TokenId> known = file.vocabulary.find(token.text);
    const TokenId given = known ? *known : next;
    if (token.id != given)
      entry["id"].refuse(fmt::format("{}, which is its id in {}", given,
                                     known ? "model.vocab" : "tokenizers, which counts on from model.vocab"));
    if (!known) {
      file.vocabulary.add(token.id, token.text, Vocabulary::Kind::kAdded, list.name());
      ++next;
    }
    file.added_tokens.push_back(std::move(token));
  }
}

void read_split(const Field& split, TokenizerFile& file) {
  split.object({"type", "pattern", "behavior", "invert"});
  if (split["behavior"].value() != "Isolated") split["behavior"].refuse("\"Isolated\"");
  split["invert"].flag();  // matches and the text between them are pieces in either case
  const Field pattern = split["pattern"].object({"Regex", "String"});
  if (pattern.value().size() != 1) pattern.refuse("one of \"Regex\" and \"String\"");
  if (pattern.has("String") && pattern["String"].text().empty()) pattern.refuse("a text that is not empty");
  file.patterns.push_back(pattern.has("Regex") ? SplitPattern::parse(pattern["Regex"].text(), pattern.name())
                                               : SplitPattern::literal(pattern["String"].text()));
  if (file.patterns.size() > kMaxPatterns) split.refuse(fmt::format("at most {} patterns", kMaxPatterns));
}

void read_pre_tokenizer(const Field& pre_tokenizer, TokenizerFile& file) {
  std::vector<Field> steps = {pre_tokenizer};
  if (pre_tokenizer.value().is_object() && pre_tokenizer.type() == "Sequence")
    steps = pre_tokenizer.object({"type", "pretokenizers"})["pretokenizers"].list();
  if (steps.empty() || !steps.back().value().is_object() || steps.back().type() != "ByteLevel")
    pre_tokenizer.refuse("ByteLevel, or a Sequence that ends with it");
  const Field bytes = steps.back().object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (bytes["add_prefix_space"].flag()) bytes["add_prefix_space"].refuse("false");
  steps.pop_back();
  for (const Field& step : steps) {
    if (step.type() != "Split") step["type"].refuse("\"Split\", with \"ByteLevel\" as the last step");
    read_split(step, file);
  }
  if (!bytes.has("use_regex") || bytes["use_regex"].flag())
    file.patterns.push_back(SplitPattern::parse(kByteLevelPattern, bytes.name()));
}

void read_template(const Field& processor, TokenizerFile& file) {
  processor.object({"type", "single", "pair", "special_tokens"});
  std::vector<TokenId> before, after;
  int texts = 0;
  for (const Field& piece : processor["single"].list()) {
    piece.object({"Sequence", "SpecialToken"});
    if (piece.has("Sequence")) {
      if (piece["Sequence"]["id"].value() != "A") piece.refuse("the sequence A");
      ++texts;
      continue;
    }
    const std::string& name = piece["SpecialToken"]["id"].text();
    for (const Field& id : processor["special_tokens"][name.c_str()]["ids"].list()) {
      if (!file.vocabulary.has(id.id())) id.refuse("the id of a token");
      (texts == 0 ? before : after).push_back(id.id());
    }
  }
  if (texts != 1) processor["single"].refuse("the sequence A once");
  file.before = std::move(before);
  file.after = std::move(after);
}

void read_post_processor(const Field& post_processor, TokenizerFile& file) {
  if (post_processor.is_null()) return;
  std::vector<Field> steps = {post_processor};
  if (post_processor.type() == "Sequence") steps = post_processor.object({"type", "processors"})["processors"].list();
  int templates = 0;
  for (const Field& step : steps) {
    if (step.type() == "TemplateProcessing") {
      if (++templates > 1) step.refuse("one template only");  // tokenizers cannot do two
      read_template(step, file);
    } else if (step.type() != "ByteLevel") {  // which moves only offsets
      step["type"].refuse("\"TemplateProcessing\", \"ByteLevel\" or a \"Sequence\" of them");
    }
  }
}

void read_decoder(const Field& decoder) {
  std::vector<Field> steps = {decoder};
  if (decoder.value().is_object() && decoder.type() == "Sequence")
    steps = decoder.object({"type", "decoders"})["decoders"].list();
  if (steps.size() != 1 || !steps[0].value().is_object() || steps[0].type() != "ByteLevel")
    decoder.refuse("{\"type\": \"ByteLevel\"}");
}

void expect_no_normalizer(const Field& normalizer) {
  if (normalizer.is_null()) return;
  const bool empty =
      normalizer.value().is_object() && normalizer.type() == "Sequence" && normalizer["normalizers"].list().empty();
  if (!empty) normalizer.refuse("null, because text is not normalized here");
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& what) {
  const Json value = parse_json(json, what);
  const Field root(value, Field::kRoot, what);
  // Truncation and padding are settings of a call, which transformers resets.
  root.object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
               "decoder", "model"});
  if (root["version"].value() != "1.0") root["version"].refuse("\"1.0\"");
  TokenizerFile file;
  expect_no_normalizer(root["normalizer"]);
  read_pre_tokenizer(root["pre_tokenizer"], file);
  read_decoder(root["decoder"]);
  read_model(root["model"], file);
  read_added_tokens(root["added_tokens"], file);
  read_post_processor(root["post_processor"], file);
  return file;
}

}  // namespace lfm2
