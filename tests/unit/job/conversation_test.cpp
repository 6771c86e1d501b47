// A conversation is driven as a generation drives it, with texts instead of a model's draws.
#include "stage/job/conversation.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "support/golden.h"
#include "support/shards.h"

namespace lfm2 {
namespace {

using namespace test;

class ConversationTest : public ::testing::Test {
 protected:
  ConversationTest() {
    std::filesystem::copy_file(golden_dir() / "text/tokenizer.json", folder_ / "tokenizer.json");
    std::ofstream(folder_ / "chat_template.jinja") << "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor "
                                                      "%}{% if add_generation_prompt %}>{% endif %}";
    model_.emplace(TextModel::open(folder_.path()));
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    in_ = ::fdopen(ends[0], "r");
    typed_ = ::fdopen(ends[1], "w");
    out_ = std::tmpfile();
  }
  ~ConversationTest() override {
    if (typed_ != nullptr) std::fclose(typed_);
    std::fclose(out_);  // in_ stays open: the conversation's thread may still wait for it
  }

  Conversation begin(int64_t max_positions = 1000) {
    return Conversation(*model_, {.max_new = 5}, max_positions, 0, {in_, out_, [this] { return interrupts_; }});
  }
  void type(const std::string& line) {
    std::fputs((line + "\n").c_str(), typed_);
    std::fflush(typed_);
  }
  // Looks again until a request has come, or the conversation has ended.
  static std::optional<Request> next(Conversation& conversation) {
    for (int i = 0; i < 2000 && !conversation.ended() && conversation.waiting() == 0; ++i) {
      conversation.cancelled();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return conversation.next();
  }
  std::string text_of_prompt(const Request& request) const { return model_->tokenizer().decode(request.prompt, false); }
  void answer(Conversation& conversation, int32_t sample, const std::string& text, bool whole = true) {
    std::vector<int32_t> ids;
    model_->tokenizer().encode(text, false, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      DrawnToken token{.token = ids[i]};
      if (whole && i + 1 == ids.size()) token.ends = FinishReason::kStop;
      conversation.drawn({{sample, token}});
    }
  }
  std::string printed() const {
    std::string text(static_cast<size_t>(std::ftell(out_)), '\0');
    std::rewind(out_);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), out_), text.size());
    return text;
  }

  TemporaryFolder folder_;
  std::optional<TextModel> model_;
  std::FILE *in_ = nullptr, *typed_ = nullptr, *out_ = nullptr;
  int interrupts_ = 0;
};

TEST_F(ConversationTest, RemembersWhatWasSaid) {
  Conversation conversation = begin();
  type("hi é");
  std::optional<Request> first = next(conversation);
  ASSERT_TRUE(first);
  EXPECT_EQ(text_of_prompt(*first), "[user|hi é]>");
  EXPECT_EQ(first->max_new, 5);
  answer(conversation, first->sample, "yes 你");
  type("   ");
  type("more");
  std::optional<Request> second = next(conversation);
  ASSERT_TRUE(second);
  EXPECT_EQ(text_of_prompt(*second), "[user|hi é][assistant|yes 你][user|more]>");
  EXPECT_NE(second->sample, first->sample);
  answer(conversation, second->sample, "x");
  type("/clear");
  type("new");
  EXPECT_EQ(text_of_prompt(*next(conversation)), "[user|new]>");
  EXPECT_EQ(printed(), "> yes 你\n> > x\n> > ");
}

// The thought is shown, but it is no part of what was answered: this template shows no thoughts.
TEST_F(ConversationTest, KeepsThoughtsApart) {
  Conversation conversation = begin();
  type("hi");
  answer(conversation, next(conversation)->sample, "<think>so</think>yes");
  type("more");
  EXPECT_EQ(text_of_prompt(*next(conversation)), "[user|hi][assistant|yes][user|more]>");
  EXPECT_EQ(printed(), "> <think>so</think>yes\n> ");
}

TEST_F(ConversationTest, EndsWithItsInputOrWhenAsked) {
  Conversation conversation = begin();
  type("/exit");
  EXPECT_FALSE(next(conversation));
  EXPECT_TRUE(conversation.ended());
  Conversation other = begin();
  std::fclose(typed_);
  typed_ = nullptr;
  EXPECT_FALSE(next(other));
  EXPECT_TRUE(other.ended());
}

TEST_F(ConversationTest, AnInterruptEndsTheAnswerAndASecondOneTheConversation) {
  Conversation conversation = begin();
  type("hi");
  const std::optional<Request> request = next(conversation);
  answer(conversation, request->sample, "a long answer", false);
  ++interrupts_;
  EXPECT_EQ(conversation.cancelled(), std::vector<int32_t>{request->sample});
  answer(conversation, request->sample, "that comes late", false);
  EXPECT_FALSE(conversation.ended());
  type("and now");
  EXPECT_EQ(text_of_prompt(*next(conversation)), "[user|hi][assistant|a long answer][user|and now]>");
  answer(conversation, 1, "done");
  ++interrupts_;
  EXPECT_TRUE(conversation.cancelled().empty());
  EXPECT_TRUE(conversation.ended());
}

TEST_F(ConversationTest, SaysWhatDoesNotFitAndForgetsIt) {
  Conversation conversation = begin(20);
  type(std::string(200, 'x').append(" 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"));
  type("hi");
  EXPECT_EQ(text_of_prompt(*next(conversation)), "[user|hi]>");
  EXPECT_NE(printed().find("expected fewer than 20: /clear begins again"), std::string::npos);
}

TEST_F(ConversationTest, SaysThatAnAnswerHasNoNextTokenAndForgetsTheLine) {
  Conversation conversation = begin();
  type("hi");
  const int32_t sample = next(conversation)->sample;
  answer(conversation, sample, "so", false);
  conversation.drawn({{sample, {.token = 0, .ends = FinishReason::kError}}});
  type("again");
  EXPECT_EQ(text_of_prompt(*next(conversation)), "[user|again]>");
  EXPECT_EQ(printed(), "> so\nlfm2_stage: the model's results are not finite (NaN or infinity)\n> ");
}

TEST_F(ConversationTest, ShowsControlCharactersAsQuestionMarks) {
  Conversation conversation = begin();
  type("hi");
  answer(conversation, next(conversation)->sample, "a\x1b[31mb\tc\xc2\x9b");
  EXPECT_EQ(printed(), "> a?[31mb\tc?\n> ");
}

// What may become a stop text is shown at the end.
TEST_F(ConversationTest, ShowsThemAsSuchInWhatWasHeldBack) {
  Conversation conversation(*model_, {.max_new = 5, .stop = {"\x1b]0;x\x07y"}}, 1000, 0,
                            {in_, out_, [this] { return interrupts_; }});
  type("hi");
  answer(conversation, next(conversation)->sample, "a\x1b]0;x\x07");
  EXPECT_EQ(printed(), "> a?]0;x?\n> ");
}

}  // namespace
}  // namespace lfm2
