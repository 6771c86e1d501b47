// The functions that every chat template may call.
#pragma once

#include <ctime>
#include <optional>
#include <string_view>

#include "text/jinja/builtins/arguments.h"

namespace lfm2::jinja {

// nullopt where Jinja has no function of this name.
std::optional<Function> find_function(std::string_view name);

// `now` is the time that strftime_now shows, in the local time zone. raise_exception() is an Error with its message.
Value call_function(Heap& heap, Function function, const Arguments& arguments, std::time_t now);

}  // namespace lfm2::jinja
