// Chat templates turn the messages of a conversation into the text form that a model was trained on. They are Jinja
// templates, rendered as Hugging Face's transformers does. Unsupported constructs are refused with their line
// (docs/text.md).
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

// The texts of special tokens that a template may write, by the names of their variables, such as "bos_token".
using SpecialTokens = std::map<std::string, std::string, std::less<>>;

struct ChatInput {
  const OrderedJson& messages;
  const OrderedJson& tools;  // null where there are none
  bool add_generation_prompt = false;
  SpecialTokens special_tokens = {};
  OrderedJson variables =
      OrderedJson::object();  // further variables such as enable_thinking; they override those above
  std::time_t now = 0;        // for strftime_now
};

class ChatTemplate {
 public:
  // Error(kData) naming the template by `what`, and the line.
  static ChatTemplate parse(std::string_view source, const std::string& what);

  // Equal inputs give equal texts; strftime_now uses the local time zone. Error(kData) if the template refuses the
  // conversation (raise_exception), uses an undefined value, or needs too many steps or too much memory.
  std::string render(const ChatInput& input, const jinja::Limits& limits = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> tree) : tree_(std::move(tree)) {}

  std::shared_ptr<const jinja::Template> tree_;
};

}  // namespace lfm2
