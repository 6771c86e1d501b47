// What Jinja and Python have and no published chat template uses: never computed, and the message has its name.
#include <map>
#include <sstream>

#include "support/weights_support.h"
#include "text/chat/chat_template.h"

namespace lfm2 {
namespace {

void refuses(const std::string& source, const std::string& what) {
  SCOPED_TRACE(source);
  const OrderedJson messages = OrderedJson::array(), none;
  ChatInput input{messages, none};
  input.variables = parse_ordered_json(R"({"s": "aB", "f": 1.5, "d": {"a": 1}})", "json");
  test::expect_error([&] { ChatTemplate::parse(source, "t.jinja").render(input); }, ExitCode::kData,
                     {"t.jinja: line 1: ", what + " is not supported: simplify the template, or render the prompts"});
}

template <class Check>
void each(const std::string& names, Check&& check) {
  std::istringstream words(names);
  for (std::string name; words >> name;) check(name);
}

TEST(ChatTemplateRefusalsTest, Names) {
  each(
      "abs attr batch center e escape filesizeformat float forceescape groupby max pprint random reverse round select "
      "slice striptags sum truncate urlencode urlize wordcount wordwrap xmlattr",
      [&](const std::string& name) {
        refuses("{{ s | " + name + " }}", "the filter '" + name + "'");
        refuses("{% if false %}{{ s | " + name + "(1, x=2) }}{% endif %}", "the filter '" + name + "'");
        refuses("{{ [s] | map('" + name + "') | list }}", "the filter '" + name + "'");
        refuses("{% filter " + name + " %}{% endfilter %}", "the filter '" + name + "'");
      });
  each(
      "callable divisibleby escaped even filter float ge greaterthan gt integer le lessthan lower lt ne odd sameas "
      "test "
      "upper",
      [&](const std::string& name) {
        refuses("{% if false and s is " + name + " %}{% endif %}", "the test '" + name + "'");
        refuses("{{ [s] | reject('" + name + "') | list }}", "the test '" + name + "'");
      });
  each("!= < <= > >=", [&](const std::string& name) {
    refuses("{{ [d] | selectattr('a', '" + name + "', 1) | list }}", "the test '" + name + "'");
  });
  each(
      "casefold center count encode expandtabs format_map index isalnum isalpha isascii isdecimal isdigit isidentifier "
      "islower isnumeric isprintable isspace istitle isupper join ljust maketrans partition removeprefix removesuffix "
      "rfind rindex rjust rpartition rsplit splitlines swapcase translate zfill",
      [&](const std::string& name) {
        refuses("{{ s." + name + "(1) }}", "the str method '" + name + "'");
        refuses("{{ s['" + name + "'] }}", "the str method '" + name + "'");
      });
  each("copy count index",
       [&](const std::string& name) { refuses("{{ [1]." + name + "(1) }}", "the list method '" + name + "'"); });
  each("copy fromkeys values",
       [&](const std::string& name) { refuses("{{ d." + name + "() }}", "the dict method '" + name + "'"); });
  each("cycler joiner kwargs lipsum self varargs", [&](const std::string& name) {
    refuses("{% macro m() %}{{ " + name + " }}{% endmacro %}", "the name '" + name + "'");
  });
  each("autoescape block extends from import include print with", [&](const std::string& name) {
    refuses("{% if false %}{% " + name + " x %}{% endif %}", "the tag '" + name + "'");
  });
  each("changed cycle depth depth0 revindex revindex0", [&](const std::string& name) {
    refuses("{% for x in [1] %}{{ loop." + name + " }}{% endfor %}", "the loop attribute '" + name + "'");
  });
}

TEST(ChatTemplateRefusalsTest, OtherConstructs) {
  const std::map<std::string, std::string> others = {
      {"{{ 1 / 2 }}", "the operator '/'"},
      {"{{ 1 // 2 }}", "the operator '//'"},
      {"{{ 2 ** 3 }}", "the operator '**'"},
      {"{{ dict(**d) }}", "the operator '**'"},
      {"{{ +1 }}", "the sign '+'"},
      {"{{ '%s' % s }}", "the operator '%' on text"},
      {"{{ f + 1 }}", "arithmetic on floats"},
      {"{{ -f }}", "arithmetic on floats"},
      {"{{ 1.5 }}", "the number '1.5'"},
      {"{{ 1e3 }}", "the number '1e3'"},
      {"{{ 0x1F }}", "the number '0x1F'"},
      {"{{ 1_000 }}", "the number '1_000'"},
      {"{{ 012 }}", "the number '012'"},
      {"{{ s[::2] }}", "a slice with a step other than [::-1]"},
      {"{{ s[1::-1] }}", "a slice with a step other than [::-1]"},
      {"{{ s.split() }}", "split() without a separator"},
      {"{{ s.startswith(('a', 'b')) }}", "startswith() of a tuple"},
      {"{{ s.find('B', 1) }}", "the argument 'start' of find()"},
      {"{{ s.replace('a', 'b', 1) }}", "the argument 'count' of replace()"},
      {"{{ s.replace('', 'b') }}", "replacing the empty text"},
      {"{{ '{0}'.format(s) }}", "format() of a text with braces other than {}"},
      {"{{ '%d' | format(1) }}", "the filter 'format' with anything but %s"},
      {"{{ '%s' | format(a=1) }}", "the filter 'format' with named arguments"},
      {"{{ s | trim('a') }}", "the argument 'chars' of trim"},
      {"{{ s | join(', ', 'k') }}", "the argument 'attribute' of join"},
      {"{{ s | indent(blank=true) }}", "the argument 'blank' of indent"},
      {"{{ '1.5' | int }}", "int of '1.5'"},
      {"{{ '7' | int(0, 8) }}", "the argument 'base' of int"},
      {"{{ [d] | map(attribute='a.b') | list }}", "'a.b' as the name of an attribute"},
      {"{{ [d] | sort(attribute='a,b') }}", "the filter 'sort' by several attributes"},
      {"{{ d | dictsort(true) }}", "the argument 'case_sensitive' of dictsort"},
      {"{{ 'é' | upper }}", "upper of text beyond ASCII"},
      {"{{ 'Σ' | lower }}", "lower of text with 'Σ'"},
      {"{{ dict(d) }}", "dict() of anything but named arguments"},
      {"{{ namespace(d) }}", "namespace() of anything but named arguments"},
      {"{{ d.items() }}", "a dict_items as text"},
      {"{{ s | safe | trim }}", "the filter 'trim' of text that is marked safe"},
      {"{{ (s | safe).strip() }}", "a method of text that is marked safe"},
      {"{% set x | upper %}{% endset %}", "a filter of a 'set' block"},
      {"{{ strftime_now('%-d') }}", "strftime_now with '%-'"},
  };
  for (const auto& [source, what] : others) refuses(source, what);
}

}  // namespace
}  // namespace lfm2
