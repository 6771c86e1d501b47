// Where a string ends in which a model forgot to escape quotes, as in f(text='it's late', to="fr").
#pragma once

#include <string_view>

namespace lfm2 {

// What a string is part of.
enum class StringPlace {
  kArgument,     // of a call
  kElement,      // of a list, a tuple or a set
  kKey,          // of an object
  kEntry,        // a value of an object
  kKeyOrElement  // the first of an object or a set
};

// Whether a string may end before `after`: there stands what continues a call or value of this kind.
bool may_end_string(std::string_view text, size_t after, StringPlace place);
// Whether the quote before `after` ends a string that an operator of Python continues, as in 'a' + 'b'. Such strings
// are not repaired: they are no literals.
bool is_operand(std::string_view text, size_t after);
// Whether the quote at `at` begins an argument, as in ", name='": a string that contains one swallows this argument.
bool begins_argument(std::string_view text, size_t at);

}  // namespace lfm2
