// Every field of tokenizer.json that would change ids and that this tokenizer does not heed is refused, with its place,
// what was found and what was expected.
#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/text/small_tokenizer.h"

namespace lfm2 {
namespace {

using test::small_tokenizer_json;

std::string tokenizer_refusal(const Json& json) {
  try {
    Tokenizer::parse(json.dump(), "F");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    return error.what();
  }
  return "accepted";
}

struct Change {
  std::string place;  // a JSON pointer
  std::string value;  // JSON; empty: the field is removed
  std::string message;
};

class TokenizerFieldTest : public ::testing::TestWithParam<Change> {};

TEST_P(TokenizerFieldTest, IsRefused) {
  Json json = small_tokenizer_json();
  const Json::json_pointer place(GetParam().place);
  if (GetParam().value.empty())
    json.at(place.parent_pointer()).erase(place.back());
  else
    json[place] = Json::parse(GetParam().value);
  const std::string message = tokenizer_refusal(json);
  EXPECT_EQ(message.substr(0, 3), "F: ") << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}

constexpr const char* kSplit = "/pre_tokenizer/pretokenizers/0";
constexpr const char* kRegex = "/pre_tokenizer/pretokenizers/0/pattern/Regex";

INSTANTIATE_TEST_SUITE_P(
    Fields, TokenizerFieldTest,
    ::testing::Values(
        Change{"/version", R"("2.0")", R"(version is "2.0", expected "1.0")"},
        Change{"/model", "", R"(the file has no "model")"},
        Change{"/new_field", "1", R"(the file has the key "new_field", which is not supported)"},
        Change{"/normalizer", R"({"type": "NFC"})", R"(normalizer is {"type":"NFC"}, expected null)"},
        Change{"/decoder", "null", "decoder is null, expected"},
        Change{"/decoder", R"({"type": "Metaspace"})", "expected {\"type\": \"ByteLevel\"}"},
        Change{"/decoder/decoders/1", R"({"type": "Fuse"})", "expected {\"type\": \"ByteLevel\"}"},
        Change{"/model/type", R"("Unigram")", R"(model.type is "Unigram", expected "BPE")"},
        Change{"/model/dropout", "0.1", "model.dropout is 0.1, expected null"},
        Change{"/model/unk_token", R"("<unk>")", R"(model.unk_token is "<unk>", expected null)"},
        Change{"/model/continuing_subword_prefix", R"("##")", R"(model.continuing_subword_prefix is "##")"},
        Change{"/model/end_of_word_suffix", R"("</w>")", R"(model.end_of_word_suffix is "</w>")"},
        Change{"/model/byte_fallback", "true", "model.byte_fallback is true, expected false"},
        Change{"/model/byte_fallback", "1", "model.byte_fallback is 1, expected true or false"},
        Change{"/model/fuse_unk", "0", "model.fuse_unk is 0, expected true or false"},
        Change{"/model/other", "0", "model has the key \"other\""},
        Change{"/model/vocab", "[]", "model.vocab is [], expected an object"},
        Change{"/model/vocab/a", "", "model.vocab has no token for the byte 0x61"},
        Change{"/model/vocab/new", "7", "model.vocab: two tokens have the id 7"},
        Change{"/model/vocab/new", "-1", "\"new\" is -1, expected an integer from 0"},
        Change{"/model/vocab/new", "1048576", "\"new\" is 1048576, expected an integer from 0 to 1048575"},
        Change{"/model/vocab/new", R"("7")", "expected an integer"},
        Change{"/model/merges", "null", "model.merges is null, expected a list"},
        Change{"/model/merges/0", R"(["no such token", "a"])", R"("no such token" is not in model.vocab)"},
        Change{"/model/merges/0", R"(["Ġt", "Ġt"])", R"("ĠtĠt" is not in model.vocab)"},
        Change{"/model/merges/0", R"(["a"])", R"(model.merges holds ["a"], expected two tokens)"},
        Change{"/model/merges/0", R"(["a", ""])", "expected two tokens"},
        Change{"/model/merges/0", R"(["a", 1])", "expected two tokens"},
        Change{"/model/merges", R"(["a b c"])", "expected two tokens"},
        Change{"/model/merges", R"(["ab"])", "expected two tokens"},
        Change{"/model/merges/1", R"("h e")", "model.merges holds both lists and strings"},
        Change{"/added_tokens", "{}", "added_tokens is {}, expected a list"},
        Change{"/added_tokens/0/id", "9", "added_tokens[0].id is 9, expected 0, which is its id in model.vocab"},
        Change{"/added_tokens/5/id", "9999",
               "added_tokens[5].id is 9999, expected 1200, which is its id in tokenizers"},
        Change{"/added_tokens/5/content", R"("")",
               "added_tokens[5].content is \"\", expected a text of 1 to 1024 bytes"},
        Change{"/added_tokens/5/content", R"("<|pad|>")", "expected a text that no other added token has"},
        Change{"/added_tokens/5/content", '"' + std::string(1025, 'a') + '"', "expected a text of 1 to 1024 bytes"},
        Change{"/added_tokens/5/lstrip", "", R"(added_tokens[5] has no "lstrip")"},
        Change{"/added_tokens/5/special", "null", "added_tokens[5].special is null, expected true or false"},
        Change{"/added_tokens/5/other", "true", "added_tokens[5] has the key \"other\""},
        Change{"/pre_tokenizer", "null", "pre_tokenizer is null, expected ByteLevel"},
        Change{"/pre_tokenizer", R"({"type": "Whitespace"})", "expected ByteLevel, or a Sequence that ends with it"},
        Change{"/pre_tokenizer/pretokenizers", "[]", "expected ByteLevel, or a Sequence that ends with it"},
        Change{"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space is true, expected false"},
        Change{kSplit, R"({"type": "Digits", "individual_digits": true})", "pretokenizers[0].type is \"Digits\""},
        Change{std::string(kSplit) + "/behavior", R"("Removed")", R"(behavior is "Removed", expected "Isolated")"},
        Change{std::string(kSplit) + "/invert", "", R"(has no "invert")"},
        Change{std::string(kSplit) + "/pattern", "{}", "expected one of \"Regex\" and \"String\""},
        Change{std::string(kSplit) + "/pattern", R"({"String": ""})", "expected a text that is not empty"},
        Change{"/post_processor", R"({"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]})",
               R"(post_processor.type is "BertProcessing")"},
        Change{"/post_processor/processors/1/single/0/SpecialToken/id", R"("<s>")", R"(special_tokens has no "<s>")"},
        Change{"/post_processor/processors/1/single/2", R"({"Sequence": {"id": "A", "type_id": 0}})",
               "expected the sequence A once"},
        Change{"/post_processor/processors/1/single/1/Sequence/id", R"("B")", "expected the sequence A"},
        Change{"/post_processor/processors/1/special_tokens/<|startoftext|>/ids", "[5000]",
               "expected the id of a token"},
        // What Oniguruma and PCRE2 may read in different ways.
        Change{kRegex, R"x("a|(b")x", "a group without end"},
        Change{kRegex, R"x("a)")x", "a \")\" that closes nothing"}, Change{kRegex, R"x("[a")x", "no end"},
        Change{kRegex, R"x("a.b")x", "\".\", which is not supported"},
        Change{kRegex, R"x("^a")x", "\"^\", which is not supported"}, Change{kRegex, R"x("\\bword\\b")x", "an escape"},
        Change{kRegex, R"x("\\h")x", "an escape"}, Change{kRegex, R"x("\\x41")x", "an escape"},
        Change{kRegex, R"x("\\p{Han}")x", "a property that is no general category"},
        Change{kRegex, R"x("\\p{L")x", "a property that is no general category"},
        Change{kRegex, R"x("(?<=a)b")x", "a group of a kind that is not supported"},
        Change{kRegex, R"x("(?i)a")x", "a group of a kind that is not supported"},
        Change{kRegex, R"x("(*UCP)a")x", "a group of a kind that is not supported"},
        Change{kRegex, R"x("[[:alpha:]]")x", "a class within a class"},
        Change{kRegex, R"x("[a&&b]")x", "a class within a class"},
        Change{kRegex, R"x("[]a]")x", "a class that begins with"}, Change{kRegex, R"x("[z-a]")x", "a range whose end"},
        Change{kRegex, R"x("[\\d-a]")x", "a range that begins with a set"},
        Change{kRegex, R"x("[^\\s\\S]")x", "a class without characters"},
        Change{kRegex, R"x("a**")x", "a repetition of a repetition"},
        Change{kRegex, R"x("a{,3}")x", "a repetition without a number"},
        Change{kRegex, R"x("a{3,2}")x", "a repetition that is not"},
        Change{kRegex, R"x("a{5000}")x", "a repetition of more than"},
        Change{kRegex, R"x("(?=a)*b")x", "a repetition of what only looks ahead"},
        Change{kRegex, R"x("+")x", "not supported here"},
        Change{kRegex, R"x("(?i:ss)")x", "letters that one character can stand for"},
        Change{kRegex, R"x("(?i:é)")x", "a character outside ASCII where case does not matter"},
        Change{kRegex, R"x("(?i:\\p{Lu})")x", "a set where case does not matter"},
        Change{kRegex, R"x("a*")x", "matches empty text"}, Change{kRegex, R"x("(?=a)")x", "matches empty text"},
        Change{kRegex, R"x("\\")x", "no end"}));

TEST(TokenizerFileTest, WhatChangesNoIdsIsAccepted) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"/padding", R"({"strategy": "BatchLongest"})"},
      {"/truncation", R"({"max_length": 5})"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": []})"},
      {"/model/dropout", "0.0"},
      {"/model/continuing_subword_prefix", R"("")"},
      {"/model/fuse_unk", "true"},
      {"/decoder", R"({"type": "ByteLevel"})"}};
  for (const auto& [place, value] : changes) {
    Json json = small_tokenizer_json();
    json[Json::json_pointer(place)] = Json::parse(value);
    EXPECT_EQ(tokenizer_refusal(json), "accepted") << place;
  }
}

TEST(TokenizerFileTest, IdsMayHaveGaps) {
  Json json = small_tokenizer_json();
  json["added_tokens"] = Json::array();
  json["model"]["vocab"]["ab ab"] = 5000;
  const Tokenizer tokenizer = test::parse_tokenizer(json);
  EXPECT_EQ(tokenizer.size(), 5001u);
  EXPECT_EQ(tokenizer.bytes(4999), "");
  EXPECT_EQ(tokenizer.bytes(5000), "ab ab");
}

TEST(TokenizerFileTest, BrokenJson) {
  const std::string text = small_tokenizer_json().dump();
  for (const std::string& broken : {std::string(), text.substr(0, text.size() / 2), "[" + text, text + "x"}) {
    try {
      Tokenizer::parse(broken, "F");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_TRUE(std::string(error.what()).starts_with("F: ")) << error.what();
    }
  }
}

}  // namespace
}  // namespace lfm2
