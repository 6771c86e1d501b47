// Which device this rank computes on and which transport joins the ranks: decided once, from the options and what every
// rank finds.
#pragma once

#include <memory>
#include <string>

#include "comm/channel.h"
#include "comm/mpi_world.h"
#include "kernels/backend.h"
#include "stage/options.h"

namespace lfm2 {

// Error(kUnavailable) where the wanted device is not there.
std::unique_ptr<Backend> make_backend(const Options& options, const MpiWorld& world);

// Null for a single stage. `previous` and `next` are ranks, MpiChannel::kNoPeer at the ends.
std::unique_ptr<Channel> make_channel(const Options& options, const MpiWorld& world);
std::string transport_name(const MpiWorld& world);

// Memory of this host that could be used now, page cache included; 0 where the system does not say.
uint64_t available_host_memory();

}  // namespace lfm2
