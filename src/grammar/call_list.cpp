#include "grammar/call_list.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "grammar/expression/pattern.h"
#include "grammar/expression/refusal.h"
#include "grammar/schema/value_rules.h"

namespace lfm2::grammar {
namespace {

using Kind = JsonNode::Kind;

// Letters of a name that would end it for whoever reads the call. Names may have dots and hyphens.
constexpr std::string_view kNameEnds = "()[]{},=:'\"\\ \t\r\n";

bool is_writable(std::string_view name) {
  if (name.empty() || name.find_first_of(kNameEnds) != std::string_view::npos) return false;
  for (const char letter : name)
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) return false;
  return true;
}

// The rules of one function's arguments live until all rules are written.
struct Function {
  Function(Grammar& grammar, const Notation& notation, const JsonNode& parameters)
      : reader(parameters), forms(reader, grammar.expressions()), rules(grammar, forms, notation, true) {}
  SchemaReader reader;
  SchemaForms forms;
  ValueRules rules;
};

class CallWriter {
 public:
  explicit CallWriter(Grammar& grammar)
      : grammar_(grammar), notation_(grammar.expressions(), Notation::Kind::kPython) {}

  void add(const JsonNode& tool, const std::string& only);
  void write(const CallListOptions& options);

 private:
  Expr key(const TextForm& names) const;
  void add_calls(const std::string& name, const JsonNode& parameters);

  Grammar& grammar_;
  const Notation notation_;
  std::deque<Function> functions_;
  std::vector<Sequence> calls_;
};

void CallWriter::add(const JsonNode& tool, const std::string& only) {
  const JsonNode* function = tool.find("function");
  if (!function) throw Refusal(tool.pointer(), "function", "none", "an object with the function's name");
  const JsonNode* name = function->find("name");
  if (!name || !name->is(Kind::kString) || !is_writable(name->text))
    throw Refusal(function->pointer(), "name", name ? excerpt(*name) : "none",
                  "a name without blanks, quotes and brackets");
  if (!only.empty() && name->text != only) return;
  const JsonNode* parameters = function->find("parameters");
  if (!parameters || parameters->is(Kind::kNull))
    calls_.push_back({Symbol::text(grammar_.expressions().text(name->text + "()"))});
  else
    add_calls(name->text, *parameters);
}

void CallWriter::add_calls(const std::string& name, const JsonNode& parameters) {
  Expressions& e = grammar_.expressions();
  Function& function = functions_.emplace_back(grammar_, notation_, parameters);
  const Form& form = function.forms.form(function.forms.sets().of(function.reader.root()));
  if (form.objects.empty())
    throw Refusal(parameters.pointer(), "", excerpt(parameters), "a schema that allows an object");
  const ValueRules::ObjectSpelling spelling{e.text(name + "("), e.text(")"), e.text(name + "()"), notation_.comma(),
                                            [&](const TextForm& names) { return e.concat(key(names), e.text("=")); }};
  // Where a name stands among the declared ones; others follow these.
  std::unordered_map<std::string_view, size_t> ranks;
  if (const JsonNode* declared = parameters.find("properties"))
    for (const JsonNode* property : declared->children) ranks.emplace(property->key, ranks.size());
  const auto rank = [&](const ObjectShape::Property& property) {
    const auto found = ranks.find(property.name);
    return found == ranks.end() ? ranks.size() : found->second;
  };
  for (ObjectShape shape : form.objects) {
    for (const ObjectShape::Property& property : shape.properties)
      if (!is_writable(property.name))
        throw Refusal(parameters.pointer(), "properties", "the name \"" + property.name + "\"",
                      "names without blanks, quotes and brackets");
    shape.declares = true;  // a function without parameters has none
    std::ranges::stable_sort(shape.properties, {}, rank);
    try {
      calls_.push_back(function.rules.object(shape, spelling));
    } catch (const Refusal& refusal) {
      throw refusal.at_if_nowhere(parameters.pointer(), "");
    }
  }
  function.rules.write();
}

// A declared name as it is; others are those that could be names in Python.
Expr CallWriter::key(const TextForm& names) const {
  Expressions& e = notation_.expressions();
  if (names.listed()) return lower(names.set(), Spelling::kRaw, e);
  const TextSet identifiers = parse_pattern("[A-Za-z_][A-Za-z0-9_]*", Anchors::kWhole);
  return lower(both({names.set(), identifiers}), Spelling::kRaw, e);
}

void CallWriter::write(const CallListOptions& options) {
  Expressions& e = grammar_.expressions();
  const RuleId call = grammar_.add_rule(), calls = grammar_.add_rule(), whole = grammar_.add_rule();
  grammar_.set_alternatives(call, std::move(calls_));
  grammar_.set_repeat(calls, {Symbol::rule(call)}, {Symbol::text(notation_.comma())}, 1, options.parallel ? kNoMax : 1);
  grammar_.set_alternatives(whole, {{Symbol::token(options.start), Symbol::text(e.text("[")), Symbol::rule(calls),
                                     Symbol::text(e.text("]")), Symbol::token(options.end)}});
  grammar_.set_start(whole);
  grammar_.finish();
}

}  // namespace

Grammar call_list_grammar(std::string_view tools, const CallListOptions& options, const Limits& limits) {
  Grammar grammar(limits);
  const JsonTree tree(tools);
  if (!tree.root().is(Kind::kArray)) throw Refusal("", "", excerpt(tree.root()), "a list of tools");
  CallWriter writer(grammar);
  bool found = false;
  for (const JsonNode* tool : tree.root().children) {
    writer.add(*tool, options.only);
    const JsonNode* function = tool->find("function");
    found = found || options.only.empty() || function->find("name")->text == options.only;
  }
  if (!found)
    throw Refusal("", "", options.only.empty() ? "no tools" : "no tool \"" + options.only + "\"",
                  "a tool that is offered");
  writer.write(options);
  return grammar;
}

}  // namespace lfm2::grammar
