// The Traffic of a server: requests arrive over HTTP until the server is asked to end.
#pragma once

#include <memory>

#include "stage/job/traffic.h"

namespace lfm2::serve {

std::unique_ptr<Traffic> make_server(const JobFrame& job);

}  // namespace lfm2::serve
