#include "text/jinja/values/unsupported.h"

#include <fmt/format.h>

namespace lfm2::jinja {

namespace {

struct Unsupported {
  std::string_view kind;
  std::string_view names;  // each between two spaces
};

// In the order of Naming.
constexpr Unsupported kUnsupported[] = {
    {"filter",
     " abs attr batch center e escape filesizeformat float forceescape groupby max pprint random reverse round select "
     "slice striptags sum truncate urlencode urlize wordcount wordwrap xmlattr "},
    {"test",
     " callable divisibleby escaped even filter float ge greaterthan gt integer le lessthan lower lt ne odd sameas "
     "test upper != < <= > >= "},
    {"name", " cycler joiner kwargs lipsum self varargs "},
    {"tag", " autoescape block extends from import include print with "},
    {"str method",
     " casefold center count encode expandtabs format_map index isalnum isalpha isascii isdecimal isdigit isidentifier "
     "islower isnumeric isprintable isspace istitle isupper join ljust maketrans partition removeprefix removesuffix "
     "rfind rindex rjust rpartition rsplit splitlines swapcase translate zfill "},
    {"list method", " copy count index "},
    {"dict method", " copy fromkeys values "},
    {"loop attribute", " changed cycle depth depth0 revindex revindex0 "},
    {"attribute",
     " arguments caller catch_kwargs catch_varargs close explicit_caller gi_code gi_frame gi_running gi_suspended "
     "gi_yieldfrom name send throw "},
    {"attribute",
     " as_integer_ratio bit_count bit_length conjugate count denominator from_bytes fromhex hex imag index is_integer "
     "isdisjoint mapping numerator real start step stop to_bytes "},
};

}  // namespace

bool is_unsupported(Naming naming, std::string_view name) {
  const std::string_view names = kUnsupported[static_cast<size_t>(naming)].names;
  for (size_t at = names.find(name); at != std::string_view::npos; at = names.find(name, at + 1))
    if (at > 0 && names[at - 1] == ' ' && at + name.size() < names.size() && names[at + name.size()] == ' ')
      return true;
  return false;
}

std::string unsupported(Naming naming, std::string_view name) {
  const std::string_view kind = kUnsupported[static_cast<size_t>(naming)].kind;
  return unsupported(fmt::format("the {} '{}'", kind, name));
}

std::string unknown(Naming naming, std::string_view name) {
  if (is_unsupported(naming, name)) return unsupported(naming, name);
  return fmt::format("No {} named '{}'", kUnsupported[static_cast<size_t>(naming)].kind, name);
}

std::string unsupported(std::string_view what) {
  return fmt::format("{} is not supported: simplify the template, or render the prompts with transformers", what);
}

}  // namespace lfm2::jinja
