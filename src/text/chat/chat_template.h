// Chat templates: from the messages of a conversation to the text that a model was trained on. Templates are Jinja's,
// as Hugging Face's transformers render them; what is not supported is refused with its line (docs/text.md).
#pragma once

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "text/jinja/values/limits.h"

namespace lfm2 {

namespace jinja {
struct Template;
}

// The texts of the special tokens that a template may write, by their names there: "bos_token" and so on.
using SpecialTokens = std::map<std::string, std::string, std::less<>>;

struct ChatInput {
  const OrderedJson& messages;
  const OrderedJson& tools;  // null where there are none
  bool add_generation_prompt = false;
  SpecialTokens special_tokens = {};
  OrderedJson variables = OrderedJson::object();  // more of them, such as enable_thinking; they win over those above
  std::time_t now = 0;                            // for strftime_now
};

class ChatTemplate {
 public:
  // Error(kData) with `what`, which names the template, and the line.
  static ChatTemplate parse(std::string_view source, const std::string& what);

  // The same input gives the same text, in every time zone that has the same date. Error(kData) where the template
  // refuses the conversation (raise_exception), uses what is not there, or takes too many steps or too much memory.
  std::string render(const ChatInput& input, const jinja::Limits& limits = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> tree) : tree_(std::move(tree)) {}

  std::shared_ptr<const jinja::Template> tree_;
};

}  // namespace lfm2
