// The page that the server shows at "/". Its files need no key, since they are the same for everyone; the requests that
// the page sends do.
#pragma once

#include <string>
#include <vector>

#include "serve/http/router.h"

namespace lfm2::serve {

std::vector<std::string> page_paths();
void add_page(http::Router& router);

}  // namespace lfm2::serve
