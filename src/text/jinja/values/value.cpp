#include "text/jinja/values/value.h"

namespace lfm2::jinja {

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
      return "missing";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBoolean:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kDigits:
      return "int of more than 64 bits";
    case Kind::kReal:
      return "float";
    case Kind::kText:
      return value.is_markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return value.as<View>().type;
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "builtin_function_or_method";
    case Kind::kFunction:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "";
}

}  // namespace lfm2::jinja
