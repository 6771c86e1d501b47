// Finds for every name of a template the variable that Jinja's compiler finds: which scope it belongs to, and what it
// is when the scope begins. Scopes are the template, macros, the bodies of calls, loops, with, filter and set blocks.
#pragma once

#include "text/jinja/syntax/tree.h"

namespace lfm2::jinja {

void resolve_names(Template& tree);

}  // namespace lfm2::jinja
