// enum and const: values as forms, and everything but them.
#include <algorithm>

#include "grammar/expression/refusal.h"
#include "grammar/schema/schema_form.h"

namespace lfm2::grammar {
namespace {

NumberPart one_number(const JsonNode& value) {
  NumberPart part;
  part.set.min = part.set.max = Decimal::parse(value.text);
  return part;
}

}  // namespace

Form SchemaForms::values(const Assertion& assertion, bool positive) {
  std::vector<std::string> texts;
  Form form = positive ? Form{} : algebra_.everything();
  for (const JsonNode* value : assertion.values) {
    if (value->is(JsonNode::Kind::kString))
      texts.push_back(value->text);
    else if (positive)
      add_value(*value, form);
    else
      other_than(*value, form);
  }
  form.text = positive ? TextForm::of(std::move(texts)) : TextForm::of(std::move(texts)).complement();
  return form;
}

void SchemaForms::add_value(const JsonNode& value, Form& form) {
  switch (value.kind) {
    case JsonNode::Kind::kNull:
      form.null = true;
      return;
    case JsonNode::Kind::kFalse:
      form.no = true;
      return;
    case JsonNode::Kind::kTrue:
      form.yes = true;
      return;
    case JsonNode::Kind::kNumber:
      form.numbers.push_back(one_number(value));
      return;
    case JsonNode::Kind::kString:
      return;
    case JsonNode::Kind::kArray: {
      ListShape shape{.prefix = {}, .rest = sets_.nothing(), .contains = {}};
      for (const JsonNode* item : value.children) shape.prefix.push_back(sets_.of(reader_.constant(*item)));
      shape.min = shape.max = static_cast<uint32_t>(value.children.size());
      form.lists.push_back(std::move(shape));
      return;
    }
    case JsonNode::Kind::kObject: {
      ObjectShape shape;
      for (const JsonNode* member : value.children)
        shape.properties.push_back({member->key, sets_.of(reader_.constant(*member)), true, true});
      shape.declares = true;
      form.objects.push_back(std::move(shape));
      return;
    }
  }
}

// Takes a value that is no text out of `rest`.
void SchemaForms::other_than(const JsonNode& value, Form& rest) {
  Form others = algebra_.everything();
  switch (value.kind) {
    case JsonNode::Kind::kNull:
      others.null = false;
      break;
    case JsonNode::Kind::kFalse:
      others.no = false;
      break;
    case JsonNode::Kind::kTrue:
      others.yes = false;
      break;
    case JsonNode::Kind::kString:
      return;
    case JsonNode::Kind::kNumber: {
      NumberPart below, above;
      below.set.max = above.set.min = Decimal::parse(value.text);
      below.set.exclusive_max = above.set.exclusive_min = true;
      others.numbers = {below, above};
      break;
    }
    case JsonNode::Kind::kArray: {
      others.lists.clear();
      const uint32_t items = static_cast<uint32_t>(value.children.size());
      for (const auto& [min, max] : outside(items, items)) {
        others.lists.push_back(algebra_.any_list());
        others.lists.back().min = min;
        others.lists.back().max = max;
      }
      for (uint32_t i = 0; i < items; ++i) {
        ListShape& shape = others.lists.emplace_back(algebra_.any_list());
        shape.prefix.assign(i, sets_.whole());
        shape.prefix.push_back(sets_.of(reader_.constant(*value.children[i]), false));
        shape.min = i + 1;
      }
      break;
    }
    case JsonNode::Kind::kObject: {
      others.objects.clear();
      ObjectShape more = algebra_.any_object();
      std::vector<std::string> names;
      for (const JsonNode* member : value.children) {
        others.objects.push_back(with_property(member->key, sets_.nothing(), false));
        others.objects.push_back(with_property(member->key, sets_.of(reader_.constant(*member), false), true));
        names.push_back(member->key);
      }
      more.some.push_back({TextForm::of(std::move(names)).complement().set(), sets_.whole()});
      others.objects.push_back(std::move(more));
      break;
    }
  }
  rest = algebra_.intersection(rest, others);
}

}  // namespace lfm2::grammar
