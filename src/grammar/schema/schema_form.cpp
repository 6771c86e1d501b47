#include "grammar/schema/schema_form.h"

#include "base/error.h"
#include "grammar/expression/formats.h"
#include "grammar/expression/pattern.h"
#include "grammar/expression/refusal.h"

namespace lfm2::grammar {
namespace {

constexpr size_t kMaxOpen = 400;  // schemas inside of each other that speak of the same value
constexpr int kMaxLooks = 3;      // levels of values that are looked into for emptiness

}  // namespace

SchemaForms::SchemaForms(SchemaReader& reader, Expressions& expressions)
    : reader_(reader), expressions_(expressions), sets_(reader), algebra_(sets_, expressions, *this) {}

const Form& SchemaForms::form(SetId set) {
  if (const auto known = forms_.find(set); known != forms_.end()) return known->second;
  const std::vector<Literal>& literals = sets_.literals(set);
  if (literals.empty()) return forms_.emplace(set, algebra_.everything()).first->second;
  if (literals.size() == 1) return form(literals.front());
  Form whole = form(literals.front());
  for (size_t i = 1; i < literals.size(); ++i) whole = algebra_.intersection(whole, form(literals[i]));
  return forms_.emplace(set, std::move(whole)).first->second;
}

bool SchemaForms::surely_empty(SetId set) {
  if (looks_ >= kMaxLooks) return false;
  struct Look {
    explicit Look(int& looks) : looks_(looks) { ++looks_; }
    ~Look() { --looks_; }
    int& looks_;
  } look(looks_);
  try {
    return surely_empty(form(set));
  } catch (const Unfinished&) {
    return false;
  } catch (const Refusal&) {
    return false;  // where the set is used, it is refused again
  }
}

bool SchemaForms::surely_empty(const Form& form) {
  if (form.null || form.no || form.yes || !form.numbers.empty() || !form.lists.empty() || !form.objects.empty())
    return false;
  return form.text.empty() || (!form.text.is_all() && !form.text.listed() && !algebra_.possible(form.text.set()));
}

const Form& SchemaForms::form(const Literal& literal) {
  const std::pair key(literal.schema, literal.positive);
  if (const auto known = literals_.find(key); known != literals_.end()) return known->second;
  const Schema& schema = reader_.at(literal.schema);
  const auto [open, added] = open_.try_emplace(key, looks_);
  if (!added && open->second < looks_) throw Unfinished{};
  if (!added) throw Refusal(schema.node->pointer(), "", "a circle of references without progress", "none");
  struct Open {
    ~Open() { all.erase(key); }
    decltype(open_)& all;
    std::pair<SchemaId, bool> key;
  } guard{open_, key};
  if (open_.size() > kMaxOpen)
    throw Refusal(schema.node->pointer(), "", "more than 400 schemas of one value inside of each other", "fewer");
  Form form = compute(literal);
  return literals_.emplace(key, std::move(form)).first->second;
}

Form SchemaForms::compute(const Literal& literal) {
  Form whole = literal.positive ? algebra_.everything() : Form{};
  bool first = true;
  for (const Assertion& assertion : reader_.at(literal.schema).assertions) {
    try {
      Form part = claim(assertion, literal.positive);
      if (first)
        whole = std::move(part);
      else if (literal.positive)
        whole = algebra_.intersection(whole, part);
      else
        algebra_.unite(whole, std::move(part));
      first = false;
    } catch (const Refusal& refusal) {
      const JsonNode& value = *assertion.place;
      throw refusal.at_if_nowhere(value.parent ? value.parent->pointer() : "", value.key);
    }
  }
  return whole;
}

Form SchemaForms::claim(const Assertion& assertion, bool positive) {
  switch (assertion.kind) {
    case Kind::kNever:
    case Kind::kTypes:
    case Kind::kValues:
    case Kind::kAllOf:
    case Kind::kAnyOf:
    case Kind::kOneOf:
    case Kind::kNot:
    case Kind::kIf:
      return simple_claim(assertion, positive);
    case Kind::kMinimum:
    case Kind::kMaximum:
    case Kind::kMultipleOf:
      return number_claim(assertion, positive);
    case Kind::kLength:
    case Kind::kPattern:
    case Kind::kFormat:
      return text_claim(assertion, positive);
    case Kind::kProperties:
    case Kind::kRequired:
    case Kind::kPropertyNames:
    case Kind::kPropertyCount:
    case Kind::kDependentRequired:
    case Kind::kDependentSchema:
      return object_claim(assertion, positive);
    case Kind::kItems:
    case Kind::kItemCount:
    case Kind::kContains:
    case Kind::kUniqueItems:
      return list_claim(assertion, positive);
  }
  throw Error(ExitCode::kSoftware, "an assertion of no kind");
}

Form SchemaForms::simple_claim(const Assertion& assertion, bool positive) {
  switch (assertion.kind) {
    case Kind::kNever:
      return positive ? Form{} : algebra_.everything();
    case Kind::kTypes:
      return types(assertion, positive);
    case Kind::kValues:
      return values(assertion, positive);
    case Kind::kAllOf:
      return branches(assertion, positive, positive);
    case Kind::kAnyOf:
      return branches(assertion, !positive, positive);
    case Kind::kOneOf:
      return positive ? exactly_one(assertion) : not_exactly_one(assertion);
    case Kind::kIf:
      return condition(assertion, positive);
    default:
      return form(assertion.schemas.front(), !positive);  // kNot
  }
}

// All or any of the schemas, or of their complements.
Form SchemaForms::branches(const Assertion& assertion, bool all, bool positive) {
  if (all) {
    Form whole = form(assertion.schemas.front(), positive);
    for (size_t i = 1; i < assertion.schemas.size(); ++i)
      whole = algebra_.intersection(whole, form(assertion.schemas[i], positive));
    return whole;
  }
  FormAlgebra::Union any(algebra_);
  for (const SchemaId schema : assertion.schemas) any.add(form(schema, positive));
  return std::move(any).whole();
}

// Each branch without the others. A complement is needed only of branches that may overlap.
Form SchemaForms::exactly_one(const Assertion& assertion) {
  const std::vector<SchemaId>& schemas = assertion.schemas;
  std::vector<std::vector<size_t>> overlapping(schemas.size());
  for (size_t i = 0; i < schemas.size(); ++i)
    for (size_t j = i + 1; j < schemas.size(); ++j)
      if (!surely_empty(algebra_.intersection(form(schemas[i], true), form(schemas[j], true)))) {
        overlapping[i].push_back(j);
        overlapping[j].push_back(i);
      }
  Form whole;
  for (size_t i = 0; i < schemas.size(); ++i) {
    Form branch = form(schemas[i], true);
    for (const size_t other : overlapping[i]) branch = algebra_.intersection(branch, form(schemas[other], false));
    algebra_.unite(whole, std::move(branch));
  }
  return whole;
}

// None of the branches, or two of them.
Form SchemaForms::not_exactly_one(const Assertion& assertion) {
  const std::vector<SchemaId>& schemas = assertion.schemas;
  Form whole = branches(assertion, true, false);
  for (size_t i = 0; i < schemas.size(); ++i)
    for (size_t j = i + 1; j < schemas.size(); ++j)
      algebra_.unite(whole, algebra_.intersection(form(schemas[i], true), form(schemas[j], true)));
  return whole;
}

Form SchemaForms::condition(const Assertion& assertion, bool positive) {
  const SchemaId condition = assertion.schemas[0];
  Form whole = algebra_.intersection(form(condition, true), form(assertion.schemas[1], positive));
  algebra_.unite(whole, algebra_.intersection(form(condition, false), form(assertion.schemas[2], positive)));
  return whole;
}

Form SchemaForms::types(const Assertion& assertion, bool positive) {
  Form named;
  const Form all = algebra_.everything();
  for (const JsonNode* type : assertion.values) {
    const std::string& name = type->text;
    if (name == "null") named.null = true;
    if (name == "boolean") named.no = named.yes = true;
    if (name == "string") named.text = all.text;
    if (name == "array") named.lists = all.lists;
    if (name == "object") named.objects = all.objects;
    if (name == "number") named.numbers = all.numbers;
    if (name == "integer" && named.numbers.empty()) {
      named.numbers.emplace_back();
      named.numbers.back().set.integer = true;
    }
  }
  if (positive) return named;
  Form others;
  others.null = !named.null;
  others.no = others.yes = !named.no;
  if (named.text.empty()) others.text = all.text;
  if (named.lists.empty()) others.lists = all.lists;
  if (named.objects.empty()) others.objects = all.objects;
  if (named.numbers.empty()) others.numbers = all.numbers;
  if (!named.numbers.empty() && named.numbers.front().set.integer) {
    others.numbers.emplace_back();
    others.numbers.back().fraction = true;
  }
  return others;
}

Form SchemaForms::text_claim(const Assertion& assertion, bool positive) {
  TextForm texts;
  if (assertion.kind == Kind::kLength) {
    texts = TextForm::of(length(assertion.min, assertion.max));
  } else if (assertion.kind == Kind::kPattern) {
    texts = TextForm::of(parse_pattern(assertion.values.front()->text, Anchors::kSearch));
  } else {
    const std::string& name = assertion.values.front()->text;
    const std::optional<TextSet> set = format_set(name);
    if (!set) return positive ? algebra_.everything() : Form{};  // an annotation
    if (!positive && !format_is_exact(name))
      throw Refusal("", "", "a format of which only a part is written", "no complement of it");
    texts = TextForm::of(*set);
  }
  if (positive) return algebra_.with(std::move(texts));
  Form form;
  form.text = texts.complement();
  return form;
}

Form SchemaForms::number_claim(const Assertion& assertion, bool positive) {
  const Decimal value = Decimal::parse(assertion.values.front()->text);
  NumberPart part;
  if (assertion.kind == Kind::kMultipleOf) {
    if (value.is_zero() || value.is_negative()) throw Refusal("", "", excerpt(*assertion.place), "a number above 0");
    if (positive)
      part.set.multiples.push_back(value);
    else
      part.not_multiples.push_back(value);
  } else if ((assertion.kind == Kind::kMinimum) == positive) {
    part.set.min = value;
    part.set.exclusive_min = assertion.exclusive == positive;
  } else {
    part.set.max = value;
    part.set.exclusive_max = assertion.exclusive == positive;
  }
  if (positive) return algebra_.with(std::vector{std::move(part)});
  Form form;
  form.numbers.push_back(std::move(part));
  return form;
}

std::string SchemaForms::pointer(SetId set) {
  const std::vector<Literal>& literals = sets_.literals(set);
  const JsonNode* node = literals.empty() ? nullptr : reader_.at(literals.front().schema).node;
  return node ? node->pointer() : "";
}

std::vector<std::pair<uint32_t, uint32_t>> SchemaForms::outside(uint32_t min, uint32_t max) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  if (min > 0) ranges.emplace_back(0, min - 1);
  if (max != kNoMax) ranges.emplace_back(max + 1, kNoMax);
  return ranges;
}

}  // namespace lfm2::grammar
