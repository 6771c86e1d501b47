// render_chat: lines of JSON from stdin, {"source": a template, "messages": …, "tools": …, "add_generation_prompt": …,
// "variables": …, "tokens": {"bos", "eos", "pad"}, "now": seconds}; a line for each to stdout, {"text": …} or
// {"error": …}. Scripts compare it with Python's Jinja. A line without "source" uses the one before.
#include <fmt/format.h>

#include <iostream>
#include <optional>

#include "base/error.h"
#include "text/chat/chat_template.h"

namespace {

using lfm2::OrderedJson;

OrderedJson answer(const OrderedJson& line, std::optional<lfm2::ChatTemplate>& chat) {
  try {
    if (line.contains("source")) {
      chat.reset();
      chat = lfm2::ChatTemplate::parse(line["source"].get<std::string>(), "template");
    }
    if (!chat) return {{"error", "no template"}};
    const OrderedJson none, tokens = line.value("tokens", OrderedJson::object());
    lfm2::ChatInput input{line.contains("messages") ? line["messages"] : none,
                          line.contains("tools") ? line["tools"] : none};
    input.add_generation_prompt = line.value("add_generation_prompt", false);
    for (const auto& [name, text] : tokens.items()) input.special_tokens[name + "_token"] = text;
    input.variables = line.value("variables", OrderedJson::object());
    input.now = line.value("now", std::time_t{0});
    return {{"text", chat->render(input)}};
  } catch (const lfm2::Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::optional<lfm2::ChatTemplate> chat;
  for (std::string line; std::getline(std::cin, line);) {
    OrderedJson result;
    try {
      result = answer(lfm2::parse_ordered_json(line, "line"), chat);
    } catch (const lfm2::Error& error) {
      result = {{"error", error.what()}};
    }
    std::cout << lfm2::json_text(result) << '\n' << std::flush;
  }
}
