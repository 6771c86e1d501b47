// References between schemas: URIs (RFC 3986), as far as resolving one against another needs them.
#pragma once

#include <string>
#include <string_view>

namespace lfm2::grammar {

// The target of `reference` within a document at `base`, which may be empty. Both without fragments.
std::string resolve_uri(std::string_view base, std::string_view reference);

// A fragment with its %XX replaced by bytes.
std::string decode_percent(std::string_view fragment);

}  // namespace lfm2::grammar
