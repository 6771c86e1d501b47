// Chat templates: the texts are those of Python's Jinja; what is refused says why and where; strangers' templates end
// soon.
#include "text/chat/chat_template.h"

#include <chrono>
#include <map>
#include <sstream>

#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;

OrderedJson json(const std::string& text) { return parse_ordered_json(text, "json"); }

std::string render(const std::string& source, const std::string& variables = "{}", const jinja::Limits& limits = {}) {
  const OrderedJson messages = json(R"([{"role": "user", "content": "Hi"}])"), none;
  ChatInput input{messages, none};
  input.variables = json(variables);
  return ChatTemplate::parse(source, "t.jinja").render(input, limits);
}

TEST(ChatTemplateTest, GivesTheTextsOfPythonsJinja) {
  const std::filesystem::path folder = std::filesystem::path(LFM2_GOLDEN_DIR) / "chat-templates";
  std::istringstream lines(test::read_bytes(folder / "cases.jsonl"));
  std::map<std::string, ChatTemplate> templates;
  size_t rendered = 0, refused = 0;
  for (std::string line; std::getline(lines, line);) {
    const OrderedJson golden = json(line);
    const std::string name = golden["template"];
    const ChatTemplate& chat =
        templates.try_emplace(name, ChatTemplate::parse(test::read_bytes(folder / name), name)).first->second;
    ChatInput input{golden["messages"], golden["tools"]};
    input.add_generation_prompt = golden["add_generation_prompt"];
    for (const auto& [token, text] : golden["tokens"].items()) input.special_tokens[token + "_token"] = text;
    input.variables = golden["variables"];
    input.now = golden["now"];
    SCOPED_TRACE(line.substr(0, 300));
    if (golden.contains("text")) {
      EXPECT_EQ(chat.render(input), golden["text"].get<std::string>());
      ++rendered;
    } else {
      expect_error([&] { chat.render(input); }, ExitCode::kData, {name, "line "});
      ++refused;
    }
  }
  EXPECT_EQ(templates.size(), 9u);
  EXPECT_GT(rendered, 80u);
  EXPECT_GT(refused, 20u);
}

TEST(ChatTemplateTest, SyntaxErrorsNameTheLine) {
  struct Case {
    std::string source, line, part;
  };
  std::vector<Case> cases = {
      {"{{ 1 + }}", "line 1", "expected an expression"},
      {"a\n{% if x %}\nb", "line 2", "the template ends before 'endif'"},
      {"a\n\n{% endif %}", "line 3", "No tag named 'endif'"},
      {"{% include 'x' %}", "line 1", "tag 'include' is not supported"},
      {"\n{% for x in y recursive %}{% endfor %}", "line 2", "a recursive loop is not supported"},
      {"\n\n{{ x | urlize }}", "line 3", "filter 'urlize' is not supported"},
      {"{{ x | nothing }}", "line 1", "No filter named 'nothing'"},
      {"{{ x is nothing }}", "line 1", "No test named 'nothing'"},
      {"{{ joiner() }}", "line 1", "'joiner' is not supported"},
      {"{{ self.x }}", "line 1", "'self' is not supported"},
      {"{% break %}", "line 1", "not directly within a loop"},
      {"{% for x in y %}{% set z %}{% break %}{% endset %}{% endfor %}", "line 1", "not directly within a loop"},
      {"{{ (1, }}", "line 1", "unexpected '}', expected ')'"},
      {"{{ ) }}", "line 1", "unexpected ')'"},
      {"{{ 'a }}", "line 1", "a text that nothing closes"},
      {"x\n{# c", "line 2", "Missing end of comment tag"},
      {"{% raw %}", "line 1", "Missing end of raw directive"},
      {"{{ a ? b }}", "line 1", "unexpected char '?'"},
      {"{{ é }}", "line 1", "unexpected char 'é'"},
      {"{% set 1 = 2 %}", "line 1", "a name to assign to"},
      {"{% set none = 2 %}", "line 1", "can't assign"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "line 1", "non-default argument follows default argument"},
      {"{% macro m(a, a) %}{% endmacro %}", "line 1", "two parameters are named 'a'"},
      {"{% for loop in x %}{% endfor %}", "line 1", "loop"},
      {"{{ x.__class__ }}", "line 1", "attribute '__class__' is not supported"},
      {"{{ f(a=1, 2) }}", "line 1", "invalid syntax for function call"},
      {"{{ '\\ud800' }}", "line 1", "no character"},
      {"{{ 99999999999999999999999999999999999999999 }}", "line 1", "the number '99"},
      {"\xff", "line 1", "not UTF-8"},
      {std::string(2 << 20, 'x'), "line 1", "bytes, at most"},
  };
  std::string parameters = "a", arguments = "a=1";
  for (int i = 0; i < 255; ++i) {
    parameters += fmt::format(", a{}", i);
    arguments += fmt::format(", a{}=1", i);
  }
  cases.push_back({"{% macro m(" + parameters + ") %}{% endmacro %}", "line 1", "more than 255 parameters"});
  cases.push_back({"{{ m(" + arguments + ") }}", "line 1", "more than 255 arguments"});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.source.substr(0, 80));
    expect_error([&] { ChatTemplate::parse(c.source, "t.jinja"); }, ExitCode::kData, {"t.jinja: ", c.line, c.part});
  }
}

TEST(ChatTemplateTest, RefusalsOfRenderingNameTheLine) {
  struct Case {
    std::string source, line, part;
  };
  const std::vector<Case> cases = {
      {"\n{{ raise_exception('no ' ~ 'way') }}", "line 2", "no way"},
      {"{{ x.y }}", "line 1", "'x' is undefined"},
      {"\n{{ messages[0].zz.y }}", "line 2", "'dict object' has no attribute 'zz'"},
      {"{{ messages[9].role }}", "line 1", "has no element 9"},
      {"{{ 'a' + 1 }}", "line 1", "unsupported operand type(s) for +: 'str' and 'int'"},
      {"{{ 1 % 0 }}", "line 1", "division by zero"},
      {"{% if false %}{% else %}\n{{ x | from_json }}{% endif %}", "line 2", "No filter named 'from_json'"},
      {"{{ messages.append(1) }}", "line 1", "unsafe"},
      {"{{ messages[0].update({}) }}", "line 1", "unsafe"},
      {"{{ ''['__class__'] }}", "line 1", "'__class__' is not supported"},
      {"{{ 'a'.translate({}) }}", "line 1", "the str method 'translate' is not supported"},
      {"{{ range }}", "line 1", "as text is not supported"},
      {"{{ messages | map('upper') }}", "line 1", "a generator as text is not supported"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "line 1", "takes not more than 1"},
      {"{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "line 1", "takes no keyword argument 'b'"},
      {"{% for a, b in [[1]] %}{% endfor %}", "line 1", "1 values to unpack, expected 2"},
      {"{{ x() }}", "line 1", "'x' is undefined"},
      {"{{ {[]: 1} }}", "line 1", "unhashable"},
      {"{{ [1, 'a'] | sort }}", "line 1", "'<' not supported"},
      {"{{ 999999999999999999 * 999999999999999999 * 999999999999999999 }}", "line 1", "128 bits"},
      {"{{ strftime_now('%Q') }}", "line 1", "'%Q' is not supported"},
      {"{{ strftime_now('%999999999d') }}", "line 1", "not supported"},
      {"{{ messages | tojson(1, 2, 3, 4, 5) }}", "line 1", "tojson: 5 arguments"},
      {"{{ messages[0] | tojson(indents=2) }}", "line 1", "no argument is named 'indents'"},
      {"{{ namespace() | tojson }}", "line 1", "not JSON serializable"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.source);
    expect_error([&] { render(c.source); }, ExitCode::kData, {"t.jinja: ", c.line, c.part});
  }
}

TEST(ChatTemplateTest, WhetherATextIsEmptyIsSeenAtOnce) {
  EXPECT_EQ(render("{% set t = 'x' * 60000000 %}{% for i in range(3000) %}{% if t %}{% endif %}{% endfor %}done"),
            "done");
}

// Each of these ends with one of the limits, long before it ends itself.
TEST(ChatTemplateTest, HostileTemplatesEndSoon) {
  const auto repeat = [](const std::string& text, int times) {
    std::string repeated;
    for (int i = 0; i < times; ++i) repeated += text;
    return repeated;
  };
  struct Case {
    std::string source, part;
  };
  const std::vector<Case> cases = {
      {"{{ 'a' * 1000000000 }}", "MiB of values"},
      {"{{ [0] * 100000000000000000 }}", "MiB of values"},
      {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
       "MiB of values"},
      {"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
       "MiB of values"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
       "MiB of values"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}", "nested deeper"},
      {"{% set ns = namespace(x={}) %}{% for i in range(1000) %}{% set ns.x = {'k': ns.x} %}{% endfor %}",
       "nested deeper"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
       ""},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
       "tojson }}",
       ""},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == "
       "ns.x }}",
       "steps"},
      {"{% set ns = namespace(x=(1,)) %}{% for i in range(150) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} "
       "}}",
       "steps"},
      {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", ""},
      {"{% for i in range(100001) %}{% endfor %}", "Range too big"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deeper than"},
      {"{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "deeper than"},
      {"{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", "steps"},
      {"{% set t = 'aaaaaaaaaaaaaaaa' * 60000 %}{% for i in range(100000) %}{% if t in (t ~ i) %}{% endif %}{% endfor "
       "%}",
       ""},
      {"{% set t = 'ab' * 500000 %}{% for i in range(100000) %}{{ t[i] }}{% endfor %}", "steps"},
      {"{% set t = 'ab' * 500000 %}{% for i in range(100000) %}{% set x = t | length %}{% endfor %}", "steps"},
      {"{% set t = 'x' * 60000000 %}{% for i in range(100000) %}{% if t.startswith(t) %}{% endif %}{% endfor %}",
       "steps"},
      {"{% set t = 'x' * 60000000 %}{% for i in range(100000) %}{% set y = t.endswith(t) %}{% endfor %}", "steps"},
      {"{{ ['\x01' * 1000000] * 240 | tojson }}", ""},
      {"{{ (['\x01' * 1000000] * 100) | tojson }}", "MiB of values"},
      {"{% set t = 'x' * 1000000 %}{{ t | replace('x', t) }}", "MiB of values"},
      {"{% set t = 'x' * 1000000 %}{{ t.replace('x', t) }}", "MiB of values"},
      {"{% set t = 'x ' * 20000000 %}{{ t.split(' ') | length }}", "MiB of values"},
      {"{% set t = ['x' * 1000000] * 1000 %}{{ t | join }}", "MiB of values"},
      {"{% set t = ['x' * 1000000] * 1000 %}{{ t }}", "MiB of values"},
      {"{% set t = ['x' * 1000000] * 1000 %}{{ t | tojson }}", "MiB of values"},
      {"{% set t = 'x' * 1000000 %}{% for i in range(1000) %}{{ t }}{% endfor %}", "MiB"},
      {"{{ 'a\n' * 1000000 | indent(1000000) }}", ""},
      {"{{ ('a\n' * 1000000) | indent(1000000) }}", "MiB of values"},
      {"{{ [[[[1]]]] | tojson(indent=100000000) }}", "MiB of values"},
      {"{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}", "nested deeper than 250 levels"},
      {"{{ " + repeat("[", 100000) + "1" + repeat("]", 100000) + " }}", "nested deeper than 250 levels"},
      {"{{ " + repeat("-", 100000) + "1 }}", "nested deeper than 250 levels"},
      {"{{ " + repeat("not ", 100000) + "1 }}", "nested deeper than 250 levels"},
      {"{{ 1" + repeat(" + 1", 100000) + " }}", "nested deeper than 250 levels"},
      {"{{ 1" + repeat(" | string", 100000) + " }}", "nested deeper than 250 levels"},
      {"{{ x" + repeat(".x", 100000) + " }}", "nested deeper than 250 levels"},
      {"{{ x" + repeat("[0]", 100000) + " }}", "nested deeper than 250 levels"},
      {"{{ " + repeat("1 if 1 else ", 50000) + "1 }}", "nested deeper than 250 levels"},
      {repeat("{% if 1 %}", 50000), "nested deeper than 100 levels"},
      {repeat("{% for x in y %}", 50000), "nested deeper than 100 levels"},
      {repeat("{% set x %}", 50000), "nested deeper than 100 levels"},
      {"{% set (" + repeat("(", 50000) + "x", "nested deeper than 250 levels"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.source.substr(0, 100));
    const auto begin = std::chrono::steady_clock::now();
    expect_error([&] { render(c.source); }, ExitCode::kData, {"t.jinja: ", c.part});
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(taken.count(), 20.0);
  }
}

TEST(ChatTemplateTest, EachLimitIsOneLine) {
  expect_error([] { render("{{ 1 + 1 + 1 }}", "{}", {.steps = 3}); }, ExitCode::kData, {"line 1", "3 steps"});
  expect_error([] { render("{% for i in range(9000) %}{{ i }}{% endfor %}", "{}", {.processor_seconds = 0}); },
               ExitCode::kData, {"line 1", "more than 0 s of processor time"});
  const std::atomic<bool> stop = true;
  expect_error([&] { render("{% for i in range(9000) %}{{ i }}{% endfor %}", "{}", {.stop = &stop}); },
               ExitCode::kStopped, {"stopped"});
  expect_error([] { render("{{ [1] * 9000 }}", "{}", {.memory_bytes = 100'000}); }, ExitCode::kData, {"values"});
  expect_error([] { render("{{ 'ab' * 9000 }}", "{}", {.output_bytes = 10'000}); }, ExitCode::kData, {"writes more"});
  expect_error([] { render("{{ [[[1]]] }}", "{}", {.depth = 4}); }, ExitCode::kData, {"deeper than 4"});
  expect_error([] { render("{{ [[[1]]] }}", "{}", {.value_depth = 2}); }, ExitCode::kData, {"deeper than 2"});
  expect_error([] { render("{{ x }}", R"({"x": [[[1]]]})", {.value_depth = 2}); }, ExitCode::kData, {"deeper than 2"});
}

// What templates collect piece by piece takes time and memory by its length.
TEST(ChatTemplateTest, LongConversationsTakeLinearTime) {
  const std::string source =
      "{% set ns = namespace(all='') %}{% for m in messages %}"
      "{% set ns.all = ns.all + m.role ~ ': ' %}{% set ns.all = ns.all + m.content + '\\n' %}"
      "{% endfor %}{{ ns.all }}";
  OrderedJson messages = OrderedJson::array(), none;
  std::string expected;
  for (int i = 0; i < 50'000; ++i) {
    messages.push_back({{"role", "user"}, {"content", std::string(100, 'x')}});
    expected += "user: " + std::string(100, 'x') + "\n";
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ChatTemplate::parse(source, "t.jinja").render({messages, none}), expected);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(taken.count(), 10.0);
}

TEST(ChatTemplateTest, VariablesOfTheCaller) {
  EXPECT_EQ(render("{{ x }}{{ x.a if x is mapping }}", R"({"x": {"a": 1}})"), "{'a': 1}1");
  EXPECT_EQ(render("{{ messages }}", R"({"messages": 3})"), "3");
  EXPECT_EQ(render("{{ bos_token is defined }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"),
            "FalseTrueTrueFalse");
  EXPECT_EQ(render("{{ x }}", R"({"x": 18446744073709551615})"), "18446744073709551615");
  expect_error([] { render("{{ x }}", "[]"); }, ExitCode::kData, {"t.jinja", "variables"});
}

TEST(ChatTemplateTest, LargeIntegersKeepTheirDigits) {
  const std::string digits = "340282366920938463463374607431768211455";
  const OrderedJson messages = json(R"([{"role": "user", "content": "Hi"}])"),
                    tools = parse_ordered_json("[{\"maximum\": " + digits + "}, -" + digits + "]", "tools",
                                               LargeIntegers::kDigits);
  const ChatInput input{messages, tools};
  const std::string source = "{{ tools | tojson }} {{ tools[1] }} {{ tools[1] | int }} {{ tools[1] is number }}";
  EXPECT_EQ(ChatTemplate::parse(source, "t.jinja").render(input),
            "[{\"maximum\": " + digits + "}, -" + digits + "] -" + digits + " -" + digits + " True");
  for (const char* expression : {"tools[1] + 1", "tools[1] < 1", "range(tools[1])"})
    expect_error([&] { ChatTemplate::parse(fmt::format("{{{{ {} }}}}", expression), "t.jinja").render(input); },
                 ExitCode::kData, {"of more than 64 bits"});
}

TEST(ChatTemplateTest, TextMustBeUtf8) {
  OrderedJson messages = OrderedJson::array({"\xff"}), none;
  expect_error(
      [&] {
        ChatTemplate::parse("{{ messages }}", "t").render({messages, none});
      },
      ExitCode::kData, {"UTF-8"});
}

TEST(ChatTemplateTest, ATemplateRendersAgainAndAgain) {
  const ChatTemplate chat = ChatTemplate::parse("{% set x = 1 %}{{ messages | length }}{{ x }}", "t");
  const ChatTemplate copy = chat;
  OrderedJson none;
  for (size_t count = 0; count < 3; ++count) {
    const OrderedJson messages(count, "m");
    EXPECT_EQ(chat.render({OrderedJson::array(), none}), "01");
    EXPECT_EQ(copy.render({OrderedJson(OrderedJson::array({"m"})), none}), "11");
  }
}

}  // namespace
}  // namespace lfm2
